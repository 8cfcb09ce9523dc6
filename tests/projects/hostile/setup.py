"""A build that tries to get out: each attempt and what came of it is printed, then it fails."""

import ctypes
import os
import socket
import sys
import time

OUTSIDE, PORT, TOKEN = "@OUTSIDE@", "@PORT@", "@TOKEN@"
LIBC = ctypes.CDLL(None, use_errno=True)


def kernel(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path):
    with open(path) as file:
        return file.read()


def write(path, mode="a"):
    with open(path, mode) as file:
        file.write("import os\n")


def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(3):
                os.close(number)
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", TOKEN])
        os._exit(0)
    os.wait()
    time.sleep(0.5)


def remount(path):
    kernel(LIBC.mount(b"none", path.encode(), None, 32 | 4096, None))  # MS_REMOUNT | MS_BIND: writable again


def link(source):
    os.link(source, "/wheelmill/out/linked")
    write("/wheelmill/out/linked")


def connect(host, port):
    socket.create_connection((host, port), timeout=5).close()


SITE = next(path for path in sys.path if path.endswith("site-packages"))
ATTEMPTS = {
    "read the home": lambda: read(f"{OUTSIDE}/secret"),
    "list the root's home": lambda: os.listdir("/root"),
    "write outside": lambda: write(f"{OUTSIDE}/planted"),
    "write to /usr": lambda: write("/usr/planted"),
    "write to /": lambda: write("/planted"),
    "lift a read-only mount": lambda: remount("/wheelmill/env"),
    "become root of a namespace": lambda: kernel(LIBC.unshare(0x10000000 | 0x20000)),
    "set a sysctl": lambda: write("/proc/sys/kernel/core_pattern", "w"),
    "press sysrq": lambda: write("/proc/sysrq-trigger", "w"),
    "make a cgroup": lambda: os.makedirs("/sys/fs/cgroup/planted"),
    "connect to the machine": lambda: connect("127.0.0.1", int(PORT)),
    "connect to a name": lambda: connect("files.example.org", 443),
    "connect to an address": lambda: connect("192.0.2.1", 443),
    "change a package": lambda: write(f"{SITE}/torch/__init__.py"),
    "plant a .pth": lambda: write(f"{SITE}/planted.pth", "w"),
    "link into uv's cache": lambda: link(f"{SITE}/torch/__init__.py"),
    "change the compiler": lambda: write("/wheelmill/shims/bin/gcc"),
    "change the toolkit": lambda: write("/wheelmill/cuda/include/cuda.h"),
    "poison another recipe's objects": lambda: write("/wheelmill/objects/../torch-cuda-ext/poison"),
    "look into init": lambda: [os.readlink(f"/proc/1/fd/{name}") for name in os.listdir("/proc/1/fd")],
    "write init's journal": lambda: [write(f"/proc/1/fd/{name}") for name in os.listdir("/proc/1/fd")],
    "read init's environment": lambda: read("/proc/1/environ"),
    "write to init": lambda: write("/proc/1/mem"),
    "list processes outside": lambda: None if len(os.listdir("/proc")) > 1000 else read("/proc/99999/stat"),
}


def attempt(name, action):
    try:
        action()
    except OSError as error:
        print(f"ATTEMPT {name}: failed with {error.errno}", flush=True)
    else:
        print(f"ATTEMPT {name}: DONE", flush=True)


for name, action in ATTEMPTS.items():
    attempt(name, action)
os.kill(1, 9)
daemon()
print(f"ATTEMPT ids: {os.getuid()} {os.getgid()} {os.getpid() < 100}", flush=True)
print(f"ATTEMPT environment: {' '.join(sorted(os.environ))}", flush=True)
sys.exit("the hostile build has done what it could")
