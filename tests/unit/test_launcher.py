import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheelmill import _launcher as launcher

FIELDS: dict[str, object] = {
    "arch_mode": "hold",
    "archs": ["10.0"],
    "ccache": None,
    "ccache_env": {"CCACHE_COMPILERCHECK": "string:a+b"},
    "flags": {"host": [], "nvcc": []},
    "gate": "/shims/gate",
    "link_objects": [],
    "native": False,
    "prefix_maps": [],
    "preload": None,
    "refusals": None,
    "release": False,
    "seeded": False,
    "shim_dir": "/shims/bin",
    "socket": "/run/s",
    "source_root": "/wheelmill/source",
    "strip_links": True,
    "threads": 1,
    "tools": {},
}


def config(**fields: object) -> launcher.Config:
    return launcher.Config({**FIELDS, **fields})


def kind(line: str, *, nvcc: bool = False) -> str:
    return launcher.classify(line.split(), nvcc=nvcc).kind


def rewritten(line: str, *, nvcc: bool = False, **fields: object) -> launcher.Rewritten:
    return launcher.rewrite(line.split(), config(**fields), nvcc=nvcc)


@pytest.mark.parametrize(
    "line",
    [
        "-v",
        "--version",
        "-dumpversion",
        "-dumpmachine",
        "-E a.c",
        "-M a.c",
        "-MM a.c",
        "-print-prog-name=ld",
        "--print-sysroot",
        "--help",
        "--help=warnings",
        "-###",
        "-v -c a.c",
        "-Wall -O2",
        "",
        "-o out -I include",
    ],
)
def test_questions_to_gcc_pass(line: str) -> None:
    """Whatever asks, or has no input, is a query."""
    assert kind(line) == "query"


@pytest.mark.parametrize(
    "line",
    [
        "--version",
        "-V",
        "-v t.cu",
        "--dryrun -c t.cu",
        "-dryrun -c t.cu",
        "-E t.cu",
        "--preprocess t.cu",
        "-M t.cu",
        "--list-gpu-arch",
        "-h",
        "-gencode arch=compute_90,code=sm_90",
        "-Xcompiler -fPIC",
    ],
)
def test_questions_to_nvcc_pass(line: str) -> None:
    """The value of an option is no input."""
    assert kind(line, nvcc=True) == "query"


@pytest.mark.parametrize(
    ("line", "nvcc", "expected"),
    [
        ("-c a.c -o a.o", False, "compile"),
        ("-MMD -MF a.d -c a.c", False, "compile"),
        ("-S a.c", False, "compile"),
        ("-fsyntax-only a.c", False, "compile"),
        ("-x c -c -", False, "compile"),
        ("-shared a.o -o a.so", False, "link"),
        ("a.c", False, "link"),
        ("@objects.rsp -o x", False, "link"),
        ("-Xlinker -v a.o", False, "link"),
        ("-c t.cu -o t.o", True, "compile"),
        ("--device-c t.cu", True, "compile"),
        ("-ptx t.cu", True, "compile"),
        ("-Xptxas -v -Xcompiler -E -c t.cu", True, "compile"),
        ("--ptxas-options=-v -c t.cu", True, "compile"),
        ("-shared t.o -o t.so", True, "link"),
        ("-dlink t.o -o d.o", True, "link"),
    ],
)
def test_work_is_compile_or_link(line: str, nvcc: bool, expected: str) -> None:  # noqa: FBT001 - a table
    """A compile has a phase flag; all else with an input links."""
    assert kind(line, nvcc=nvcc) == expected


def test_output_and_source() -> None:
    """Output and source are found in either spelling."""
    joined = launcher.classify(["-c", "a.c", "-oa.o"], nvcc=False)
    apart = launcher.classify(["--output-file", "t.o", "-odir", "x", "-c", "t.cu"], nvcc=True)

    assert (joined.output, joined.source) == ("a.o", "a.c")
    assert (apart.output, apart.source) == ("t.o", "t.cu")


# Response files


def test_response_files_are_expanded() -> None:
    """Nothing in a response file escapes, nested ones included; a name that is no file stays as it is."""
    files = {"a.rsp": "-c 'a b.c' @b.rsp", "b.rsp": '-DX=\\"y\\"\n-I "c d"'}

    argv = launcher.expand(["@a.rsp", "@none", "-o", "@a.rsp"], nvcc=False, read=files.get)

    assert argv == ["-c", "a b.c", '-DX="y"', "-I", "c d", "@none", "-o", "@a.rsp"]


def test_options_files_are_expanded() -> None:
    """Nvcc calls them options files, and takes a list of them."""
    files = {"a": "-arch=sm_90", "b": "-O3"}

    assert launcher.expand(["-optf", "a,b", "-c"], nvcc=True, read=files.get) == ["-arch=sm_90", "-O3", "-c"]
    assert launcher.expand(["--options-file=a", "-c"], nvcc=True, read=files.get) == ["-arch=sm_90", "-c"]


def test_endless_response_files_end() -> None:
    """A file that names itself is left at some depth."""
    assert launcher.expand(["@a"], nvcc=False, read={"a": "x @a"}.get)[-1] == "@a"


def test_huge_response_files_stay_files() -> None:
    """What the kernel would not take as arguments stays in its file."""
    assert launcher.expand(["@a"], nvcc=False, read={"a": "x" * 1_000_001}.get) == ["@a"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]))))
def test_words_survive_quoting(words: list[str]) -> None:
    """Words that were quoted for a response file come back."""
    escaped = ["'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" for word in words]

    assert launcher.split_words(" ".join(escaped)) == words


# Architectures

NINE = " ".join(f"-gencode arch=compute_{n},code=sm_{n}" for n in (70, 75, 80, 86, 87, 89, 90, 100, 120))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-gencode arch=compute_90,code=sm_90", ["sm_90"]),
        ("-gencode=arch=compute_90,code=sm_90", ["sm_90"]),
        ("--generate-code arch=compute_90,code=[sm_90,compute_90]", ["sm_90", "compute_90"]),
        ("--generate-code=arch=compute_90,code=[compute_90,sm_90]", ["compute_90", "sm_90"]),
        ('-gencode arch=compute_90,code="sm_90,compute_90"', ["sm_90", "compute_90"]),
        ("-gencode arch=compute_90", ["compute_90"]),
        ("-arch=sm_90", ["sm_90", "compute_90"]),
        ("-arch sm_90a", ["sm_90a", "compute_90a"]),
        ("--gpu-architecture=compute_90", ["compute_90"]),
        ("--gpu-architecture compute_80 --gpu-code sm_80,sm_86", ["sm_80", "sm_86"]),
        ("-arch=compute_80 -code=[sm_80,compute_80]", ["sm_80", "compute_80"]),
        ("-arch=native", ["native"]),
        ("-arch=all", ["all"]),
        ("-arch=all-major", ["all-major"]),
        ("-gencode arch=compute_80,code=lto_80", ["lto_80"]),
        ("-O3", []),
    ],
)
def test_every_spelling_of_archs_is_read(line: str, expected: list[str]) -> None:
    """All the ways in which nvcc takes architectures are understood."""
    asked = launcher.asked_archs(list(launcher.tokens(line.split(), nvcc=True)))

    assert [code for _, code in asked] == expected


def test_nine_archs_become_one() -> None:
    """Only the architecture of the request stays, where the first flag stood."""
    done = rewritten(f"-O3 {NINE} -c t.cu -o t.o", nvcc=True)

    assert " ".join(done.argv) == (
        "-O3 -gencode arch=compute_100,code=sm_100 -c t.cu -o t.o --objdir-as-tempdir -MD -MF t.o.wheelmill.d"
    )
    assert len(done.archs_asked) == 9
    assert done.archs_used == ["sm_100"]
    assert done.rewrites == ["archs: removed sm_70, sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_120"]


@pytest.mark.parametrize(
    ("line", "archs", "used", "said"),
    [
        ("-arch=native", ["10.0"], ["sm_100"], "archs: removed native; added sm_100"),
        ("", ["10.0"], ["sm_100"], "archs: added sm_100"),
        (
            "-arch=sm_90",
            ["9.0a", "8.0+PTX"],
            ["sm_90a", "sm_80", "compute_80"],
            "archs: removed sm_90, compute_90; added sm_90a, sm_80, compute_80",
        ),
        ("-gencode arch=compute_100a,code=sm_100a", ["10.0"], ["sm_100a"], ""),
        ("-gencode arch=compute_100,code=sm_100", ["10.0"], ["sm_100"], ""),
        (
            "-gencode arch=compute_100,code=[sm_100,compute_100]",
            ["10.0"],
            ["sm_100"],
            "archs: removed compute_100",
        ),
        ("-gencode arch=compute_90,code=sm_90", [], ["sm_90"], ""),
    ],
)
def test_archs_are_held(line: str, archs: list[str], used: list[str], said: str) -> None:
    """What was not requested goes, what is missing comes; a feature variant of a requested one stays."""
    done = rewritten(f"-c t.cu -o t.o {line}", nvcc=True, archs=archs)

    assert done.archs_used == used
    assert done.rewrites == ([said] if said else [])


def test_checking_changes_no_arch() -> None:
    """In check mode the flags stay, and are on record."""
    done = rewritten("-c t.cu -o t.o -arch=sm_90", nvcc=True, arch_mode="check")

    assert "-arch=sm_90" in done.argv
    assert done.archs_asked == done.archs_used == ["sm_90", "compute_90"]
    assert done.rewrites == []


@pytest.mark.parametrize("line", ["-c a.cpp -o a.o", "-x c++ -c t.cu -o t.o"])
def test_host_code_has_no_archs(line: str) -> None:
    """What nvcc hands to the host compiler holds no device code."""
    done = rewritten(f"{line} -arch=sm_90", nvcc=True)

    assert (done.archs_asked, done.archs_used) == ([], [])
    assert "-arch=sm_90" in done.argv


def test_a_ptx_asset_keeps_its_arch() -> None:
    """-ptx takes one architecture, and is the package's own business."""
    assert rewritten("-ptx -arch=sm_90 t.cu", nvcc=True).argv == ["-ptx", "-arch=sm_90", "t.cu"]


def test_links_by_nvcc_get_archs_only_when_they_name_some() -> None:
    """A link without architectures makes no device code; a device link does."""
    assert rewritten("-shared t.o -o t.so", nvcc=True).archs_used == []
    assert rewritten("-shared t.o -o t.so -arch=sm_90", nvcc=True).archs_used == ["sm_100"]
    assert rewritten("-dlink t.o -o d.o", nvcc=True).archs_used == ["sm_100"]


FLAGS = st.lists(
    st.sampled_from(
        [
            "-gencode arch=compute_90,code=sm_90",
            "-gencode=arch=compute_100,code=[sm_100,compute_100]",
            "-gencode arch=compute_100a,code=sm_100a",
            "-O3",
            "-DX",
            "-arch=sm_80",
            "-std=c++17",
            "--generate-code arch=compute_120,code=compute_120",
        ]
    )
)
ARCHS = st.lists(st.sampled_from(["8.0", "9.0", "9.0a", "10.0", "10.0+PTX", "12.0"]), min_size=1, unique=True)


@given(FLAGS, ARCHS)
def test_holding_is_complete_and_settles(flags: list[str], archs: list[str]) -> None:
    """After holding every code serves the request, the whole request is served, and nothing changes again."""
    argv = " ".join(flags).split()
    wanted = [code for _, code in launcher.wanted_archs(archs)]

    held, used, _ = launcher.hold_archs(argv, archs)

    assert all(any(launcher.serves(code, want) for want in wanted) for code in used)
    assert all(any(launcher.serves(code, want) for code in used) for want in wanted)
    assert launcher.hold_archs(held, archs) == (held, used, "")
    assert [code for _, code in launcher.asked_archs(list(launcher.tokens(held, nvcc=True)))] == used
    assert [flag for flag in flags if flag in ("-O3", "-DX")] == [f for f in held if f in ("-O3", "-DX")]


# nvcc's other flags


@pytest.mark.parametrize("flag", ["--threads 4", "--threads=4", "-t 4", "-t4", "-t=4", "--threads 0"])
def test_threads_are_forced(flag: str) -> None:
    """However it is spelled, nvcc runs with our number of threads."""
    line = f"-c t.cu -o t.o -gencode arch=compute_100,code=sm_100 {flag}"

    one = rewritten(line, nvcc=True)
    two = rewritten(line, nvcc=True, threads=2)

    assert not {"-t", "-t4", "-t=4", "--threads", "--threads=4", "4", "0"} & set(one.argv)
    assert "--threads=2" in two.argv
    assert one.rewrites == [f"threads: {flag[-1]} became 1"]


def test_release_drops_what_hurts_reproducibility() -> None:
    """-lineinfo and --split-compile go in a release, and only there."""
    line = "-c t.cu -o t.o -gencode arch=compute_100,code=sm_100 -lineinfo --split-compile 2"

    assert rewritten(line, nvcc=True).rewrites == []
    assert rewritten(line, nvcc=True, release=True).rewrites == [
        "removed -lineinfo",
        "removed --split-compile 2",
    ]


@pytest.mark.parametrize(
    ("line", "seed"),
    [
        ("-c t.cu -o build/t.o", ["-frandom-seed=build/t.o"]),
        ("-c t.cu -o t.o -frandom-seed=own", ["-frandom-seed=own"]),
        ("-c t.cu -o t.o --frandom-seed own", ["--frandom-seed"]),
        ("-c t.cu", []),
    ],
)
def test_names_that_nvcc_makes_up_come_from_the_object(line: str, seed: list[str]) -> None:
    """Else a unit of templates alone has a process id in them; two objects never share a seed."""
    argv = rewritten(line, nvcc=True, seeded=True).argv
    assert [word for word in argv if "random-seed" in word] == seed
    assert not [word for word in rewritten("-c t.cu -o t.o", nvcc=True).argv if "random-seed" in word]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-c t.cu -o t.o", True),
        ("-dc t.cu -o t.o", True),
        ("-c t.cu", False),
        ("-c t.cu -o t.o --keep", False),
        ("-ptx t.cu -o t.ptx", False),
    ],
)
def test_objects_get_a_fixed_temporary_directory(line: str, expected: bool) -> None:  # noqa: FBT001 - a table
    """--objdir-as-tempdir is given for objects with a name of their own."""
    assert ("--objdir-as-tempdir" in rewritten(line, nvcc=True).argv) is expected


def test_flags_of_the_configuration_are_added() -> None:
    """Determinism flags and path maps go into argv, where ccache sees them."""
    flags = {"host": ["-frandom-seed=7"], "nvcc": ["-Wno-deprecated-gpu-targets"]}

    host = rewritten("-c a.c -MD", flags=flags, prefix_maps=["/a=/b"])
    device = rewritten("-c t.cu -MD", nvcc=True, flags=flags, prefix_maps=["/a=/b"])

    assert host.argv == ["-c", "a.c", "-MD", "-frandom-seed=7", "-ffile-prefix-map=/a=/b"]
    assert device.argv[-1] == "-Wno-deprecated-gpu-targets"


@pytest.mark.parametrize(
    ("line", "nvcc", "listing"),
    [
        ("-c a.c -o a.o", False, ["-MD", "-MF", "a.o.wheelmill.d"]),
        ("-c a.c -o a.o -MD -MF a.d", False, ["-MD", "-MF", "a.d"]),
        ("-c a.c -o a.o -MMD -MF a.d", False, ["-MD", "-MF", "a.d"]),
        (
            "-c t.cu -o t.o --generate-nonsystem-dependencies-with-compile",
            True,
            ["--generate-dependencies-with-compile"],
        ),
    ],
)
def test_every_dependency_is_listed(line: str, nvcc: bool, listing: list[str]) -> None:  # noqa: FBT001 - a table
    """The cache hears of every header, those of the system included."""
    done = rewritten(line, nvcc=nvcc, archs=[])

    assert [word for word in done.argv if "M" in word or word.endswith(".d") or "generate" in word] == listing
    assert done.temporary == (["a.o.wheelmill.d"] if "a.o.wheelmill.d" in listing else [])


# Links


@pytest.mark.parametrize(
    ("line", "expected", "dropped"),
    [
        ("a.o -Wl,-rpath,/opt/lib", "a.o", ["/opt/lib"]),
        ("a.o -Wl,-rpath=/opt/lib", "a.o", ["/opt/lib"]),
        ("a.o -Wl,--rpath,/a:$ORIGIN/lib:/b", "a.o -Wl,--rpath,$ORIGIN/lib", ["/a", "/b"]),
        ("a.o -Wl,-rpath=${ORIGIN}:/b", "a.o -Wl,-rpath=${ORIGIN}", ["/b"]),
        ("a.o -Wl,-soname,x,-rpath,/a,--as-needed", "a.o -Wl,-soname,x,--as-needed", ["/a"]),
        ("a.o -Wl,-rpath -Wl,/a -lx", "a.o -lx", ["/a"]),
        ("a.o -Xlinker -rpath -Xlinker /a", "a.o", ["/a"]),
        ("a.o -Xlinker -rpath=$ORIGIN", "a.o -Xlinker -rpath=$ORIGIN", []),
        ("a.o -Wl,-R,/a", "a.o", ["/a"]),
        ("a.o -Wl,-rpath-link,/a", "a.o -Wl,-rpath-link,/a", []),
        ("a.o -Wl,-rpath,", "a.o", []),
    ],
)
def test_run_paths_of_this_machine_go(line: str, expected: str, dropped: list[str]) -> None:
    """Only run paths below $ORIGIN stay in what gcc links."""
    argv, went = launcher.clean_run_paths(line.split(), nvcc=False)

    assert (" ".join(argv), went) == (expected, dropped)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t.o -Xlinker -rpath -Xlinker /a", "t.o"),
        ("t.o -Xlinker -rpath,/a,-z,defs", "t.o -Xlinker -z,defs"),
        ("t.o -Xlinker=-rpath=/a:$ORIGIN", "t.o -Xlinker -rpath=$ORIGIN"),
        ('t.o -Xcompiler="-Wl,-rpath,/a,-z,defs"', 't.o -Xcompiler "-Wl,-z,defs"'),
        ("t.o -Xcompiler -fPIC", "t.o -Xcompiler -fPIC"),
        ("-forward-unknown-to-host-linker t.o -Wl,-rpath,/a", "-forward-unknown-to-host-linker t.o"),
    ],
)
def test_run_paths_go_from_links_by_nvcc(line: str, expected: str) -> None:
    """Nvcc hands words to the linker in ways of its own."""
    assert " ".join(launcher.clean_run_paths(line.split(), nvcc=True)[0]) == expected


def test_links_are_stripped() -> None:
    """The linker strips, so that no byte changes after it; once is enough."""
    host = rewritten("-shared a.o -o a.so")
    device = rewritten("-shared t.o -o t.so", nvcc=True)

    assert host.argv[-1] == "-Wl,-s"
    assert device.argv[-2:] == ["-Xlinker", "-s"]
    assert host.rewrites == device.rewrites == ["stripped"]
    assert rewritten("-shared -s a.o").argv == ["-shared", "-s", "a.o"]
    assert rewritten("-shared a.o", strip_links=False).argv == ["-shared", "a.o"]


@pytest.mark.parametrize(("line", "nvcc"), [("-r a.o -o b.o", False), ("-lib t.o -o t.a", True)])
def test_partial_links_are_left_alone(line: str, nvcc: bool) -> None:  # noqa: FBT001 - a table
    """Neither a relocatable object nor an archive can be stripped."""
    assert rewritten(line, nvcc=nvcc, link_objects=["/floor.o"]).argv == line.split()


def test_objects_of_ours_are_linked() -> None:
    """Configured objects join every link."""
    done = rewritten("-shared a.o", link_objects=["/floor.o"])

    assert done.argv == ["-shared", "a.o", "/floor.o", "-Wl,-s"]
    assert done.rewrites == ["linked /floor.o", "stripped"]


# Environment


def test_inner_environment() -> None:
    """Below us our directory is off PATH, the mark is set, and no flag hides in a variable."""
    env = launcher.inner_environment(
        {"PATH": "/shims/bin:/usr/bin:/shims/bin/", "NVCC_APPEND_FLAGS": "-G", "CCACHE_DISABLE": "1", "A": "b"},
        "/shims/bin",
    )

    assert env == {"PATH": "/usr/bin", "WHEELMILL_LAUNCHED": "1", "A": "b"}


def test_an_exchanged_compiler_changes_the_check(tmp_path: Path) -> None:
    """What ccache hashes changes when a compiler is no longer the one on record."""
    real = tmp_path / "gcc"
    real.write_text("one", "utf-8")
    stat = real.stat()
    known = {"real": str(real), "stat": [stat.st_size, stat.st_mtime_ns]}
    tools = {"gcc": known, "nvcc": {"real": str(tmp_path / "none"), "stat": None}}

    before = launcher.compiler_check(config(tools=tools))
    real.write_text("other", "utf-8")

    assert before == "string:a+b"
    assert launcher.compiler_check(config(tools=tools)).startswith("string:a+b+gcc=5.")


def test_paths_are_told_below_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source in the tree is named relative to it, any other as it was given."""
    monkeypatch.chdir(tmp_path)
    root = str(tmp_path)

    assert launcher.below(root, "csrc/../a.cu") == "a.cu"
    assert launcher.below(f"{root}/csrc", "a.cu") == "a.cu"
    assert launcher.below(root, "/tmp/other/a.cu") == "/tmp/other/a.cu"
    assert launcher.below("", "a.cu") == "a.cu"


@pytest.mark.parametrize(("status", "code"), [(0, 0), (0x100, 1), (9, 137), (15, 143)])
def test_exit_codes_are_a_shells(status: int, code: int) -> None:
    """A signal N becomes 128 + N."""
    assert launcher.exit_code(status) == code


def test_a_missing_governor_is_named(tmp_path: Path) -> None:
    """Without a governor nothing runs, and the message says which."""
    with pytest.raises(launcher.Refusal) as caught:
        launcher.Channel(str(tmp_path / "s"))

    assert str(caught.value) == f"the governor at {tmp_path}/s does not answer (No such file or directory)"


# JSON without the json module

JSON = st.recursive(
    st.one_of(st.text(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


@settings(max_examples=30)
@given(JSON)
def test_json_is_spelled_and_read_as_json_does(value: object) -> None:
    """What is written is what `json` writes without blanks, and what `json` writes is read."""
    assert launcher.spell(value) == json.dumps(value, separators=(",", ":"))
    assert launcher.parse(json.dumps(value)) == value


def test_words_that_are_no_utf8_are_spelled() -> None:
    """A path of any bytes goes into a message."""
    assert launcher.spell("\udcff") == '"\\udcff"'


@pytest.mark.parametrize("text", ["", "x", '{"a"', '{"a":}'])
def test_what_is_no_json_is_told(text: str) -> None:
    """A broken document is never taken for one."""
    with pytest.raises((ValueError, StopIteration)):
        launcher.parse(text)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b'{"op":"refuse","message":"needs \\u2265 9 GiB"}\n', "needs \u2265 9 GiB"),
        (b'{"op":"refuse"}\n', '{"op":"refuse"}'),
        (b"what?\n", "what?"),
        (b"[1]\n", "[1]"),
    ],
)
def test_a_refusal_is_the_governors_own_words(answer: bytes, text: str) -> None:
    """Its message, or whatever it said in its place."""
    assert launcher.refusal_text(answer) == text


# Skipping


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("-c a.c -o x/a.o", {"x/a.o": ""}),
        ("-c sub/a.c", {"a.o": ""}),
        ("-c a.c -o a.o -MD -MF a.d", {"a.o": "", "a.d": "a.o:\n"}),
        ("-c a.c -o a.o -MD -MF a.d -MQ b.o", {"a.o": "", "a.d": "b.o:\n"}),
        ("-shared a.o -o a.so", {"a.so": ""}),
        ("-fsyntax-only a.c", {}),
    ],
)
def test_a_skipped_unit_leaves_empty_files(
    line: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a build system looks for after a compile is there, and valid."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()

    launcher.skip(launcher.classify(line.split(), nvcc=False))

    found = {str(path.relative_to(tmp_path)): path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()}
    assert found == files


def test_a_skipped_unit_of_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nvcc has names of its own for these."""
    monkeypatch.chdir(tmp_path)
    line = "-c t.cu --output-file t.o --generate-dependencies-with-compile --dependency-output t.o.d"

    launcher.skip(launcher.classify(line.split(), nvcc=True))

    assert (tmp_path / "t.o").read_bytes() == b""
    assert (tmp_path / "t.o.d").read_text("utf-8") == "t.o:\n"


# The gate that stands in the launcher's place


def test_gate_c_stays_small() -> None:
    """Whoever reads it reads all of it."""
    source = Path(launcher.__file__).with_name("gate.c").read_text("utf-8").splitlines()

    assert len(source) <= 200
    assert max(map(len, source)) <= 120
