"""Locks: every line is one exact version with digests."""

import pytest

from wheelmill.errors import RecipeError
from wheelmill.lock import parse_lock

A, B = "a" * 64, "b" * 64
TEXT = f"# a comment\ntorch==2.11.0 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n    # via x\nninja==1.13.0 ; python_version >= '3.9' --hash=sha256:{A}\n"


def test_a_lock_is_read_whole() -> None:
    """Continued lines, comments and markers are understood."""
    lock = parse_lock(TEXT, file="x.txt")
    assert {name: (pin.version, pin.hashes) for name, pin in lock.pins.items()} == {
        "torch": ("2.11.0", (A, B)),
        "ninja": ("1.13.0", (A,)),
    }


def test_the_digest_knows_pins_only() -> None:
    """Comments, order of lines and of digests do not enter; versions and digests do."""
    first = parse_lock(TEXT, file="x.txt").digest
    other = f"ninja==1.13.0 ; python_version >= '3.9' --hash=sha256:{A}\ntorch==2.11.0 --hash=sha256:{B} --hash=sha256:{A}\n"
    assert parse_lock(other, file="y.txt").digest == first
    assert parse_lock(other.replace("2.11.0", "2.11.1"), file="y.txt").digest != first
    assert parse_lock(other.replace(B, "c" * 64), file="y.txt").digest != first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("torch>=2 --hash=sha256:" + A, "x.txt: torch: 'torch>=2' is not one exact version"),
        ("torch==2.* --hash=sha256:" + A, "x.txt: torch: 'torch==2.*' is not one exact version"),
        ("torch==2.11.0", "x.txt: torch: has no sha256, or a broken one"),
        ("torch==2.11.0 --hash=sha256:abc", "x.txt: torch: has no sha256, or a broken one"),
        (
            "--index-url https://example.invalid/simple",
            "x.txt: option '--index-url' has no place in a lock: the user's own settings say where files come from",
        ),
        (f"a==1 --hash=sha256:{A}\nA==1 --hash=sha256:{A}", "x.txt: a: is locked twice"),
    ],
)
def test_a_line_that_pins_nothing(line: str, message: str) -> None:
    """What is not exact is refused, with the file and the name."""
    with pytest.raises(RecipeError) as caught:
        parse_lock(line + "\n", file="x.txt")
    assert str(caught.value) == message
