"""The command line: what is asked reaches the stages, what cannot be meant is refused."""

import errno
import json
import re
import runpy
from pathlib import Path

import pytest
from samples import write_catalog

from wheelmill import cli
from wheelmill import options as words
from wheelmill._console import make_console
from wheelmill._process import SystemRunner
from wheelmill.errors import EXIT_STATUS, UsageError
from wheelmill.preflight import Finding
from wheelmill.runtime import Directories, Runtime
from wheelmill.wheelhouse import Wheelhouse


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
        (["--memory", "0"], {}, "--memory=0 is 0 bytes, and no compiler works with so little"),
        (["--memory", "24"], {}, "--memory=24 is 24 bytes, and no compiler works with so little"),
        (["--cpus", "0"], {}, "--cpus='0' is not a number of cores"),
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


@pytest.mark.parametrize("command", ["build", "fetch"])
def test_what_is_taken_as_published_is_named_with_its_file(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the spelling, build and fetch say the same, with the file and its digest."""
    status, _, err = run(capsys, command, "vLLM", "--stack", "cu130")
    assert status == 2
    assert "vllm is taken as published by stack cu130" in err
    assert re.search(r"\n +vllm-0\.22\.0.*\.whl\n +sha256 [0-9a-f]{64}\n", err)


def test_a_plan_of_a_prebuilt_member(capsys: pytest.CaptureFixture[str]) -> None:
    """It is listed as the stack has it; nothing else is."""
    status, out, _ = run(capsys, "plan", "VLLM", "--stack", "cu130")
    assert status == 0
    assert out.startswith("vllm 0.22.0  [prebuilt]  vllm-0.22.0")
    assert len(out.splitlines()) == 2


@pytest.mark.parametrize("name", ["flash_attn", "Flash-Attn"])
def test_names_in_any_spelling(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name is normalised as installers do."""
    status, out, _ = run(capsys, "plan", name, "--stack", "cu130", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(out)["derivations"]] == ["flash-attn"]


def test_trouble_of_the_system_is_a_report(
    recipes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback: the path, what the system said and what to do; a reader that has gone is none of ours."""

    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/cache/x")

    monkeypatch.setitem(cli.RUN, "gc", refuse)
    status, _, err = run(capsys, "gc", "--recipes", str(recipes))
    assert status == 5
    assert err.startswith("error: /cache/x: Permission denied\n")
    assert "next: Make /cache/x writable for this user, or put the cache elsewhere with --cache DIR." in err

    def gone(_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setitem(cli.RUN, "gc", gone)
    with pytest.raises(BrokenPipeError):
        run(capsys, "gc", "--recipes", str(recipes))


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


@pytest.mark.parametrize("command", sorted(words.COMMANDS))
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


# findings


def findings(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Show one finding of each status."""
    session = cli.Session(
        options=options("doctor", *words),
        runtime=runtime(Path("/")),
        console=make_console(quiet=False, no_colour=True),
        runner=SystemRunner(),
    )
    shown = [
        Finding(id=f"id-{status}", status=status, subject="disk", message=f"is {status}", advice="buy one")
        for status in ("ok", "warn", "error", "skip")
    ]
    status = cli.show_findings(session, shown)
    assert cli.show_findings(session, shown[:2]) == 0
    return status, capsys.readouterr().out


def test_findings_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Advice only where something is to be done; one error decides the status."""
    status, out = findings(capsys)
    assert status == 5
    assert out.splitlines()[:6] == [
        "ok    disk: is ok",
        "warn  disk: is warn",
        "      next: buy one",
        "error disk: is error",
        "      next: buy one",
        "skip  disk: is skip",
    ]


def test_findings_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """The fields that others rely on."""
    status, out = findings(capsys, "--json")
    document, _ = json.JSONDecoder().raw_decode(out)
    assert status == 5
    assert document["findings"][2] == {
        "id": "id-error",
        "status": "error",
        "subject": "disk",
        "message": "is error",
        "advice": "buy one",
    }
    assert [finding["status"] for finding in document["findings"]] == ["ok", "warn", "error", "skip"]


# wheels

WHEELS = runpy.run_path(str(Path(__file__).with_name("test_verify.py")))
NAME: str = WHEELS["NAME"]


def test_verify_tells_every_wheel_and_every_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good one, a bad one and none at all: one document, each by its name; the status is verify's."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
    WHEELS["wheel"](good)
    WHEELS["wheel"](bad, WHEELS["changed"]("Name: demo", "Name: other", file="METADATA"))
    (tmp_path / NAME).write_bytes(b"no zip")
    paths = [str(folder / NAME) for folder in (good, bad, tmp_path)]
    status, out, err = run(capsys, "verify", "--cache", str(tmp_path), *paths, "--json", "--quiet")
    document = json.loads(out)
    assert status == 8
    assert [each["wheel"] for each in document["wheels"]] == [NAME] * 3
    errors = [{f["id"] for f in each["findings"] if f["status"] == "error"} for each in document["wheels"]]
    assert errors == [set(), {"names"}, {"readable"}]
    assert document["findings"] == [finding for each in document["wheels"] for finding in each["findings"]]
    assert f"error: {NAME} failed 1 of its checks; it does not enter the wheelhouse\n" in err
    assert run(capsys, "verify", "--cache", str(tmp_path), paths[0])[0] == 0


def test_verify_names_what_it_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json the findings are talk; a wheel must be named."""
    WHEELS["wheel"](tmp_path)
    status, out, err = run(capsys, "verify", "--cache", str(tmp_path), str(tmp_path / NAME))
    assert (status, out) == (0, "")
    assert "    ok    record: RECORD is complete and every digest is right\n" in err
    status, _, err = run(capsys, "verify")
    assert status == 3
    assert err == "error: no wheel named\n  next: Give a path: `wheelmill verify wheelhouse/NAME.whl`.\n"


def test_inspect_is_one_document_whatever_the_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One wheel is the document, several are a list in it."""
    path = str(WHEELS["wheel"](tmp_path))
    _, out, _ = run(capsys, "inspect", path, "--json")
    one = json.loads(out)
    assert one["name"] == "demo"
    _, out, _ = run(capsys, "inspect", path, path, "--json")
    assert json.loads(out) == {"schema": 1, "wheels": [one, one]}


def test_inspect_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of members are shown, never obeyed by the terminal."""
    makers = WHEELS["MAKERS"]
    path = makers["wheel_at"](tmp_path, {"demo/\x1b[2J.so": makers["library"](90)})
    status, out, _ = run(capsys, "inspect", str(path))
    assert status == 0
    assert "  demo/\\x1b[2J.so: sm_90 1 (0.0 MB); glibc any\n" in out
    assert "  runs on: H100, H200 (sm_90)\n" in out
    assert "  requires no torch\n" in out


def entered(tmp_path: Path, *, index: str) -> None:
    """Put the sample wheel into the wheelhouse."""
    wheel = WHEELS["wheel"](tmp_path)
    (tmp_path / "log").write_text("")
    record = {"drv": "d" * 64, "index": index}
    Wheelhouse(root=tmp_path / "house").enter(wheel, build_record=record, log=tmp_path / "log")


def test_index_writes_one_per_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its folder on stdout; an empty wheelhouse has none to write."""
    house = tmp_path / "house"
    status, _, err = run(capsys, "index", "--wheelhouse", str(house))
    assert status == 3
    assert err.startswith(f"error: no wheel in {house}\n")
    entered(tmp_path, index="cu130-torch2.11.0-sm100")
    status, out, _ = run(capsys, "index", "--wheelhouse", str(house))
    folder = house / "simple" / "cu130-torch2.11.0-sm100"
    assert (status, out) == (0, f"{folder}\n")
    assert (folder / "demo" / "index.html").is_file()


def test_index_skips_what_stands_in_none_and_removes_what_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record without a label is warned of; an index without a wheel goes, other folders stay."""
    house = tmp_path / "house"
    entered(tmp_path, index="")
    over, other = house / "simple" / "cu128-old", house / "simple" / "notes"
    for folder in (over, other):
        folder.mkdir(parents=True)
    (over / "index.json").write_text("{}")
    status, out, err = run(capsys, "index", "--wheelhouse", str(house))
    assert (status, out) == (0, "")
    assert "stands in no index: its build record names none; build it again" in err
    assert (over.exists(), other.exists()) == (False, True)


# the rest of the line


def test_a_lock_that_is_not_current(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lock --check` says what is off and what to run, without a network."""
    status, _, err = run(capsys, "lock", "cu130", "--check", "--recipes", str(recipes))
    assert status == 2
    stack = recipes / "stacks" / "cu130.toml"
    assert err.startswith(f"error: {stack}: cu130.build.txt was made from other inputs than cu130.toml and the recipes")
    assert err.endswith("  next: Run `wheelmill lock cu130`.\n")


def test_a_lock_that_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Our own stacks are."""
    status, out, err = run(capsys, "lock", "cu130", "--check")
    assert (status, out, err) == (0, "", "    cu130: both locks are current\n")


def test_an_interruption_is_reported_as_any_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One JSON document also then, and what to do next."""

    def interrupted(_: cli.Session) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.RUN, "limits", interrupted)
    status, out, err = run(capsys, "limits", "--json")
    advice = "Run the same command again: finished objects are reused."
    assert status == 130
    assert json.loads(out)["error"] == {
        "kind": "interrupted",
        "exit": 130,
        "message": "interrupted",
        "advice": advice,
    }
    assert err == f"error: interrupted\n  next: {advice}\n"


def test_a_stack_without_packages(recipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to plan, and nothing to suggest by name."""
    stack = recipes / "stacks" / "cu130.toml"
    stack.write_text(stack.read_text().replace('packages = { demo = "1.0" }', "packages = {}"))
    status, _, err = run(capsys, "plan", "--stack", "cu130", "--recipes", str(recipes))
    assert status == 3
    assert "stack cu130 pins none\n  next: Name one: `wheelmill plan NAME`.\n" in err


def test_every_advice_names_a_command_that_there_is() -> None:
    """Whoever follows the last line of a report must not meet another error."""
    package = Path(cli.__file__).parent
    for path in sorted(package.glob("*.py")):
        named = re.findall(r"`wheelmill ([a-z-]+)", path.read_text("utf-8"))
        assert set(named) <= set(words.COMMANDS), path.name


def test_install_names_what_is_missing_and_how_to_build_it(
    recipes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the wheel of this very derivation will do; the command that makes it is told."""
    house = str(tmp_path / "house")
    status, _, err = run(
        capsys,
        *("install", "demo", "--stack", "cu130", "--variant", "small-one"),
        "--recipes",
        str(recipes),
        "--wheelhouse",
        house,
    )
    assert status == 3
    assert f"error: {house} lacks demo 1.0+cu130.torch2.11.0.sm100.small.one" in err
    assert "`wheelmill build demo --stack cu130 --variant small-one`" in err


def test_lock_check_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json every command that succeeds prints one document, also where there is little to tell."""
    status, out, _ = run(
        capsys, "lock", "cu130", "--check", "--json", "--recipes", str(Path(__file__).parents[2] / "recipes")
    )
    assert (status, json.loads(out)) == (0, {"schema": 1, "changed": []})


def test_the_words_fit_what_runs() -> None:
    """Each command has words and runs something; what stands in two places is the same."""
    from wheelmill import catalog, redist

    assert set(cli.RUN) == set(words.COMMANDS)
    assert words.DEFAULT_STACK == catalog.DEFAULT_STACK
    assert words.REDIST_VARIABLE == redist.VARIABLE
