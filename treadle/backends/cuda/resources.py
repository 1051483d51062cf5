"""Registers and shared memory of a compiled kernel, and how many of its blocks fit on a multiprocessor.

They are read from the cubin: ptxas prints them under `-v`, but not where NVRTC has compiled the same text before.
`.nv.info` and the encoding of instructions have no public documentation; the tests compare with what ptxas prints.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from treadle.backends.cuda.elf import Elf, Section
from treadle.schedules.occupancy import Occupancy, occupancy_of
from treadle.target import Target

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


def occupancy(resources: Resources, target: Target, threads: int, dynamic_shared: int = 0) -> Occupancy:
    """The theoretical occupancy of a kernel launched with `threads` per block on `target`.

    `dynamic_shared` is the launch's dynamic shared memory in bytes. Raises what `occupancy_of` raises.
    """
    return occupancy_of(target, threads, resources.registers, resources.shared_bytes + dynamic_shared)
