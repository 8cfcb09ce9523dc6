"""The command line: what is asked reaches the stages, what cannot be meant is refused."""

import json
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill import cli
from wheelmill.errors import EXIT_STATUS, UsageError
from wheelmill.runtime import Directories, Runtime


def runtime(tmp_path: Path, **env: str) -> Runtime:
    directories = Directories(cache=tmp_path / "cache", wheelhouse=tmp_path / "wheelhouse")
    return Runtime(env=env, directories=directories, cwd=tmp_path, python=Path("/env/bin/python"))


def options(*words: str) -> cli.Options:
    return cli.make_parser().parse_args(list(words), cli.Options())


def test_the_option_wins_over_max_jobs(tmp_path: Path) -> None:
    """--max-jobs, --memory and --cpus are caps; MAX_JOBS counts where the option is not given."""
    asked = options("build", "x", "--max-jobs", "8", "--memory", "24GiB", "--cpus", "4")
    found = cli.bounds(asked, runtime(tmp_path, MAX_JOBS="2"))
    assert (found.max_jobs, found.memory, found.cpus) == (8, 24 * 2**30, 4)
    assert cli.bounds(options("build", "x"), runtime(tmp_path, MAX_JOBS="2")).max_jobs == 2
    assert cli.bounds(options("build", "x"), runtime(tmp_path)).max_jobs is None


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["--max-jobs", "0"], {}, "--max-jobs='0' is not a number of jobs"),
        ([], {"MAX_JOBS": ""}, "MAX_JOBS='' is not a number of jobs"),
        ([], {"MAX_JOBS": "abc"}, "MAX_JOBS='abc' is not a number of jobs"),
        ([], {"MAX_JOBS": "-1"}, "MAX_JOBS='-1' is not a number of jobs"),
        (["--memory", "lots"], {}, "--memory: not a size: 'lots'; write it like 7GiB or 512MiB"),
        (["--cpus", "0"], {}, "--cpus='0' is not a number of jobs"),
    ],
)
def test_a_cap_that_cannot_be(tmp_path: Path, words: list[str], env: dict[str, str], message: str) -> None:
    """A cap is a whole number of at least one, or a size."""
    with pytest.raises(UsageError) as caught:
        cli.bounds(options("build", "x", *words), runtime(tmp_path, **env))
    assert str(caught.value) == message


@pytest.mark.parametrize("texts", [["10.0;12.0"], ["10.0", "12.0"], ["10.0, 12.0"]])
def test_archs_in_any_spelling(texts: list[str]) -> None:
    """One option with a list, or several options."""
    assert [str(arch) for arch in cli.parse_archs(texts)] == ["10.0", "12.0"]


def test_an_arch_that_cannot_be() -> None:
    """An arch spelled for another variable gets a did-you-mean."""
    with pytest.raises(UsageError, match=r"--arch '100' is not an architecture; did you mean '10.0'\?"):
        cli.parse_archs(["100"])


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    return write_catalog(tmp_path)


def test_a_failure_is_one_json_document_too(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json a failure is on stdout as JSON, and on stderr as text; the status is the error's."""
    status, out, err = run(capsys, "plan", "dmo", "--stack", "cu130", "--recipes", str(recipes), "--json")
    assert status == 2
    error = json.loads(out)["error"]
    assert error["exit"] == 2
    assert error["message"].startswith("no recipe 'dmo'; did you mean 'demo'?")
    assert err.startswith("error: no recipe 'dmo'")


def test_no_name_selects_nothing(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A build without a name says what could be named; exit status 3."""
    status, _, err = run(capsys, "build", "--stack", "cu130", "--recipes", str(recipes))
    assert status == 3
    assert "nothing to do: no package named; stack cu130 pins demo" in err


def test_a_prebuilt_member_is_not_built(capsys: pytest.CaptureFixture[str]) -> None:
    """VLLM comes as published; building it says so and how to go on."""
    status, _, err = run(capsys, "build", "vllm")
    assert status == 2
    assert "vllm is taken as published by stack cu128" in err


@pytest.mark.parametrize("command", sorted(cli.LATER))
def test_what_comes_later_says_so(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A door that leads nowhere yet is honest about it."""
    status, _, err = run(capsys, command)
    assert status == 2
    assert cli.LATER[command] in err


def test_a_bad_epoch_is_named(
    recipes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SOURCE_DATE_EPOCH that cannot be is refused before anything starts."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    status, _, err = run(capsys, "plan", "--stack", "cu130", "--recipes", str(recipes))
    assert status == 2
    assert "SOURCE_DATE_EPOCH='yesterday'" in err


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_helps_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--help shows examples and the exit statuses."""
    with pytest.raises(SystemExit) as caught:
        cli.make_parser().parse_args([command, "--help"])
    assert caught.value.code == 0
    said = capsys.readouterr().out
    assert "examples:" in said
    assert all(text in said for text in EXIT_STATUS.values())


def test_a_gpu_on_the_command_line(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plan, build and lint take it; a name that is none says so, an arch that does not serve it is refused."""
    where = ("--stack", "cu130", "--recipes", str(recipes))
    assert [str(gpu.capability) for gpu in cli.parse_gpus(["B200", "RTX 5090"])] == ["10.0", "12.0"]
    status, _, err = run(capsys, "plan", "demo", "--gpu", "RTX PRO 6000 Blackwell", *where)
    assert (status, err.splitlines()[1]) == (
        *(2, "  next: Build for it: `--arch 12.0`, or for both: `--arch '10.0;12.0'`."),
    )
    status, _, err = run(capsys, "lint", "demo", "--gpu", "Blackwell", *where)
    assert (status, err.splitlines()[0][:50]) == (2, "error: --gpu 'Blackwell' is a line of GPUs, not on")


def test_lint_ends_with_2_where_something_is_wrong(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings alone end with 0; findings are JSON with the fields that others rely on."""
    where = ("--stack", "cu130", "--recipes", str(recipes), "--json")
    status, out, _ = run(capsys, "lint", "demo", *where)
    assert (status, {entry["status"] for entry in json.loads(out)["findings"]}) == (0, {"warn"})
    status, out, _ = run(capsys, "lint", "demo", "--arch", "10.3", *where)
    [entry] = [entry for entry in json.loads(out)["findings"] if entry["status"] == "error"]
    assert status == 2
    assert (set(entry), entry["id"]) == ({"id", "status", "subject", "message", "advice"}, "package-arch")


@pytest.mark.parametrize(("text", "read"), [("8", 8), ("", None), ("0", None), ("abc", None), ("-1", None)])
def test_threads_that_the_user_would_have_set(tmp_path: Path, text: str, read: int | None) -> None:
    """NVCC_THREADS does not reach a build; the plan only tells what it would have meant."""
    assert cli.bounds(options("plan"), runtime(tmp_path, NVCC_THREADS=text)).nvcc_threads == read
