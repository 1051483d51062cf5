"""The C compilers that the tests of the cpu target run with."""

import dataclasses
import importlib.util
import shutil
import sys
from pathlib import Path

from treadle.environment import Environment, load_environment

COMMANDS: dict[str, tuple[str, ...]] = {
    name: (path,) for name in ("gcc", "clang") if (path := shutil.which(name)) is not None
}
if importlib.util.find_spec("ziglang") is not None:
    COMMANDS["zig"] = (sys.executable, "-m", "ziglang", "cc")


def private_environment(
    cache: Path, command: tuple[str, ...] | None = None, flags: tuple[str, ...] = ()
) -> Environment:
    """This machine's environment with a cache of the test's own, and a compiler and flags if they are named."""
    own = dataclasses.replace(load_environment({}), cache_dir=cache, c_flags=flags)
    return own if command is None else dataclasses.replace(own, c_compiler=command)
