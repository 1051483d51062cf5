"""The thread-local variables of a shared library: where a kernel's shared memory lies."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
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
    """All of a 64-bit little-endian ELF library's thread-local variables, by offset."""
    data = library.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections: list[tuple[int, ...]] = [_SECTION.unpack_from(data, table + index * size) for index in range(count)]
    variables: list[Variable] = []
    for _, kind, _, _, offset, length, link, _, _, _ in sections:
        if kind != _SYMTAB:
            continue
        strings = sections[link][4]
        for entry in range(offset, offset + length, _SYMBOL.size):
            name, info, _, section, value, extent = _SYMBOL.unpack_from(data, entry)
            if info & 15 == _TLS and section:
                end = data.index(b"\0", strings + name)
                symbol = data[strings + name : end].decode()
                variables.append(Variable(_plain(symbol), symbol, value, extent))
    return sorted(variables, key=lambda variable: (variable.offset, variable.name))


def section(library: Path, name: str) -> bytes:
    """The contents of a 64-bit little-endian ELF library's section; nothing where there is none of that name."""
    data = library.read_bytes()
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections: list[tuple[int, ...]] = [_SECTION.unpack_from(data, table + index * size) for index in range(count)]
    for name_offset, _, _, _, offset, length, *_ in sections:
        start = sections[names][4] + name_offset
        if data[start : data.index(b"\0", start)].decode() == name:
            return data[offset : offset + length]
    return b""


def _plain(mangled: str) -> str:
    """The name in the text of a variable that is local to a function: `_ZZ1kE4tile` is `tile`."""
    without_number = re.sub(r"(?<=\w)_\d+$", "", mangled) if mangled.startswith("_ZZ") else mangled
    match = _LOCAL.search(without_number)
    if match is None or not mangled.startswith("_Z"):
        return mangled
    return match[2][: int(match[1])]
