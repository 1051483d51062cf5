"""The C compilers that the tests of the cpu target run with."""

import ctypes
import dataclasses
import importlib.util
import shutil
import sys
from itertools import product
from pathlib import Path

from treadle.backends.c.compiler import Unit, compile_objects, link
from treadle.environment import Environment, load_environment
from treadle.target import TARGETS

COMMANDS: dict[str, tuple[str, ...]] = {
    name: (path,) for name in ("gcc", "clang") if (path := shutil.which(name)) is not None
}
if importlib.util.find_spec("ziglang") is not None:
    COMMANDS["zig"] = (sys.executable, "-m", "ziglang", "cc")
CLANG = COMMANDS.get("clang") or COMMANDS.get("zig")
"""The installed one, else that of the ziglang wheel; None without either."""
BUILDS = list(product(COMMANDS, ("cpu", "avx2", "sse2")))
"""For headers, whose functions have a form for each of these targets."""


def private_environment(
    cache: Path, command: tuple[str, ...] | None = None, flags: tuple[str, ...] = ()
) -> Environment:
    """This machine's environment with a cache of the test's own, and a compiler and flags if they are named."""
    own = dataclasses.replace(load_environment({}), cache_dir=cache, c_flags=flags)
    return own if command is None else dataclasses.replace(own, c_compiler=command)


def library_of(text: str, build: tuple[str, str], folder: Path, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """C text that includes treadle.h, compiled for one of BUILDS with a cache in `folder`."""
    name, target = build
    chosen = private_environment(folder, COMMANDS[name], flags)
    objects = compile_objects([Unit("header", f'#include "treadle.h"\n{text}')], chosen, target=TARGETS[target])
    return ctypes.CDLL(str(link(objects, chosen)))
