"""Which functions treadle_cuda.h defines, its macros expanded."""

from __future__ import annotations

import re
import subprocess

from treadle.backends.c.compiler import find_toolchain
from treadle.backends.cuda.compiler import HEADER
from treadle.environment import load_environment

# A definition begins with `inline`; its name stands before the first parenthesis.
_DEFINITION = re.compile(r"\binline\b[^(){};]*?\b(operator\s*[-+*/=]+|treadle_\w+)\s*\(")


def functions_of_header() -> set[str]:
    """The names of all functions and operators; overloads share one."""
    command = [*find_toolchain(load_environment()).command, "-E", "-P", "-x", "c++", str(HEADER)]
    expanded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return functions_of(expanded)


def functions_of(expanded: str) -> set[str]:
    """The names in a text without macros."""
    return {re.sub(r"\s", "", name) for name in _DEFINITION.findall(expanded)}
