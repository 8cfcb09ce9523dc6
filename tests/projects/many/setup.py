"""Sixty small C++ units side by side: each takes little time, and 60 to 250 MB of memory for the texts that it reads.

The wheel holds what they are linked to, and the digest of every object.
"""

import hashlib
import json
import os
import subprocess
import tomllib

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

with open("pyproject.toml", "rb") as file:
    NAME = tomllib.load(file)["project"]["name"]
UNITS = 60
WORK = "build/work"
TEXTS = [1, 1, 2, 1, 3, 1, 1, 8, 1, 1, 2, 5]
FLAGS = f"-O1 -g0 -fPIC -DNAME={NAME.replace('-', '_')}"


def write(path, text):
    """Write a file at once, with a time that says nothing: a build may end at any moment, and go on later."""
    with open(path + ".new", "w") as file:
        file.write(text)
    os.utime(path + ".new", (1_700_000_000, 1_700_000_000))
    os.replace(path + ".new", path)


def unit(number):
    """Give a unit's source."""
    texts = range(TEXTS[number % len(TEXTS)])
    tables = "".join(f'static const char text{each}[] =\n#include "text.inc"\n;\n' for each in texts)
    return f'{tables}extern "C" long unit{number}() {{ return {number} + {" + ".join(f"sizeof text{each}" for each in texts)}; }}\n'


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Build(build_ext):
    def build_extension(self, ext):
        os.makedirs(WORK, exist_ok=True)
        write(f"{WORK}/text.inc", 'R"(' + ("x" * 127 + "\n") * (8 << 13) + ')"\n')
        rules = f"builddir = {WORK}\nrule cc\n  command = g++ {FLAGS} -MD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
        rules += f"rule link\n  command = g++ -shared {FLAGS} $in -o $out\n"
        objects = []
        for number in range(UNITS):
            write(f"{WORK}/unit{number:02}.cpp", unit(number))
            objects.append(f"{WORK}/unit{number:02}.o")
            rules += f"build {objects[-1]}: cc {WORK}/unit{number:02}.cpp\n"
        write(f"{WORK}/build.ninja", rules + f"build {WORK}/units.so: link {' '.join(objects)}\n")
        subprocess.run(["ninja", "-f", f"{WORK}/build.ninja", "-j", os.environ["MAX_JOBS"]], check=True)
        target = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        self.copy_file(f"{WORK}/units.so", target)
        digests = {os.path.basename(path): digest(path) for path in objects}
        write(os.path.join(os.path.dirname(target), "objects.json"), json.dumps(digests, indent=1) + "\n")


setup(ext_modules=[Extension("many._units", [])], cmdclass={"build_ext": Build})
