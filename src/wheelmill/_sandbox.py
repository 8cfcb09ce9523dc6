"""Runs one command in namespaces of its own: `python -S -I _sandbox.py CONFIG -- COMMAND…`.

It imports nothing of ours; sandbox.py writes CONFIG. Three processes: the supervisor (this program; it dies with
whoever started it), the init of a new pid namespace, and the command. When the command ends, or the supervisor is
killed, init ends, and with it the kernel ends everything that the command has started, daemons included.

The user namespace has one user. Root is mapped like anybody: inside it is an unprivileged user without
capabilities, since a mount namespace alone lets root lift a read-only bind [tried]. Its files are still root's own
outside, so whatever of /proc asks for the user id alone is made read-only (sysctl, sysrq), and there is no /sys.

The network namespace has a loopback device and nobody else. Init answers DNS on it, every name with "no such name",
and writes down who asked for what: that is how an attempt gets a name. One by a bare address is refused by the kernel
itself, which counts it: only that it happened is known in the end.

Exit status: the command's own (128 + N for signal N); 125 when the sandbox cannot be made, with one line on stderr.
"""

# One standard-library program, ctypes and all: its own rules.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH115, PTH119, PTH120, PTH123, PTH208, PTH211
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

FAILED = 125
MARK = "wheelmill sandbox: "

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_SLAVE, MS_RELATIME = 1024, 2048, 4096, 16384, 1 << 19, 1 << 21
KEPT_FLAGS = (
    (2, MS_NOSUID),
    (4, MS_NODEV),
    (8, MS_NOEXEC),
    (1024, MS_NOATIME),
    (2048, MS_NODIRATIME),
    (4096, MS_RELATIME),
)
"""statvfs flags and the mount flags that say the same: a remount in a user namespace must repeat them."""
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITY_VERSION = 0x20080522
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
EINVAL = 22
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MEMORY_FOLDER = "size=1g,mode=1777"

DEVICES = ("null", "zero", "full", "random", "urandom")
PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "asound", "mtrr")
PROC_HIDDEN = ("kcore", "keys", "key-users", "timer_list", "sched_debug", "latency_stats", "kmsg", "acpi", "scsi")

LIBC = ctypes.CDLL(None, use_errno=True)


class Unmakable(Exception):  # noqa: N818 - an answer, no error of ours
    """The sandbox cannot be made: which step failed, and what the kernel said."""


def call(step: str, name: str, *arguments: object) -> int:
    """Call the C library; Unmakable with the step's name when it fails."""
    result = int(getattr(LIBC, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise Unmakable(f"{step}: {os.strerror(number)} (errno {number})")
    return result


def system_call(step: str, numbers: Mapping[str, int], *arguments: object) -> int:
    """Make a system call that the C library has no function for."""
    return call(step, "syscall", ctypes.c_long(numbers[os.uname().machine]), *arguments)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount; Unmakable says what and where."""
    step = f"mount {source or kind} at {target}" if not flags & MS_REMOUNT else f"remount {target}"
    call(
        step,
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() or None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


# The supervisor ------------------------------------------------------------------------------------------


def supervise(config: Mapping[str, object], argv: Sequence[str], parent: int) -> int:
    """Make the namespaces, start init in them, and give the command's exit status."""
    journal = config.get("journal")
    sink = os.open(str(journal), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if journal else -1
    user, group = os.geteuid(), os.getegid()
    call("new namespaces", "unshare", NAMESPACES)
    die_with_parent()
    if os.getppid() != parent or hung_up(1):
        return FAILED  # whoever started us was gone before the kernel knew that we care
    map_ids(config, user, group)
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(theirs)
        run_init(config, argv, sink, ours)
    os.close(ours)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(pid, signal.SIGKILL))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def die_with_parent() -> None:
    """Have the kernel kill us as soon as our parent has died."""
    call("parent-death signal", "prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hung_up(descriptor: int) -> bool:
    """Tell whether nobody holds the other end of a pipe any more."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(mask & (select.POLLERR | select.POLLHUP) for _, mask in poll.poll(0))


def map_ids(config: Mapping[str, object], user: int, group: int) -> None:
    """Map the one user and group outside, root or not, to unprivileged ones inside."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{config['uid']} {user} 1"),
        ("gid_map", f"{config['gid']} {group} 1"),
    ):
        try:
            write(f"/proc/self/{name}", text)
        except OSError as error:
            raise Unmakable(f"write {name}: {error.strerror} (errno {error.errno})") from error


def write(path: str, text: str) -> None:
    """Write a kernel file in one system call; a buffered write would swallow the error."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


# Init: the new root --------------------------------------------------------------------------------------


def run_init(config: Mapping[str, object], argv: Sequence[str], sink: int, lifeline: int) -> NoReturn:
    """Build the new root, start the command, reap until it ends."""
    try:
        die_with_parent()
        if hung_up(lifeline):
            os._exit(FAILED)
        resolver = make_network()
        socket.sethostname(str(config["hostname"]))
        os.umask(0o022)
        make_root(config)
        lock_down()
        pid = os.fork()
        if not pid:
            become(argv, str(config["cwd"]))
        os._exit(reap(pid, resolver, Journal(sink)))
    except Unmakable as problem:
        fail(str(problem))
    except OSError as error:
        fail(f"{error.filename or 'sandbox'}: {error.strerror} (errno {error.errno})")


def fail(problem: str) -> NoReturn:
    """Say what is wrong in one line, and end."""
    os.write(2, f"{MARK}{problem}\n".encode("utf-8", "surrogateescape"))
    os._exit(FAILED)


def make_network() -> socket.socket | None:
    """Bring the loopback device up and listen for questions about names; None where that is not to be had."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            request = bytearray(struct.pack("16sH22x", b"lo", 0))
            call("loopback flags", "ioctl", control.fileno(), SIOCGIFFLAGS, (ctypes.c_char * 40).from_buffer(request))
            flags = struct.unpack_from("H", request, 16)[0] | IFF_UP
            struct.pack_into("H", request, 16, flags)
            call("loopback up", "ioctl", control.fileno(), SIOCSIFFLAGS, (ctypes.c_char * 40).from_buffer(request))
        resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        resolver.bind(("127.0.0.1", 53))
    except (OSError, Unmakable):
        return None  # the network is cut all the same, only nobody writes the attempts down
    return resolver


def make_root(config: Mapping[str, object]) -> None:
    """Put a root together from what is declared, and make it the only one."""
    mount("none", "/", flags=MS_SLAVE | MS_REC)
    base = "/tmp"  # noqa: S108 - any folder that is there on every machine; it is covered for us alone
    mount("tmpfs", base, "tmpfs", MS_NOSUID | MS_NODEV, "size=64m,mode=755")
    for name in ("new", "old"):
        os.mkdir(f"{base}/{name}", 0o755)
    mount(f"{base}/new", f"{base}/new", flags=MS_BIND | MS_REC)
    os.chdir(base)
    system_call("pivot_root", PIVOT_ROOT, b".", b"old")
    os.chdir("/")
    fill(config)
    make_proc()
    make_devices()
    call("leave the old root", "umount2", b"/old", MNT_DETACH)
    os.chdir("/new")
    system_call("pivot_root", PIVOT_ROOT, b".", b".")
    call("leave the outer root", "umount2", b".", MNT_DETACH)
    os.chdir("/")
    mount("none", "/", flags=MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def fill(config: Mapping[str, object]) -> None:
    """Bind, write and link what the configuration names, in its order."""
    for kind, target, value in rows(config["entries"]):
        inside = f"/new{target}"
        if kind == "folder":
            os.makedirs(inside, exist_ok=True)
            continue
        if kind == "empty":
            if os.path.isdir(inside):
                mount("tmpfs", inside, "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "size=4k,mode=755")
            continue
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        if kind == "link":
            os.symlink(value, inside)
        elif kind == "file":
            with open(inside, "x", encoding="utf-8") as file:
                file.write(value)
        else:
            bind(f"/old{value}", inside, writable=kind == "writable")


def rows(entries: object) -> Iterator[tuple[str, str, str]]:
    """Give the entries of the configuration: kind, path inside, and what it is."""
    for entry in entries if isinstance(entries, list) else []:
        kind, target, value = entry
        yield str(kind), str(target), str(value)


def bind(source: str, target: str, *, writable: bool) -> None:
    """Show a file or a folder of the old root, with whatever is mounted below it."""
    if not os.path.lexists(target):
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            with open(target, "x", encoding="utf-8"):
                pass
    mount(source, target, flags=MS_BIND | MS_REC)
    for place in mounted_below(target):
        try:
            restrict(place, 0 if writable else MS_RDONLY)
        except Unmakable:
            if place == target:
                raise
            # Not reachable by its path, so the build cannot reach it either.


def mounted_below(target: str) -> list[str]:
    """List the mounts at and below a path, outermost first."""
    with open("/old/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        places = [unescape(line.split()[4]) for line in file]
    return sorted({place for place in places if place == target or place.startswith(f"{target}/")})


def unescape(text: str) -> str:
    """Read a path of mountinfo, where blanks are written in octal."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


def restrict(place: str, more: int) -> None:
    """Remount one mount without set-user-id programs and devices, and with `more`; what it forbids already stays."""
    known = os.statvfs(place).f_flag
    flags = MS_NOSUID | MS_NODEV | more | (MS_RDONLY if known & 1 else 0)
    for seen, flag in KEPT_FLAGS:
        flags |= flag if known & seen else 0
    mount("none", place, flags=MS_REMOUNT | MS_BIND | flags)


def make_proc() -> None:
    """Mount the new pid namespace's own /proc; what takes orders from user id 0 alone is read-only or covered."""
    os.makedirs("/new/proc", exist_ok=True)
    mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # Nobody inside may become root of a namespace below and mount again.
    with suppress(OSError):
        write("/new/proc/sys/user/max_user_namespaces", "0")
    for name in PROC_READ_ONLY:
        place = f"/new/proc/{name}"
        if os.path.exists(place):
            mount(place, place, flags=MS_BIND | MS_REC)
            restrict(place, MS_RDONLY | MS_NOEXEC)
    for name in PROC_HIDDEN:
        place = f"/new/proc/{name}"
        if os.path.isdir(place):
            mount("tmpfs", place, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,mode=755")
        elif os.path.exists(place):
            mount("/old/dev/null", place, flags=MS_BIND)


def make_devices() -> None:
    """Show the devices without which programs fail; a user namespace cannot make any of its own."""
    os.makedirs("/new/dev/shm", exist_ok=True)
    for name in DEVICES:
        place = f"/new/dev/{name}"
        with open(place, "x", encoding="utf-8"):
            pass
        mount(f"/old/dev/{name}", place, flags=MS_BIND)
    for target, name in (
        ("/proc/self/fd", "fd"),
        ("/proc/self/fd/0", "stdin"),
        ("/proc/self/fd/1", "stdout"),
        ("/proc/self/fd/2", "stderr"),
    ):
        os.symlink(target, f"/new/dev/{name}")
    mount("tmpfs", "/new/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, MEMORY_FOLDER)


def lock_down() -> None:
    """Give up every capability for good, ours and our children's; nobody inside may look into us."""
    for capability in range(64):
        if LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 and ctypes.get_errno() == EINVAL:
            break  # the kernel knows no more
    call("no new privileges", "prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    system_call("drop capabilities", CAPSET, header, struct.pack("6I", *[0] * 6))
    call("not dumpable", "prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)


def become(argv: Sequence[str], cwd: str) -> NoReturn:
    """Become the command: a session of its own, no files but the three, signals as a shell would have them."""
    try:
        os.setsid()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), os.environ)  # noqa: S606 - that is the task
    except OSError as error:
        fail(f"run {argv[0]}: {error.strerror} (errno {error.errno})")


# Init: waiting -------------------------------------------------------------------------------------------


class Journal:
    """Where init writes what the command tried; the file lies outside, the command has no way to it."""

    def __init__(self, sink: int) -> None:
        self.sink = sink
        self.known: set[tuple[str, str, str]] = set()

    def note(self, kind: str, program: str, subject: str) -> None:
        """Write a line, each only once."""
        entry = (kind, program, subject)
        if self.sink < 0 or entry in self.known or len(self.known) > 1000:
            return
        self.known.add(entry)
        line = json.dumps({"kind": kind, "program": program, "subject": subject}) + "\n"
        with suppress(OSError):
            os.write(self.sink, line.encode())


def reap(pid: int, resolver: socket.socket | None, journal: Journal) -> int:
    """Collect every process that ends and answer questions, until the command has ended; give its status."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    sources: list[int | socket.socket] = [reader, *([resolver] if resolver else [])]
    while True:
        while True:
            try:
                gone, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return FAILED
            if gone == pid:
                note_left(journal)
                note_unrouted(journal)
                code = os.waitstatus_to_exitcode(status)
                return 128 - code if code < 0 else code
            if not gone:
                break
        ready, _, _ = select.select(sources, [], [])
        if reader in ready:
            os.read(reader, 4096)
        if resolver is not None and resolver in ready:
            with suppress(OSError):
                answer(resolver, journal)


def note_unrouted(journal: Journal) -> None:
    """Write down that somebody tried to reach an address by its number: nothing but the kernel's counters saw it.

    As UTF-8: no other codec can be loaded any more, the interpreter's own files lie outside.
    """
    tries = 0
    with suppress(OSError, ValueError, IndexError), open("/proc/net/snmp", encoding="utf-8") as file:
        names, values = [line.split() for line in file if line.startswith("Ip:")][:2]
        tries += int(values[names.index("OutNoRoutes")])
    with suppress(OSError, ValueError, IndexError), open("/proc/net/snmp6", encoding="utf-8") as file:
        tries += sum(int(line.split()[1]) for line in file if line.startswith("Ip6OutNoRoutes"))
    if tries:
        journal.note("address", "a program", "an address" if tries == 1 else f"addresses, {tries} times")


def note_left(journal: Journal) -> None:
    """Write down who is still running when the command has ended: the kernel ends them with us.

    Once more after a moment, since helpers of a finished command may be on their way out.
    """
    if not others():
        return
    time.sleep(0.05)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    for other in others():
        journal.note("left", program_of(other), str(other))


def others() -> list[int]:
    """List every process but us that is no zombie."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                if file.read().rpartition(")")[2].split()[0] != "Z":
                    found.append(int(name))
    return found


def answer(resolver: socket.socket, journal: Journal) -> None:
    """Answer one question about a name: there is no such name; and write down who asked."""
    question, asker = resolver.recvfrom(4096)
    name = name_in(question)
    if name:
        journal.note("name", asking_program(asker[1]), name)
    if len(question) >= 12:
        end = 12 + question[12:].find(b"\0") + 5
        resolver.sendto(question[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + question[12:end], asker)


def name_in(question: bytes) -> str:
    """Read the name out of a DNS question; empty where there is none."""
    labels, at = [], 12
    while at < len(question) and question[at]:
        labels.append(question[at + 1 : at + 1 + question[at]].decode("utf-8", "replace"))
        at += 1 + question[at]
    return ".".join(labels)


def asking_program(port: int) -> str:
    """Find the program behind a UDP port of this namespace."""
    with open("/proc/net/udp", encoding="utf-8") as file:
        lines = [line.split() for line in file][1:]
    inodes = {fields[9] for fields in lines if int(fields[1].rpartition(":")[2], 16) == port}
    for pid in others():
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                    if target.startswith("socket:[") and target[8:-1] in inodes:
                        return program_of(pid)
    return "a program"


def program_of(pid: int) -> str:
    """Give a process's command line, its first words."""
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = [word.decode("utf-8", "replace") for word in file.read(4096).split(b"\0") if word]
        if words:
            return " ".join([os.path.basename(words[0]), *words[1:4]])[:200]
    return f"process {pid}"


def main() -> int:
    """Run as `_sandbox.py CONFIG -- COMMAND…`."""
    parent = os.getppid()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            config = json.load(file)
        return supervise(config, sys.argv[3:], parent)
    except Unmakable as problem:
        fail(str(problem))
    except OSError as error:
        fail(f"{error.filename or 'sandbox'}: {error.strerror} (errno {error.errno})")


if __name__ == "__main__":
    sys.exit(main())
