"""A build that takes its time without work: every compile sleeps first; then it fails. It leaves daemons, too."""

import os
import subprocess
import sys

UNITS, SECONDS, TOKEN = int("@UNITS@"), "@SECONDS@", "@TOKEN@"


def daemon(*, own_session, twice):
    if os.fork():
        return
    if own_session:
        os.setsid()
    if twice and os.fork():
        os._exit(0)
    for number in range(3):
        os.close(number)
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", TOKEN])


def write(path, text):
    if not os.path.exists(path):
        with open(path, "w") as file:
            file.write(text)


if sys.argv[1:2] == ["bdist_wheel"]:
    daemon(own_session=False, twice=False)
    daemon(own_session=True, twice=False)
    daemon(own_session=True, twice=True)
    os.makedirs("build", exist_ok=True)
    write("build/slow.sh", f'case "$1" in *cc1plus) sleep {SECONDS};; esac\nexec "$@"\n')
    rule = "rule cc\n  command = g++ -wrapper /bin/sh,build/slow.sh -c $in -o $out\n"
    for number in range(UNITS):
        write(f"build/unit{number}.cc", f"int unit{number}() {{ return {number}; }}\n")
        rule += f"build build/unit{number}.o: cc build/unit{number}.cc\n"
    write("build.ninja", rule)
    print(f"TOKEN {TOKEN}", flush=True)
    subprocess.run(["ninja", "-v", "-j", "2"], check=True)
    sys.exit("the slow build has ended")

from setuptools import setup  # noqa: E402

setup(py_modules=[])
