"""Source trees: safe unpacking, strict patches, nothing half-written."""

import difflib
import io
import os
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheelmill.catalog import Patch
from wheelmill.errors import FetchError, HashMismatchError, PatchError
from wheelmill.fetch import FetchedSource, FetchedTree, tree_digest
from wheelmill.source import Overlay, apply_change, apply_patches, parsed, prepare, shown, split_lines

EPOCH = 1_755_129_600
SETUP = b"import os\nARCHS = '80;90'\nsetup()\n"
CHANGE = """\
--- a/setup.py
+++ b/setup.py
@@ -1,3 +1,3 @@
 import os
-ARCHS = '80;90'
+ARCHS = '100'
 setup()
"""


def archive(folder: Path, files: dict[str, bytes], *, name: str = "demo-1.0.tar.gz") -> FetchedSource:
    path = folder / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as target:
            for member, content in files.items():
                info = zipfile.ZipInfo(member)
                info.external_attr = (0o100755 if member.endswith(".sh") else 0o100644) << 16
                target.writestr(info, content)
    else:
        with tarfile.open(path, "w:gz") as target:
            for member, content in files.items():
                info = tarfile.TarInfo(member)
                info.size, info.mode = len(content), 0o700 if member.endswith(".sh") else 0o600
                target.addfile(info, io.BytesIO(content))
    return FetchedSource(path=path, sha256="0" * 64, file=name)


def patch(text: str, name: str = "0001-why.patch") -> Patch:
    return Patch(name=name, text=text)


def tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.mark.parametrize("name", ["demo-1.0.tar.gz", "demo-1.0.zip"])
def test_an_archive_becomes_a_patched_tree(name: str, tmp_path: Path) -> None:
    """The one top folder is taken off, patches are in, modes and times are fixed whatever the umask."""
    fetched = archive(tmp_path, {"demo-1.0/setup.py": SETUP, "demo-1.0/csrc/run.sh": b"#!/bin/sh\n"}, name=name)
    umask = os.umask(0o077)
    try:
        made = prepare(
            fetched, patches=[patch(CHANGE)], must_exist=["csrc"], destination=tmp_path / "tree", epoch=EPOCH
        )
    finally:
        os.umask(umask)

    assert made.patches == ("0001-why.patch",)
    assert (made.root / "setup.py").read_bytes() == SETUP.replace(b"80;90", b"100")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.root.rglob("*")}
    assert modes == {"setup.py": 0o644, "csrc": 0o755, "run.sh": 0o755}
    assert {path.stat().st_mtime for path in [made.root, *made.root.rglob("*")]} == {EPOCH}
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "tree"]


def test_a_licence_may_come_by_a_patch(tmp_path: Path) -> None:
    """flash-attn's archive lacks the licence of CUTLASS, and a patch ships it; one that nobody brings is refused."""
    fetched = archive(tmp_path, {"demo-1.0/setup.py": SETUP})
    brings = patch("--- /dev/null\n+++ b/LICENSE\n@@ -0,0 +1 @@\n+MIT\n")
    arguments = {"patches": [brings], "must_exist": ["setup.py"], "epoch": EPOCH}

    assert (prepare(fetched, **arguments, destination=tmp_path / "a", licenses=["LICENSE"]).root / "LICENSE").is_file()
    with pytest.raises(FetchError, match=r"demo-1\.0\.tar\.gz lacks files that its build needs:\n  NOTICE"):
        prepare(fetched, **arguments, destination=tmp_path / "b", licenses=["LICENSE", "NOTICE"])
    assert not (tmp_path / "b").exists()


def test_a_complete_tree_is_gone_on_with(tmp_path: Path) -> None:
    """What a killed build left in its tree is kept."""
    fetched = archive(tmp_path, {"demo-1.0/setup.py": SETUP})
    arguments = {"patches": [], "must_exist": [], "destination": tmp_path / "tree", "epoch": EPOCH}
    prepare(fetched, **arguments)
    (tmp_path / "tree" / "built.o").write_bytes(b"x")

    prepare(fetched, **arguments)

    assert (tmp_path / "tree" / "built.o").exists()


def test_a_directory_is_copied_without_leftovers(tmp_path: Path) -> None:
    """Only what the digest covers can reach a build, and a change after the check is noticed."""
    source = tree(tmp_path / "demo", {"setup.py": SETUP, "build/x.o": b"old", "src/a.cu": b""})
    fetched = FetchedTree(path=source, sha256=tree_digest(source))

    made = prepare(fetched, patches=[], must_exist=[], destination=tmp_path / "tree", epoch=EPOCH)

    assert sorted(path.name for path in made.root.rglob("*")) == ["a.cu", "setup.py", "src"]
    (source / "setup.py").write_bytes(b"changed meanwhile\n")
    with pytest.raises(HashMismatchError):
        prepare(fetched, patches=[], must_exist=[], destination=tmp_path / "tree2", epoch=EPOCH)


def test_missing_paths_are_listed_at_once(tmp_path: Path) -> None:
    """An archive without its submodules is refused before anything is built."""
    fetched = archive(tmp_path, {"demo-1.0/setup.py": SETUP})

    with pytest.raises(FetchError) as caught:
        prepare(
            fetched,
            patches=[],
            must_exist=["csrc/cutlass", "setup.py", "csrc/ck"],
            destination=tmp_path / "tree",
            epoch=EPOCH,
        )

    assert str(caught.value) == "demo-1.0.tar.gz lacks files that its build needs:\n  csrc/cutlass\n  csrc/ck"
    assert caught.value.kind == "missing-source"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-1.0.tar.gz"]


@pytest.mark.parametrize(
    ("files", "name", "problem"),
    [
        ({"../evil": b"x"}, "demo-1.0.tar.gz", "demo-1.0.tar.gz cannot be unpacked: '../evil' would be extracted to"),
        ({"../evil": b"x"}, "demo-1.0.zip", "demo-1.0.zip cannot be unpacked: member '../evil' leaves the archive"),
        (
            {"a/x": b"", "b/x": b""},
            "demo-1.0.tar.gz",
            "demo-1.0.tar.gz has a, b at its top, where a source distribution has one folder",
        ),
        ({"x": b""}, "demo-1.0.tar.gz", "demo-1.0.tar.gz has x at its top, where a source distribution has one folder"),
    ],
)
def test_unsafe_and_strange_archives_are_refused(
    files: dict[str, bytes], name: str, problem: str, tmp_path: Path
) -> None:
    """Nothing is written outside the tree, and nothing stays."""
    fetched = archive(tmp_path, files, name=name)

    with pytest.raises(FetchError) as caught:
        prepare(fetched, patches=[], must_exist=[], destination=tmp_path / "deep" / "tree", epoch=EPOCH)

    assert str(caught.value).startswith(problem)
    assert not (tmp_path / "evil").exists()
    assert not list((tmp_path / "deep").iterdir())


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    """Bytes that are no archive are said to be none."""
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    fetched = FetchedSource(path=tmp_path / "x.tar.gz", sha256="0" * 64, file="x.tar.gz")

    with pytest.raises(FetchError, match=r"^x\.tar\.gz cannot be unpacked: "):
        prepare(fetched, patches=[], must_exist=[], destination=tmp_path / "tree", epoch=EPOCH)


# patches


def test_a_patch_that_does_not_match_says_where_and_how(tmp_path: Path) -> None:
    """Patch, file, hunk, line, expected and found; no fuzz, no offset, and the tree stays as it was."""
    root = tree(tmp_path, {"setup.py": b"import os\nARCHS = '70'\nsetup()\n", "other.py": b"a\n"})
    first = "--- a/other.py\n+++ b/other.py\n@@ -1 +1 @@\n-a\n+b\n"

    with pytest.raises(PatchError) as caught:
        apply_patches(root, [patch(first), patch(CHANGE, "0002-archs.patch")])

    assert str(caught.value) == (
        "0002-archs.patch does not match setup.py: hunk 1, line 2\n"
        "  expected \"ARCHS = '80;90'\\n\"\n"
        "  found    \"ARCHS = '70'\\n\""
    )
    assert caught.value.advice.startswith("Make the patch again from this very release")
    assert (caught.value.kind, caught.value.exit_status) == ("patch-failed", 4)
    assert (root / "other.py").read_bytes() == b"a\n"


def test_an_offset_is_no_match_but_is_told(tmp_path: Path) -> None:
    """Lines that stand elsewhere are pointed at, not patched."""
    root = tree(tmp_path, {"setup.py": b"# new\n\n" + SETUP})

    with pytest.raises(PatchError, match=r"\n  the hunk's lines stand at line 3$"):
        apply_patches(root, [patch(CHANGE)])


def test_a_file_that_ends_early_is_no_match(tmp_path: Path) -> None:
    """The end of the file is said in words."""
    root = tree(tmp_path, {"setup.py": b"import os\n"})

    with pytest.raises(PatchError, match=r"line 2\n  expected .*\n  found    the end of the file$"):
        apply_patches(root, [patch(CHANGE)])


def test_patches_build_on_one_another(tmp_path: Path) -> None:
    """The second patch sees what the first has made."""
    root = tree(tmp_path, {"setup.py": SETUP})
    second = CHANGE.replace("-ARCHS = '80;90'", "-ARCHS = '100'").replace("+ARCHS = '100'", "+ARCHS = '120'")

    apply_patches(root, [patch(CHANGE), patch(second)])

    assert b"'120'" in (root / "setup.py").read_bytes()


def test_files_are_added_and_removed(tmp_path: Path) -> None:
    """New files with their mode, removed files whole."""
    root = tree(tmp_path, {"old.txt": b"a\nb\n", "run.py": b"x\n"})
    text = (
        "diff --git a/new/tool.sh b/new/tool.sh\nnew file mode 100755\nindex 0000000..1234567\n"
        "--- /dev/null\n+++ b/new/tool.sh\n@@ -0,0 +1,2 @@\n+#!/bin/sh\n+true\n"
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
        "diff --git a/old.txt b/old.txt\ndeleted file mode 100644\nindex 1234567..0000000\n"
        "--- a/old.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n"
        "diff --git a/run.py b/run.py\nold mode 100644\nnew mode 100755\n"
    )

    apply_patches(root, [patch(text)])

    assert (root / "new" / "tool.sh").read_bytes() == b"#!/bin/sh\ntrue\n"
    assert (root / "new" / "tool.sh").stat().st_mode & 0o100
    assert (root / "empty").read_bytes() == b""
    assert not (root / "old.txt").exists()
    assert (root / "run.py").stat().st_mode & 0o100


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("--- /dev/null\n+++ b/setup.py\n@@ -0,0 +1 @@\n+x\n", "0001-why.patch adds setup.py, which is there already"),
        ("--- a/none.py\n+++ b/none.py\n@@ -1 +1 @@\n-x\n+y\n", "0001-why.patch changes none.py, which does not exist"),
        (
            "--- a/setup.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-import os\n",
            "0001-why.patch removes setup.py, but not all of its lines",
        ),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-x\n+y\n", "0001-why.patch names 'a/../x'; a path in a patch is"),
        ("--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-x\n+y\n", "0001-why.patch names '/etc/x'; a path in a patch is"),
        ("--- setup.py\n+++ setup.py\n@@ -1 +1 @@\n-x\n+y\n", "0001-why.patch names 'setup.py'; a path in a patch is"),
        ("--- a/link/x\n+++ b/link/x\n@@ -1 +1 @@\n-x\n+y\n", "0001-why.patch changes link/x through a symbolic link"),
        (
            "diff --git a/setup.py b/s.py\nsimilarity index 100%\nrename from setup.py\nrename to s.py\n",
            "0001-why.patch renames a/setup.py to b/s.py: renames cannot be applied strictly",
        ),
        (
            "diff --git a/x.bin b/x.bin\nindex 1..2 100644\nBinary files a/x.bin and b/x.bin differ\n",
            "0001-why.patch changes a binary file, x.bin: only text can be patched strictly",
        ),
        (
            "diff --git a/l b/l\nnew file mode 120000\nindex 0000000..1234567\n--- /dev/null\n+++ b/l\n"
            "@@ -0,0 +1 @@\n+/etc/passwd\n\\ No newline at end of file\n",
            "0001-why.patch changes a symbolic link, l: only text can be patched strictly",
        ),
        ("no diff at all\n", "0001-why.patch changes nothing: it holds no unified diff"),
        ("--- a/setup.py\n+++ b/setup.py\n@@ -1,2 +1,2 @@\n import os\n", "0001-why.patch is no unified diff: "),
    ],
)
def test_what_cannot_be_applied_strictly_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    """Renames, binaries, links, paths that leave the tree: each is named, and nothing changes."""
    root = tree(tmp_path / "tree", {"setup.py": SETUP, "real/x": b"x\n"})
    (root / "link").symlink_to("real")

    with pytest.raises(PatchError) as caught:
        apply_patches(root, [patch(text)])

    assert str(caught.value).startswith(problem)
    assert (root / "setup.py").read_bytes() == SETUP


def test_line_ends_are_kept(tmp_path: Path) -> None:
    """Carriage returns belong to their lines, in the file and in the patch."""
    root = tree(tmp_path, {"a.cu": b"one\r\ntwo\r\n\xff\n"})
    text = "--- a/a.cu\n+++ b/a.cu\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+zwei\r\n"

    apply_patches(root, [patch(text)])

    assert (root / "a.cu").read_bytes() == b"one\r\nzwei\r\n\xff\n"
    with pytest.raises(PatchError, match=r"expected 'one\\n'"):
        apply_patches(root, [patch(text.replace("\r", ""))])


def test_a_last_line_without_an_end_is_kept_and_made(tmp_path: Path) -> None:
    """The marker for a missing newline is obeyed on both sides."""
    root = tree(tmp_path, {"a": b"one\ntwo"})
    gain = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n\\ No newline at end of file\n+two\n"
    lose = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-one\n+eins\n two\n\\ No newline at end of file\n"

    apply_patches(root, [patch(gain)])
    assert (root / "a").read_bytes() == b"one\ntwo\n"

    (root / "a").write_bytes(b"one\ntwo")
    apply_patches(root, [patch(lose)])
    assert (root / "a").read_bytes() == b"eins\ntwo"


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "- x\n", "é\r\n"]), max_size=12)


@given(before=LINES, after=LINES, context=st.integers(0, 3))
def test_a_diff_applied_to_its_source_gives_its_target(before: list[str], after: list[str], context: int) -> None:
    """Whatever difflib says between two texts, applying it makes the second out of the first."""
    diff = "".join(difflib.unified_diff(before, after, "a/f", "b/f", n=context))
    if not diff:
        return
    overlay = Overlay(root=Path("/nonexistent"), changed={"f": "".join(before).encode()})
    for change in parsed(patch(diff)):
        apply_change(overlay, patch(diff), change)

    assert overlay.changed == {"f": "".join(after).encode()}


@given(st.binary(max_size=60))
def test_splitting_loses_nothing(content: bytes) -> None:
    """Lines joined again are the file."""
    lines = split_lines(content)

    assert b"".join(lines) == content
    assert all(line.count(b"\n") == 1 for line in lines[:-1])


def test_a_line_is_shown_with_its_blanks() -> None:
    """Trailing blanks and tabs can be seen."""
    assert shown([b"\tx \n"]) == "'\\tx \\n'"
    assert shown([]) == "the end of the file"
