"""The compiler launcher, and the gate where gate.c could not be compiled: one script that the shims run.

It imports nothing of ours and of the standard library only what Python has loaded already or what is built
in, because it starts for every compile: a bare interpreter takes 8 ms, `json` alone would double that (hence
`__slots__`, `_socket`, `_signal`, `_json`).

The launcher stands for nvcc, gcc and their kin: it rewrites the command and tells the governor. Then gate.c takes its
place, as an interpreter that waits costs 11 MB: it runs the compile through ccache and reports. The gate stands
behind ccache, so that a hit never waits: it asks the governor for a lease, runs the real compiler, reports what that
took. A compile that cannot be governed fails. The gate here does what gate.c does; tests run the same cases on both.

Protocol, one JSON document a line over one Unix-socket connection each; the governor's begin with "op" (or "id") and
have no blanks between, as gate.c compares them letter by letter:
    launcher  {"op":"begin", "tool", "kind", "argv", "cwd", "output", "source", "archs_asked", "archs_used",
               "rewrites", "ccache"}                           ->  {"id":N} | {"op":"refuse","message"}
                                                                 | {"op":"skip"} (an empty object does)
              {"op":"end", "id", "exit"}                       ->  {"op":"exit"} (the record is written)
    gate      {"op":"want", "id"}                              ->  {"op":"go"} | {"op":"refuse","message"}
              {"op":"done", "id", "exit", "signal", "wall", "cpu", "peak_rss_bytes"}
                                                               ->  {"op":"exit"} | {"op":"go"} (once more) | refuse
"""

# pathlib takes longer to import than all the rest of this script:
# ruff: noqa: PTH108, PTH109, PTH115, PTH116, PTH118, PTH119, PTH122, PTH123, PTH208
import _signal  # type: ignore[import-not-found]  # the C half of signal, without enum (6 ms)
import _socket
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MARK = "WHEELMILL_LAUNCHED"
COMPILE_ID = "WHEELMILL_COMPILE_ID"
SOCKET = "WHEELMILL_SOCKET"
REAL = "WHEELMILL_REAL"
ARGV0 = "WHEELMILL_ARGV0"
REFUSALS = "WHEELMILL_REFUSALS"
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2): orphans below us become our children."""

HIDDEN_FLAGS = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
"""Flags that ccache does not hash: it gave the old object back for -use_fast_math."""

RESPONSE_DEPTH = 8
ARGV_BYTES = 1_000_000
"""The kernel takes 2 MB of arguments and environment together; a longer response file stays a file."""

GCC_VALUED = frozenset(
    [
        "-o",
        "-I",
        "-D",
        "-U",
        "-L",
        "-l",
        "-x",
        "-include",
        "-imacros",
        "-isystem",
        "-iquote",
        "-idirafter",
        "-iprefix",
        "-iwithprefix",
        "-isysroot",
        "-B",
        "-T",
        "-z",
        "-u",
        "-e",
        "-h",
        "-R",
        "-MF",
        "-MT",
        "-MQ",
        "-Xlinker",
        "-Xassembler",
        "-Xpreprocessor",
        "-wrapper",
        "-specs",
        "-aux-info",
        "-dumpbase",
        "-dumpdir",
        "-dumpbase-ext",
        "--param",
        "--sysroot",
        "-rpath",
        "-framework",
        "-arch",
    ]
)
GCC_QUERY = frozenset(
    [
        "-v",
        "--version",
        "-dumpversion",
        "-dumpfullversion",
        "-dumpmachine",
        "-dumpspecs",
        "-E",
        "-###",
        "-M",
        "-MM",
        "--help",
        "--target-help",
        "-print-search-dirs",
    ]
)
GCC_PHASE = frozenset(["-c", "-S", "-fsyntax-only"])

NVCC_VALUED = frozenset(
    [
        "-o",
        "--output-file",
        "-include",
        "--pre-include",
        "-l",
        "--library",
        "-D",
        "--define-macro",
        "-U",
        "--undefine-macro",
        "-I",
        "--include-path",
        "-isystem",
        "--system-include",
        "-L",
        "--library-path",
        "-odir",
        "--output-directory",
        "-ccbin",
        "--compiler-bindir",
        "-arbin",
        "--archiver-binary",
        "-cudart",
        "--cudart",
        "-cudadevrt",
        "--cudadevrt",
        "-ldir",
        "--libdevice-directory",
        "-target-dir",
        "--target-directory",
        "-opt-info",
        "--optimization-info",
        "-O",
        "--optimize",
        "-Ofc",
        "--Ofast-compile",
        "-dopt",
        "--dopt",
        "-ftemplate-backtrace-limit",
        "--ftemplate-backtrace-limit",
        "-ftemplate-depth",
        "--ftemplate-depth",
        "-x",
        "--x",
        "-std",
        "--std",
        "-m",
        "--machine",
        "-Xcompiler",
        "--compiler-options",
        "-Xlinker",
        "--linker-options",
        "-Xarchive",
        "--archive-options",
        "-Xptxas",
        "--ptxas-options",
        "-Xnvlink",
        "--nvlink-options",
        "-static-global-template-stub",
        "--static-global-template-stub",
        "-device-entity-has-hidden-visibility",
        "--device-entity-has-hidden-visibility",
        "-t",
        "--threads",
        "-split-compile",
        "--split-compile",
        "-split-compile-extended",
        "--split-compile-extended",
        "-fdevice-time-trace",
        "--fdevice-time-trace",
        "-keep-dir",
        "--keep-dir",
        "-time",
        "--time",
        "-run-args",
        "--run-args",
        "-idp",
        "--input-drive-prefix",
        "-ddp",
        "--dependency-drive-prefix",
        "-dp",
        "--drive-prefix",
        "-MF",
        "--dependency-output",
        "-MT",
        "--dependency-target-name",
        "-arch",
        "--gpu-architecture",
        "-code",
        "--gpu-code",
        "-gencode",
        "--generate-code",
        "-rdc",
        "--relocatable-device-code",
        "-maxrregcount",
        "--maxrregcount",
        "-ftz",
        "--ftz",
        "-prec-div",
        "--prec-div",
        "-prec-sqrt",
        "--prec-sqrt",
        "-fmad",
        "--fmad",
        "-default-stream",
        "--default-stream",
        "-Werror",
        "--Werror",
        "-diag-error",
        "--diag-error",
        "-diag-suppress",
        "--diag-suppress",
        "-diag-warn",
        "--diag-warn",
        "-hls",
        "--host-linker-script",
        "-brief-diag",
        "--brief-diagnostics",
        "-jtd",
        "--jump-table-density",
        "-device-stack-protector",
        "--device-stack-protector",
        "-frandom-seed",
        "--frandom-seed",
        "-sanitize",
        "--sanitize",
        "-optf",
        "--options-file",
        "-e",
        "--entries",
        "-compress-mode",
        "--compress-mode",
    ]
)
NVCC_QUERY = frozenset(
    [
        "-v",
        "--verbose",
        "-V",
        "--version",
        "-h",
        "--help",
        "-dryrun",
        "--dryrun",
        "-E",
        "--preprocess",
        "-M",
        "--generate-dependencies",
        "-MM",
        "--generate-nonsystem-dependencies",
        "-code-ls",
        "--list-gpu-code",
        "-arch-ls",
        "--list-gpu-arch",
    ]
)
NVCC_OBJECT = frozenset(["-c", "--compile", "-dc", "--device-c", "-dw", "--device-w"])
NVCC_OTHER = frozenset(
    [
        "-cuda",
        "--cuda",
        "-cubin",
        "--cubin",
        "-fatbin",
        "--fatbin",
        "-ptx",
        "--ptx",
        "-optix-ir",
        "--optix-ir",
        "-ltoir",
        "--ltoir",
    ]
)
NVCC_PARTIAL = frozenset(["-dlink", "--device-link", "-lib", "--lib", "-r", "--relocatable-link"])
"""Links that make no shared object or program: ld's flags for those would spoil them."""
ARCH_FLAGS = frozenset(["-gencode", "--generate-code", "-arch", "--gpu-architecture", "-code", "--gpu-code"])
DEPENDENCIES = frozenset(
    ["-MD", "-MMD", "--generate-dependencies-with-compile", "--generate-nonsystem-dependencies-with-compile"]
)
FULL_DEPENDENCIES = {
    "-MMD": "-MD",
    "--generate-nonsystem-dependencies-with-compile": "--generate-dependencies-with-compile",
}
RELEASE_DROPS = frozenset(["-lineinfo", "--generate-line-info", "-split-compile", "--split-compile"])


# Reading a command ---------------------------------------------------------------------------------------


class Token:
    """One option with its value, or one input (its name is empty); argv[start:stop] is where it stood."""

    __slots__ = ("name", "start", "stop", "value")

    def __init__(self, start: int, stop: int, name: str, value: str | None) -> None:
        self.start, self.stop, self.name, self.value = start, stop, name, value


class Command:
    """What a compiler was asked to do: kind is "query", "compile" or "link"."""

    __slots__ = ("inputs", "kind", "object", "output", "tokens")

    def __init__(self, kind: str, tokens: "list[Token]", *, makes_object: bool) -> None:
        self.kind, self.tokens, self.object = kind, tokens, makes_object
        self.inputs = [token.value or "" for token in tokens if not token.name]
        outputs = [token.value or "" for token in tokens if token.name in ("-o", "--output-file")]
        self.output = outputs[-1] if outputs else ""

    @property
    def source(self) -> str:
        """The first input: a compile has only one."""
        return self.inputs[0] if self.inputs else ""


def tokens(argv: "Sequence[str]", *, nvcc: bool) -> "Iterator[Token]":
    """Split a command into options with their values and inputs."""
    valued = NVCC_VALUED if nvcc else GCC_VALUED
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "-" or not word.startswith("-"):
            yield Token(at, at + 1, "", word)
        elif word in valued and at + 1 < len(argv):
            yield Token(at, at + 2, word, argv[at + 1])
            at += 1
        elif not nvcc and word.startswith("-o"):
            yield Token(at, at + 1, "-o", word[2:])
        elif nvcc and word.startswith("-t") and word[2:].isdigit():
            yield Token(at, at + 1, "-t", word[2:])
        else:
            name, equals, value = word.partition("=")
            yield Token(at, at + 1, name, value if equals else None)
        at += 1


def classify(argv: "Sequence[str]", *, nvcc: bool) -> Command:
    """Tell whether a command asks, compiles or links.

    Whatever has no input, or only wants to know something, is a query and passes straight through.
    """
    found = list(tokens(argv, nvcc=nvcc))
    names = {token.name for token in found}
    query = NVCC_QUERY if nvcc else GCC_QUERY
    asks = names & query or any(name.lstrip("-").startswith(("print-", "help")) for name in names)
    if asks or "" not in names:
        return Command("query", found, makes_object=False)
    makes_object = bool(names & NVCC_OBJECT) if nvcc else "-c" in names
    compiles = makes_object or names & (NVCC_OTHER if nvcc else GCC_PHASE)
    return Command("compile" if compiles else "link", found, makes_object=makes_object)


def expand(
    argv: "Sequence[str]", *, nvcc: bool, read: "Callable[[str], str | None]", depth: int = RESPONSE_DEPTH
) -> list[str]:
    """Put the words of response files in their place, so that nothing in them escapes the rewriting."""
    out: list[str] = []
    for token in tokens(argv, nvcc=nvcc):
        words = list(argv[token.start : token.stop])
        files: list[str] = []
        if nvcc and token.name in ("-optf", "--options-file"):
            files = (token.value or "").split(",")
        elif not nvcc and not token.name and words[0].startswith("@"):
            files = [words[0][1:]]
        texts = [read(file) for file in files]
        if depth and files and all(text is not None for text in texts):
            for text in texts:
                out.extend(expand(split_words(text or ""), nvcc=nvcc, read=read, depth=depth - 1))
        else:
            out.extend(words)
    return list(argv) if sum(map(len, out)) > ARGV_BYTES else out


def split_words(text: str) -> list[str]:
    """Split a response file as gcc's `expandargv` does: blanks, both quotes, backslash."""
    words: list[str] = []
    word: list[str] | None = None
    quote, escaped = "", False
    for char in text:
        if escaped:
            word, escaped = [*(word or []), char], False
        elif char == "\\":
            escaped = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = word if word is not None else []
                word.append(char)
        elif char in "'\"":
            quote, word = char, word if word is not None else []
        elif char.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = word if word is not None else []
            word.append(char)
    return words if word is None else [*words, "".join(word)]


def read_text(path: str) -> str | None:
    """Give a response file's text; gcc takes a name that is no file literally, so do we."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


# Architectures -------------------------------------------------------------------------------------------


def parse_gencode(value: str) -> list[tuple[str, str]]:
    """Read `arch=compute_90,code=[sm_90,compute_90]` as pairs of virtual and real architecture."""
    plain = "".join(char for char in value if char not in "[]\"'\\ ")
    virtual, codes, into = "", [], ""
    for part in plain.split(","):
        key, equals, text = part.partition("=")
        into = key if equals else into
        text = text if equals else key
        if into == "arch":
            virtual = text
        elif text:
            codes.append(text)
    return [(virtual, code) for code in codes or [virtual]]


def asked_archs(found: "Sequence[Token]") -> list[tuple[str, str]]:
    """Give every architecture that a command asks for, however it is spelled.

    `-arch=sm_X` alone is nvcc's shorthand for sm_X and the PTX of compute_X.
    """
    asked: list[tuple[str, str]] = []
    arch, codes = "", []
    for token in found:
        value = "".join(char for char in token.value or "" if char not in "[]\"'\\ ")
        if token.name in ("-gencode", "--generate-code"):
            asked += parse_gencode(value)
        elif token.name in ("-arch", "--gpu-architecture"):
            arch = value
        elif token.name in ("-code", "--gpu-code"):
            codes += [code for code in value.split(",") if code]
    kind, _, number = arch.partition("_")
    virtual = f"compute_{number}" if kind in ("sm", "lto") else arch
    if arch and not codes:
        codes = [arch, virtual] if kind == "sm" else [arch]
    asked += [(virtual, code) for code in codes]
    return list(dict.fromkeys(asked))


def wanted_archs(archs: "Sequence[str]") -> list[tuple[str, str]]:
    """Translate the request ("10.0", "9.0a", "8.0+PTX") into pairs of virtual and real architecture."""
    wanted: list[tuple[str, str]] = []
    for arch in archs:
        number, plus, _ = arch.partition("+")
        number = number.replace(".", "")
        wanted.append((f"compute_{number}", f"sm_{number}"))
        if plus:
            wanted.append((f"compute_{number}", f"compute_{number}"))
    return list(dict.fromkeys(wanted))


def serves(code: str, wanted: str) -> bool:
    """Tell whether code asked for is what the request means.

    The feature variants sm_100a and sm_100f run on the very devices of sm_100, so a package that needs them
    keeps them; lto_100 is sm_100 before its device link.
    """
    return code == wanted or (
        wanted.startswith("sm_") and (code in (f"{wanted}a", f"{wanted}f") or code == f"lto_{wanted[3:]}")
    )


def hold_archs(argv: "Sequence[str]", archs: "Sequence[str]", *, add: bool = True) -> tuple[list[str], list[str], str]:
    """Hold an nvcc command to the architectures of the request.

    Gives the command, the codes it makes now, and what was changed ("" when it asked for just these). A link
    that names no architecture makes no device code, so with `add` off none is put in.
    """
    found = list(tokens(argv, nvcc=True))
    asked, wanted = asked_archs(found), wanted_archs(archs)
    kept = [pair for pair in asked if any(serves(pair[1], code) for _, code in wanted)]
    missing = [pair for pair in wanted if not any(serves(code, pair[1]) for _, code in kept)]
    missing = missing if asked or add else []
    removed = [pair for pair in asked if pair not in kept]
    used = kept + missing
    codes = [code for _, code in used]
    if not removed and not missing:
        return list(argv), codes, ""
    flags = [word for virtual, code in used for word in ("-gencode", f"arch={virtual},code={code}")]
    out: list[str] = []
    for token in found:
        if token.name in ARCH_FLAGS:
            out += flags
            flags = []
        else:
            out += argv[token.start : token.stop]
    said = [f"{verb} {', '.join(code for _, code in pairs)}" for verb, pairs in _changes(removed, missing)]
    return out + flags, codes, f"archs: {'; '.join(said)}"


def _changes(removed: list[tuple[str, str]], added: list[tuple[str, str]]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [change for change in (("removed", removed), ("added", added)) if change[1]]


# Rewriting -----------------------------------------------------------------------------------------------


class Config:
    """What the shims' author decided; the fields of config.json, see shims.py."""

    __slots__ = (
        "arch_mode",
        "archs",
        "ccache",
        "ccache_env",
        "flags",
        "gate",
        "link_objects",
        "native",
        "prefix_maps",
        "preload",
        "refusals",
        "release",
        "seeded",
        "shim_dir",
        "socket",
        "source_root",
        "strip_links",
        "threads",
        "tools",
    )

    def __init__(self, fields: "Mapping[str, object]") -> None:
        for name in self.__slots__:
            setattr(self, name, fields[name])

    if TYPE_CHECKING:
        archs: list[str]
        arch_mode: str
        ccache: str | None
        ccache_env: dict[str, str]
        flags: dict[str, list[str]]
        gate: str
        link_objects: list[str]
        native: bool
        prefix_maps: list[str]
        refusals: str | None
        preload: str | None
        release: bool
        seeded: bool
        shim_dir: str
        socket: str
        source_root: str
        strip_links: bool
        threads: int
        tools: dict[str, dict[str, object]]


class Rewritten:
    """A command as it will run, with what was changed and which device code it asks for and makes."""

    __slots__ = ("archs_asked", "archs_used", "argv", "rewrites", "temporary")

    def __init__(self, argv: list[str]) -> None:
        self.argv = argv
        self.rewrites: list[str] = []
        self.archs_asked: list[str] = []
        self.archs_used: list[str] = []
        self.temporary: list[str] = []
        """Files that only the cache asked for: removed afterwards."""


def rewrite(argv: "Sequence[str]", config: Config, *, nvcc: bool) -> Rewritten:
    """Give the command that will run: archs held, bytes made to depend on the inputs alone."""
    command = classify(argv, nvcc=nvcc)
    done = Rewritten(list(argv))
    if command.kind == "link":
        if nvcc:
            rewrite_archs(done, config, command)
        rewrite_link(done, config, command, nvcc=nvcc)
    elif command.kind == "compile":
        if nvcc:
            rewrite_archs(done, config, command)
            rewrite_nvcc(done, config, command)
        done.argv += config.flags.get("nvcc" if nvcc else "host", [])
        if not nvcc:
            done.argv += [f"-ffile-prefix-map={pair}" for pair in config.prefix_maps]
        if command.object:
            rewrite_dependencies(done, command, nvcc=nvcc)
    return done


def rewrite_archs(done: Rewritten, config: Config, command: Command) -> None:
    """Hold the device code to the request, or only note it.

    What makes no object (-ptx, -cubin) is an asset of the package's own and takes one architecture only.
    """
    device = command.kind == "link" or is_device_source(command)
    asked = [code for _, code in asked_archs(command.tokens)]
    done.archs_asked = asked if device else []
    done.archs_used = list(done.archs_asked)
    if config.arch_mode != "hold" or not config.archs or not device:
        return
    if command.kind == "compile" and not command.object:
        return
    names = {token.name for token in command.tokens}
    add = command.kind == "compile" or bool(names & {"-dlink", "--device-link"})
    done.argv, done.archs_used, said = hold_archs(done.argv, config.archs, add=add)
    if said:
        done.rewrites.append(said)


def is_device_source(command: Command) -> bool:
    """Tell whether nvcc compiles device code here: a .cu file, or one that -x calls so."""
    languages = [token.value for token in command.tokens if token.name in ("-x", "--x")]
    return languages[-1] == "cu" if languages else command.source.endswith((".cu", ".ptx", ".cubin"))


def rewrite_nvcc(done: Rewritten, config: Config, command: Command) -> None:
    """Make an nvcc compile deterministic and of one measured size.

    Without --objdir-as-tempdir no two objects are alike (the pid is in their file symbol). Memory is linear
    in --threads: 4.4 GB became 17.5 GB with 4. A unit that defines no strong external symbol (templates alone) has
    cudafe++'s pid in the names of its internal symbols; a seed takes its place, from CUDA 12.9 on [tried: 13.0.88].
    It is the object's name, as two objects with one seed could not be linked together.
    """
    drops = RELEASE_DROPS if config.release else frozenset()
    out: list[str] = []
    for token in tokens(done.argv, nvcc=True):
        words = done.argv[token.start : token.stop]
        if token.name in ("-t", "--threads"):
            if token.value != str(config.threads):
                done.rewrites.append(f"threads: {token.value} became {config.threads}")
        elif token.name in drops:
            done.rewrites.append(f"removed {' '.join(words)}")
        else:
            out += words
    if config.threads > 1:
        out.append(f"--threads={config.threads}")
    names = {token.name for token in command.tokens}
    if command.object and command.output and not names & {"-objtemp", "--objdir-as-tempdir", "-keep", "--keep"}:
        out.append("--objdir-as-tempdir")
    if config.seeded and command.output and not names & {"-frandom-seed", "--frandom-seed"}:
        out.append(f"-frandom-seed={command.output}")
    done.argv = out


def rewrite_dependencies(done: Rewritten, command: Command, *, nvcc: bool) -> None:
    """Have the compiler list every file it reads.

    ccache's depend mode wants -MD, else it preprocesses outside the gate (134 MB each); and with -MMD it never
    hears of a header under -isystem (torch's stand there), so a changed one would be a false hit.
    """
    names = {token.name for token in command.tokens}
    if not names & DEPENDENCIES:
        if command.output and len(command.inputs) == 1:
            listing = f"{command.output}.wheelmill.d"
            done.argv += ["-MD", "-MF", listing]
            done.temporary.append(listing)
        return
    for token in tokens(list(done.argv), nvcc=nvcc):
        if token.name in FULL_DEPENDENCIES:
            done.argv[token.start] = FULL_DEPENDENCIES[token.name]
            done.rewrites.append(f"dependencies: {token.name} became {FULL_DEPENDENCIES[token.name]}")


def rewrite_link(done: Rewritten, config: Config, command: Command, *, nvcc: bool) -> None:
    """Strip and clean run paths while linking, so that no byte of the file changes afterwards."""
    names = {token.name for token in command.tokens}
    if names & (NVCC_PARTIAL if nvcc else frozenset({"-r", "--relocatable"})):
        return
    done.argv, dropped = clean_run_paths(done.argv, nvcc=nvcc)
    done.rewrites += [f"run path: dropped {path}" for path in dropped]
    done.argv += config.link_objects
    if config.link_objects:
        done.rewrites.append(f"linked {', '.join(config.link_objects)}")
    strip = ["-Xlinker", "-s"] if nvcc else ["-Wl,-s"]
    if config.strip_links and not (names & {"-s"} or "-Wl,-s" in done.argv):
        done.argv += strip
        done.rewrites.append("stripped")


def linker_words(token: Token, words: "Sequence[str]", *, nvcc: bool) -> tuple[str, list[str]] | None:
    """Give how a token hands words to the linker, and these words; None when it does not."""
    if words[0].startswith("-Wl,"):  # nvcc takes these with -forward-unknown-to-host-linker
        return "-Wl,", words[0][4:].split(",")
    if token.name in ("-Xlinker", "--linker-options") and token.value is not None:
        return "-Xlinker", token.value.split(",") if nvcc else [token.value]
    if nvcc and token.name in ("-Xcompiler", "--compiler-options"):
        value = (token.value or "").strip("\"'")
        if value.startswith("-Wl,"):
            return "-Xcompiler", value[4:].split(",")
    return None


def clean_run_paths(argv: "Sequence[str]", *, nvcc: bool) -> tuple[list[str], list[str]]:
    """Drop every run path of this machine; those below $ORIGIN stay. Gives the command and what went."""
    found = list(tokens(argv, nvcc=nvcc))
    shapes = [linker_words(token, argv[token.start : token.stop], nvcc=nvcc) for token in found]
    flat = [(at, word) for at, shape in enumerate(shapes) if shape for word in shape[1]]
    kept, dropped = filter_run_paths(flat)
    out: list[str] = []
    for at, (token, shape) in enumerate(zip(found, shapes, strict=True)):
        words = [word for owner, word in kept if owner == at]
        if shape is None or words == shape[1]:
            out += argv[token.start : token.stop]
        elif words and shape[0] == "-Xlinker":
            out += ["-Xlinker", ",".join(words)]
        elif words:
            text = "-Wl," + ",".join(words)
            out += ["-Xcompiler", f'"{text}"'] if shape[0] == "-Xcompiler" else [text]
    return out, dropped


def filter_run_paths(flat: "Sequence[tuple[int, str]]") -> tuple[list[tuple[int, str]], list[str]]:
    """Filter the linker's words, each with the token it came from."""
    kept: list[tuple[int, str]] = []
    dropped: list[str] = []
    at = 0
    while at < len(flat):
        owner, word = flat[at]
        name, equals, value = word.partition("=")
        if name not in ("-rpath", "--rpath", "-R"):
            kept.append(flat[at])
            at += 1
            continue
        width = 1 if equals else 2
        value = value if equals else (flat[at + 1][1] if at + 1 < len(flat) else "")
        paths = [path for path in value.split(":") if path]
        stay = [path for path in paths if path.startswith(("$ORIGIN", "${ORIGIN}"))]
        dropped += [path for path in paths if path not in stay]
        if stay and equals:
            kept.append((owner, f"{name}={':'.join(stay)}"))
        elif stay:
            kept += [(owner, name), (flat[at + 1][0], ":".join(stay))]
        at += width
    return kept, dropped


# Running -------------------------------------------------------------------------------------------------


class Refusal(Exception):  # noqa: N818 - it is no error of ours but an answer
    """The compile must not run; the message is one line."""


class Child:
    """The one program that we wait for; signals sent to us go on to it."""

    def __init__(self) -> None:
        self.pid = 0
        for number in (_signal.SIGTERM, _signal.SIGINT):
            _signal.signal(number, self.forward)

    def forward(self, number: int, _frame: object) -> None:
        """Hand a signal on; end at once while nothing runs yet, which closes the connection."""
        if self.pid:
            os.kill(self.pid, number)
        else:
            os._exit(128 + number)

    def run(
        self, path: str, argv: "Sequence[str]", env: "Mapping[str, str]", channel: "Channel", *, first: bool = False
    ) -> tuple[int, float, int]:
        """Run a program to its end: the wait status, the CPU seconds of its tree, its largest member's bytes.

        What it leaves behind is ended with it, and all of it when the governor has gone (then raises Refusal). No
        new session: ninja ends a compile by its process group. Python ignores SIGPIPE and SIGXFSZ, a compiler must
        not inherit that. `first`: where memory runs out, the kernel takes it before anything else.
        """
        adopt_orphans()
        ended, wake = os.pipe()
        os.set_blocking(wake, False)
        _signal.signal(_signal.SIGCHLD, lambda _number, _frame: None)
        _signal.set_wakeup_fd(wake)
        held = _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM, _signal.SIGINT])
        defaults = [_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGTERM, _signal.SIGINT]
        try:
            self.pid = os.posix_spawn(path, list(argv), env, setsigdef=defaults, setsigmask=held)
        except OSError as error:
            raise Refusal(f"cannot run {path} ({error.strerror})") from error
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, held)
        if first:
            give_up_first(self.pid)
        while True:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                break
            if channel.closes_before(ended):
                raise Refusal(channel.gone)
        self.pid = 0
        _signal.set_wakeup_fd(-1)
        os.close(ended)
        os.close(wake)
        end_tree()
        return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def give_up_first(pid: int) -> None:
    """Have the kernel kill a process before all others where memory runs out, if it is there still."""
    try:
        with open(f"/proc/{pid}/oom_score_adj", "wb") as file:
            file.write(b"900")
    except OSError:
        return


def adopt_orphans() -> None:
    """Become the parent of every orphan below us, where this Python can call the kernel."""
    try:
        import ctypes  # noqa: PLC0415 - only where gate.c could not be compiled

        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return


def end_tree() -> None:
    """Kill whatever is below us; orphans become our children, so only these need to be found."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for name in os.listdir("/proc"):
            if name.isdigit() and parent_of(name) == os.getpid():
                os.kill(int(name), _signal.SIGKILL)
        os.waitpid(-1, 0)


def parent_of(pid: str) -> int:
    """Give a process's parent, 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def exit_code(status: int) -> int:
    """Give a wait status as a shell would: 128 + N for signal N."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


class Channel:
    """One connection to the governor."""

    def __init__(self, path: str, *, inheritable: bool = False) -> None:
        self.gone = f"the governor at {path} has gone"
        self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self.socket.connect(path)
            os.set_inheritable(self.socket.fileno(), inheritable)
        except OSError as error:
            self.socket.close()
            raise Refusal(f"the governor at {path} does not answer ({error.strerror})") from error

    def send(self, line: bytes) -> None:
        """Send one message. Raises Refusal when the governor is gone."""
        try:
            self.socket.sendall(line)
        except OSError as error:
            raise Refusal(self.gone) from error

    def receive(self) -> bytes:
        """Wait for one message. Raises Refusal when the governor is gone."""
        line = b""
        while not line.endswith(b"\n"):
            try:
                part = self.socket.recv(65536)
            except OSError as error:
                raise Refusal(self.gone) from error
            if not part:
                raise Refusal(self.gone)
            line += part
        return line

    def closes_before(self, other: int) -> bool:
        """Wait until the governor goes or something can be read from `other`."""
        import select  # noqa: PLC0415 - only where we stay

        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLRDHUP)
        poll.register(other, select.POLLIN)
        ready = [descriptor for descriptor, _ in poll.poll()]
        if other in ready:
            os.read(other, 4096)
        return self.socket.fileno() in ready


def gated(child: Child, env: "Mapping[str, str]", argv: "Sequence[str]") -> int:
    """Wait for a lease, run the real compiler, report; again as often as the governor says so.

    The compiler inherits the connection: should this process be killed, the lease lasts until the compiler's
    whole tree has ended as well, because its memory does.
    """
    channel = Channel(env[SOCKET], inheritable=True)
    number = int(env[COMPILE_ID])
    channel.send(b'{"op":"want","id":%d}\n' % number)
    clean = {name: value for name, value in env.items() if not name.startswith("WHEELMILL_") or name == MARK}
    answer = channel.receive()
    while answer.startswith(b'{"op":"go"'):
        started = time.monotonic()
        status, cpu, peak = child.run(env[REAL], argv, clean, channel, first=True)
        wall = time.monotonic() - started
        signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        said = (number, exit_code(status), signal, b"%.3f" % wall, b"%.3f" % cpu, peak)
        channel.send(b'{"op":"done","id":%d,"exit":%d,"signal":%d,"wall":%b,"cpu":%b,"peak_rss_bytes":%d}\n' % said)
        answer = channel.receive()
        if answer.startswith(b'{"op":"exit"'):
            return exit_code(status)
        unsay(1, "/stdout.tmp.")
        unsay(2, "/stderr.tmp.")
    raise Refusal(refusal_text(answer))


def unsay(descriptor: int, name: str) -> None:
    """Empty a file in which ccache keeps what a compiler says: a killed attempt's words would stay with the object."""
    if name in os.readlink(f"/proc/self/fd/{descriptor}"):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)


def refusal_text(answer: bytes) -> str:
    """Give the governor's reason for a refusal."""
    text = answer.decode("utf-8", "surrogateescape")
    try:
        found = parse(text)
    except (ValueError, StopIteration):
        return text.strip()
    return str(found.get("message", text.strip())) if isinstance(found, dict) else text.strip()


def complain(text: str, log: str | None = None) -> None:
    """Say one line on stderr, and in the log of refusals."""
    line = f"wheelmill: not compiled: {text}; start the build again with `wheelmill build`\n"
    os.write(2, line.encode("utf-8", "surrogateescape"))
    if log:
        try:
            with open(log, "ab") as file:
                file.write(line.encode("utf-8", "surrogateescape"))
        except OSError:
            return


# JSON without `json`, which takes 7 ms: of every CPython's own C half


class Scanning:
    """What the scanner of `_json` asks of a decoder."""

    strict = True
    object_hook = object_pairs_hook = parse_constant = None
    parse_float, parse_int = float, int


def parse(text: str) -> object:
    """Read a JSON document. Raises ValueError or StopIteration."""
    try:
        from _json import make_scanner  # noqa: PLC0415 - another Python may lack it
    except ImportError:
        import json  # noqa: PLC0415

        return json.loads(text)
    return make_scanner(Scanning)(text, 0)[0]  # type: ignore[arg-type]  # it asks for any object with these names


def spell(value: object) -> str:
    """Write a JSON document of texts, lists, truths, nothing, and objects of these."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{spell(key)}:{spell(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(spell, value)) + "]"
    if isinstance(value, str):
        try:
            from _json import encode_basestring_ascii  # noqa: PLC0415
        except ImportError:
            from json.encoder import encode_basestring_ascii  # noqa: PLC0415
        return str(encode_basestring_ascii(value))
    return {True: "true", False: "false", None: "null"}[value]  # type: ignore[index]


# The launcher's role -------------------------------------------------------------------------------------


def inner_environment(environ: "Mapping[str, str]", shim_dir: str) -> dict[str, str]:
    """Give the environment for everything below us: marked, our directory off PATH, no hidden flags.

    Without the mark nvcc's own gcc calls would wait for a lease that nvcc holds.
    """
    env = {
        name: value for name, value in environ.items() if name not in HIDDEN_FLAGS and not name.startswith("CCACHE_")
    }
    path = [entry for entry in env.get("PATH", "").split(":") if entry.rstrip("/") != shim_dir]
    env["PATH"] = ":".join(path)
    env[MARK] = "1"
    return env


def replace_process(tool: "Mapping[str, object]", argv: "Sequence[str]", env: "Mapping[str, str]") -> None:
    """Become the real compiler."""
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    os.execve(str(tool["real"]), [str(tool["argv0"]), *argv], dict(env))  # noqa: S606 - that is the task


def compiler_check(config: Config) -> str:
    """Give what ccache hashes for the compilers: the digests on record, and whatever has changed since.

    A shim hides its compiler from ccache, which then gave back the old compiler's object.
    """
    changed: list[str] = []
    for name, tool in sorted(config.tools.items()):
        known = tool.get("stat")
        if known is None:
            continue
        try:
            now = os.stat(str(tool["real"]))
        except OSError:
            continue
        if [now.st_size, now.st_mtime_ns] != known:
            changed.append(f"{name}={now.st_size}.{now.st_mtime_ns}")
    return "+".join([config.ccache_env["CCACHE_COMPILERCHECK"], *changed])


def below(root: str, path: str) -> str:
    """Give a path relative to the source tree where it lies in it."""
    full = os.path.normpath(os.path.join(os.getcwd(), path))
    return full[len(root) + 1 :] if root and full.startswith(f"{root}/") else path


def begin(channel: Channel, message: "Mapping[str, object]") -> int | None:
    """Announce a compile and get its number; None when it shall be skipped.

    Raises Refusal when the governor will not have it.
    """
    channel.send(spell(dict(message)).encode() + b"\n")
    answer = channel.receive()
    if answer.startswith(b'{"op":"skip"'):
        return None
    try:
        found = parse(answer.decode())
    except (ValueError, StopIteration):
        found = None
    number = found.get("id") if isinstance(found, dict) else None
    if not isinstance(number, int):
        raise Refusal(refusal_text(answer))
    return number


def skip(command: Command) -> None:
    """Leave what a build system looks for after a compile: an empty object, an empty list of dependencies."""
    name, _ = os.path.splitext(os.path.basename(command.source))
    output = command.output or (f"{name}.o" if command.object else "")
    if output:
        open(output, "wb").close()
    given = {token.name: token.value or "" for token in command.tokens}
    listing = given.get("-MF") or given.get("--dependency-output")
    targets = [given[name] for name in ("-MT", "-MQ", "--dependency-target-name") if name in given]
    if listing:
        with open(listing, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(f"{(targets or [output])[0]}:\n")


def announcement(config: Config, name: str, command: Command, done: Rewritten, *, cached: bool) -> dict[str, object]:
    """Give the launcher's first message."""
    return {
        "op": "begin",
        "tool": name,
        "kind": command.kind,
        "argv": done.argv,
        "cwd": os.getcwd(),
        "output": below(config.source_root, command.output) if command.output else "",
        "source": below(config.source_root, command.source),
        "archs_asked": done.archs_asked,
        "archs_used": done.archs_used,
        "rewrites": done.rewrites,
        "ccache": cached,
    }


def launch(config: Config, name: str, argv: "Sequence[str]", environ: "Mapping[str, str]") -> int:
    """Run one compiler command as the launcher."""
    tool = config.tools[name]
    nvcc = tool["family"] == "nvcc"
    env = inner_environment(environ, config.shim_dir)
    if environ.get(MARK):
        replace_process(tool, argv, env)
    argv = expand(argv, nvcc=nvcc, read=read_text)
    command = classify(argv, nvcc=nvcc)
    if command.kind == "query":
        replace_process(tool, argv, env)
    child = Child()
    done = rewrite(argv, config, nvcc=nvcc)
    done.rewrites += [f"environment: dropped {key}" for key in HIDDEN_FLAGS if environ.get(key)]
    cached = bool(config.ccache) and command.kind == "compile" and command.object
    channel = Channel(config.socket)
    number = begin(channel, announcement(config, name, command, done, cached=cached))
    if number is None:
        skip(command)
        return 0
    env[COMPILE_ID], env[SOCKET] = str(number), config.socket
    env[REAL], env[ARGV0] = str(tool["real"]), str(tool["argv0"])
    if config.refusals:
        env[REFUSALS] = config.refusals
    if nvcc and config.preload:
        env["LD_PRELOAD"] = config.preload
    words = [env[ARGV0], *done.argv]
    if cached:
        env.update(cache_settings(config))
        words.insert(0, str(config.ccache))
    if config.native:
        hand_over(config.gate, channel, done.temporary, words, env)
    status = exit_code(child.run(words[0], words, env, channel)[0]) if cached else gated(child, env, words)
    for path in done.temporary:
        try:
            os.unlink(path)
        except OSError:
            continue
    channel.send(b'{"op":"end","id":%d,"exit":%d}\n' % (number, status))
    channel.receive()
    return status


def hand_over(
    gate: str, channel: Channel, temporary: "Sequence[str]", words: "Sequence[str]", env: "Mapping[str, str]"
) -> None:
    """Become gate.c, which runs the compile, removes the temporary files and tells the end. Raises Refusal."""
    role = "--cached" if "CCACHE_PREFIX" in env else "--bare"
    os.set_inheritable(channel.socket.fileno(), True)  # noqa: FBT003 - the standard library's own signature
    argv = [gate, role, str(channel.socket.fileno()), str(len(temporary)), *temporary, *words]
    try:
        os.execve(gate, argv, dict(env))  # noqa: S606 - that is the task
    except OSError as error:
        raise Refusal(f"cannot run {gate} ({error.strerror})") from error


def cache_settings(config: Config) -> dict[str, str]:
    """Give ccache's environment; the gate stands before the real compiler."""
    return {**config.ccache_env, "CCACHE_COMPILERCHECK": compiler_check(config), "CCACHE_PREFIX": config.gate}


def main() -> None:
    """Run as `launch.py --gate ARGV…` or `launch.py CONFIG NAME ARGS…`."""
    environ = dict(os.environ)
    log = environ.get(REFUSALS)
    try:
        if sys.argv[1] == "--gate":
            env = {name: value for name, value in environ.items() if not name.startswith("CCACHE_")}
            os._exit(gated(Child(), env, [env[ARGV0], *sys.argv[3:]]))
        with open(sys.argv[1], encoding="utf-8") as file:
            config = Config(parse(file.read()))  # type: ignore[arg-type]
        log = config.refusals
        os._exit(launch(config, sys.argv[2], sys.argv[3:], environ))
    except Refusal as refusal:
        end_tree()
        complain(str(refusal), log)
    except OSError as error:
        complain(f"cannot run the compiler: {error}", log)
    os._exit(1)


if __name__ == "__main__":
    main()
