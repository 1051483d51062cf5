"""The thread-local variables of a shared library: where a kernel's shared memory lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from treadle.backends.cuda.elf import Elf

_TLS = 6
_LOCAL = re.compile(r"E(\d+)([A-Za-z_]\w*)$")


@dataclass(frozen=True)
class Variable:
    """A thread-local variable: its name in the text, its offset in the library's thread-local block, its bytes."""

    name: str
    symbol: str
    """Its name in the library, which distinguishes variables of functions from those of the whole text."""
    offset: int
    bytes: int


def thread_local_variables(library: Path) -> list[Variable]:
    """All of a library's thread-local variables, by offset."""
    found = [s for s in Elf(library.read_bytes()).symbols() if s.kind == _TLS and s.section]
    variables = [Variable(_plain(each.name), each.name, each.value, each.size) for each in found]
    return sorted(variables, key=lambda variable: (variable.offset, variable.name))


def section(library: Path, name: str) -> bytes:
    """The contents of a library's section; nothing where there is none of that name."""
    sections = Elf(library.read_bytes()).sections()
    return next((each.contents for each in sections if each.name == name), b"")


def _plain(mangled: str) -> str:
    """The name in the text of a variable that is local to a function: `_ZZ1kE4tile` is `tile`."""
    without_number = re.sub(r"(?<=\w)_\d+$", "", mangled) if mangled.startswith("_ZZ") else mangled
    match = _LOCAL.search(without_number)
    if match is None or not mangled.startswith("_Z"):
        return mangled
    return match[2][: int(match[1])]
