"""What a cubin holds: sections of its ELF file, and the resources of its kernels."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

# Sections and symbols of a 64-bit little-endian ELF file: a library of the emulator, or a cubin.

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


# Registers and shared memory of a compiled kernel.
#
# They are read from the cubin: ptxas prints them under `-v`, but not where NVRTC has compiled the same text before.
# `.nv.info` and the encoding of instructions have no public documentation; the tests compare with what ptxas prints.

_FRAME_SIZE, _REGISTERS = 0x11, 0x2F
"""Attributes of a function: (its symbol's index, the value)."""
_SIZED = 4
"""The format of an attribute whose contents have a length of 16 bits; others have 16 bits of contents."""
_RESERVED_SHARED = 1024
"""Bytes of each block's shared memory that the system has from compute capability 9.0 on."""
_STORE_LOCAL, _LOAD_LOCAL = 0x387, 0x983
_BYTES = (1, 1, 2, 2, 4, 8, 16, 0)
"""What an access to local memory moves, by bits 73 to 75 of the instruction."""


@dataclass(frozen=True)
class Resources:
    """What one kernel uses. Bytes, except for registers of 32 bits per thread."""

    registers: int
    shared_bytes: int = 0
    """Static shared memory of a block."""
    stack_bytes: int = 0
    """Local memory of a thread, spilled registers included."""
    spill_store_bytes: int = 0
    """What the code stores to local memory: spilled registers, and arrays that fit into no registers."""
    spill_load_bytes: int = 0

    @property
    def spills(self) -> bool:
        """Whether the code uses local memory."""
        return self.spill_store_bytes + self.spill_load_bytes > 0


def resources_of(image: bytes) -> dict[str, Resources]:
    """The resources of every kernel of a cubin, by kernel name."""
    elf = Elf(image)
    sections = {section.name: section for section in elf.sections()}
    names = {symbol.index: symbol.name for symbol in elf.symbols()}
    about = list(_attributes(sections[".nv.info"])) if ".nv.info" in sections else []
    values = {(kind, names[symbol]): value for kind, symbol, value in about if symbol in names}
    reserved = _RESERVED_SHARED if ".nv.shared.reserved.0" in sections else 0
    found: dict[str, Resources] = {}
    for name in (each.removeprefix(".text.") for each in sections if each.startswith(".text.")):
        shared = sections.get(f".nv.shared.{name}")
        stored, loaded = _local_bytes(sections[f".text.{name}"].contents)
        found[name] = Resources(
            registers=values[_REGISTERS, name],
            shared_bytes=0 if shared is None else shared.size - reserved,
            stack_bytes=values.get((_FRAME_SIZE, name), 0),
            spill_store_bytes=stored,
            spill_load_bytes=loaded,
        )
    return found


def _attributes(info: Section) -> Iterator[tuple[int, int, int]]:
    """The attributes of functions in `.nv.info`: kind, symbol's index, value."""
    at, data = 0, info.contents
    while at < len(data):
        form, kind, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != _SIZED:
            continue
        if kind in (_FRAME_SIZE, _REGISTERS):
            yield kind, *struct.unpack_from("<II", data, at)
        at += length


def _local_bytes(code: bytes) -> tuple[int, int]:
    """Bytes that instructions, of 16 bytes each, store to local memory and load from it."""
    moved = {_STORE_LOCAL: 0, _LOAD_LOCAL: 0}
    for low, high in struct.iter_unpack("<QQ", code):
        operation = low & 0xFFF
        if operation in moved:
            moved[operation] += _BYTES[high >> 9 & 7]
    return moved[_STORE_LOCAL], moved[_LOAD_LOCAL]
