"""Sections and symbols of a 64-bit little-endian ELF file: a library of the emulator, or a cubin."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB = 2
_NOBITS = 8


@dataclass(frozen=True)
class Section:
    """A named part of the file; `size` bytes of memory, of which one without contents (`.bss`) has none in the file."""

    name: str
    size: int
    contents: bytes


@dataclass(frozen=True)
class Symbol:
    """An entry of a symbol table: the index in it, the kind, the section's index (0: none), the value, the bytes."""

    name: str
    index: int
    kind: int
    section: int
    value: int
    size: int


class Elf:
    """An ELF file's tables."""

    def __init__(self, data: bytes):
        self._data = data
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count, self._names = struct.unpack_from("<HHH", data, 0x3A)
        self._headers: list[tuple[int, ...]] = [_SECTION.unpack_from(data, table + n * size) for n in range(count)]

    def sections(self) -> Iterator[Section]:
        """In the order of the file."""
        names = self._headers[self._names][4]
        for name, kind, _, _, offset, size, *_ in self._headers:
            contents = b"" if kind == _NOBITS else self._data[offset : offset + size]
            yield Section(self._text(names + name), size, contents)

    def symbols(self) -> Iterator[Symbol]:
        """Of the table that is not only for dynamic linking."""
        for _, kind, _, _, offset, length, link, *_ in self._headers:
            if kind != _SYMTAB:
                continue
            strings = self._headers[link][4]
            for index, at in enumerate(range(offset, offset + length, _SYMBOL.size)):
                name, info, _, section, value, extent = _SYMBOL.unpack_from(self._data, at)
                yield Symbol(self._text(strings + name), index, info & 15, section, value, extent)

    def _text(self, start: int) -> str:
        return self._data[start : self._data.index(b"\0", start)].decode()


__all__ = ["Elf", "Section", "Symbol"]
