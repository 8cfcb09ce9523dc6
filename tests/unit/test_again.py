"""Rounds: a wheel is let in only where every round gave the same bytes; nothing of one round meets another."""

import json
from pathlib import Path

import pytest
from samples import write_catalog
from test_explain import derive, wheel
from test_pipeline import FakeRunner, Heard

from wheelmill import again
from wheelmill.again import alone, in_rounds, require_reference_zlib
from wheelmill.catalog import load_catalog
from wheelmill.compare import Comparison, Difference
from wheelmill.derivation import Derivation
from wheelmill.errors import EnvironmentUnfitError, NotReproducibleError
from wheelmill.pipeline import Bounds, Built, Tools
from wheelmill.runtime import Directories, Runtime
from wheelmill.store import digest_of
from wheelmill.wheelhouse import Wheelhouse

OTHER = Comparison(
    grade="different", differences=(Difference(kind="content", member="x.py", detail="line 1: 'a', not 'b'"),)
)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    recipes = write_catalog(tmp_path)
    return Tools(
        runtime=Runtime(
            env={},
            directories=Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "house"),
            cwd=tmp_path,
            python=Path("/env/bin/python"),
        ),
        runner=FakeRunner(),
        report=Heard(),
        catalog=load_catalog((recipes,)),
        offline=True,
        cuda_home=None,
        python=None,
        bounds=Bounds(),
    )


@pytest.fixture
def derivation(tmp_path: Path, tools: Tools) -> Derivation:
    return derive(tmp_path / "recipes")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let a first round end with a wheel in its own wheelhouse; give the caches that rounds used."""
    caches = []

    def first(derivation: Derivation, tools: Tools, house: Wheelhouse) -> Built:
        caches.append(tools.runtime.directories.objects)
        made = wheel(house.root, derivation)
        made.with_name(f"{made.name}.log").write_text("said\n")
        made.with_name(f"{made.name}.provenance.json").write_text("{}\n")
        return Built(derivation=derivation, wheel=made, sha256=digest_of(made), record=None, seconds=1.0)

    monkeypatch.setattr(again, "realise", first)
    monkeypatch.setattr(again, "fit", lambda *_: None)
    return caches


def rounds_say(monkeypatch: pytest.MonkeyPatch, *found: Comparison) -> list[str]:
    """Let the further rounds give these verdicts; give their labels."""
    labels, verdicts = [], iter(found)

    def more(
        first: Path, _derivation: Derivation, _fitted: None, _tools: Tools, *, label: str
    ) -> tuple[Comparison, Path]:
        assert first.is_file()
        labels.append(label)
        return next(verdicts), Path("/kept")

    monkeypatch.setattr(again, "build_again", more)
    return labels


def test_equal_rounds_let_the_wheel_in(
    tools: Tools, derivation: Derivation, built: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With log, record and provenance, the number of rounds in the record; the round's own folders are gone."""
    same = Comparison(grade="identical")
    labels = rounds_say(monkeypatch, same, same)
    house = Wheelhouse(root=tools.runtime.directories.wheelhouse)
    done = in_rounds(derivation, tools, house, rounds=3)
    assert labels == ["round-2", "round-3"]
    assert done.wheel.parent == house.root
    assert json.loads(house.entries()[0].build_record.read_text())["rounds"] == 3
    assert house.entries()[0].proof.read_text() == "{}\n"
    assert built[0].is_relative_to(tools.runtime.directories.rebuilds)
    assert list(tools.runtime.directories.rebuilds.iterdir()) == []
    assert (house.root / "simple" / derivation.index_label).is_dir()


def test_another_wheel_stays_out(
    tools: Tools, derivation: Derivation, built: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 9, with the differences; the wheelhouse is as it was."""
    rounds_say(monkeypatch, OTHER)
    house = Wheelhouse(root=tools.runtime.directories.wheelhouse)
    with pytest.raises(NotReproducibleError) as caught:
        in_rounds(derivation, tools, house, rounds=2)
    assert str(caught.value) == (
        "round 2 of demo gave another wheel (different): /kept\n  content: x.py: line 1: 'a', not 'b'"
    )
    assert caught.value.exit_status == 9
    assert house.entries() == ()


def test_a_wheel_that_is_there_is_held_against_every_round(
    tools: Tools, derivation: Derivation, built: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts for none: so many rounds are built."""
    same = Comparison(grade="identical")
    house = Wheelhouse(root=tools.runtime.directories.wheelhouse)
    wheel(house.root, derivation)
    labels = rounds_say(monkeypatch, same, same)
    assert in_rounds(derivation, tools, house, rounds=2).wheel.parent == house.root
    assert (labels, built) == (["round-1", "round-2"], [])


def test_folders_that_nobody_shares(tools: Tools, derivation: Derivation) -> None:
    """Work folder and object cache are a build's own, what is fetched is everybody's; a failure leaves its log."""
    ours = tools.runtime.directories
    with alone(derivation, tools, "x") as separate:
        theirs = separate.runtime.directories
        assert theirs.store == ours.store
        assert theirs.environments == ours.environments
        assert theirs.objects != ours.objects
        assert theirs.builds != ours.builds
    assert not theirs.objects.parent.exists()
    with pytest.raises(OSError, match="torn"), alone(derivation, tools, "y") as separate:
        raise OSError("torn")
    assert separate.runtime.directories.builds.parent.is_dir()


def test_another_zlib_makes_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 5: its wheels would be nobody else's."""
    monkeypatch.setattr(again, "zlib_found", lambda: "zlib-ng 2.2, not the reference")
    with pytest.raises(EnvironmentUnfitError, match="packs the same contents to other bytes"):
        require_reference_zlib()
