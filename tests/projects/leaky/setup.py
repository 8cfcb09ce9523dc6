"""A build that lets the clock and chance into its wheel: into compiled code, and into a module."""

import os
import time

from setuptools import Extension, setup

names = [f"name{number}" for number in range(8)]
names.sort(key=lambda _name: os.urandom(8))
with open("leaky/order.py", "w") as file:
    file.write("\n".join(f"{name} = 1" for name in names) + "\n")

macro = ("BUILT", f'"built at {time.time_ns()}"')
setup(packages=["leaky"], ext_modules=[Extension("leaky._c", ["leaky/c.c"], define_macros=[macro])])
