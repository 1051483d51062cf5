"""State that the blocks of a launch share: the launch's buffers, and the counters at which blocks arrive."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute

from treadle.dialects.loop import Space, SpaceAttr
from treadle.errors import TreadleError

LAUNCH = "launch"
"""The key, in a block's shared state, of the state that all blocks of the launch share."""


def space_of(type: Attribute) -> Space | None:
    """The memory space of a buffer; None for tensors, and for what is no buffer of the loop dialect."""
    if not isinstance(type, MemRefType) or not isinstance(type.memory_space, SpaceAttr):
        return None
    return type.memory_space.data


def is_of_launch(type: Attribute) -> bool:
    """Whether the buffer belongs to the launch."""
    space = space_of(type)
    return space is not None and space.is_global


def initial(type: Attribute) -> int | None:
    """A buffer's elements before the kernel begins: unset, or 0."""
    return 0 if space_of(type) is Space.ZEROED else None


def fresh(type: MemRefType[Attribute]) -> list[Any]:
    """A buffer before the kernel begins."""
    return [initial(type)] * prod(type.get_shape())


def arrive(shared: dict[Any, Any], number: int, counters: list[int], index: int, blocks: int) -> bool:
    """What `loop.arrive` gives a thread; `number` is the operation's. The first thread counts for its block."""
    if number not in shared:
        counters[index] = (counters[index] + 1) % blocks
        shared[number] = index, counters[index] == 0
    arrived, last = shared[number]
    if arrived != index:
        raise TreadleError(f"threads of a block arrive at counters {arrived} and {index}", "loop.arrive", "one counter")
    return last


def check_zeroed(types: Sequence[MemRefType[Attribute]], buffers: Sequence[list[Any]], where: str) -> None:
    """TreadleError for a zeroed buffer that a launch leaves non-zero."""
    for type, elements in zip(types, buffers, strict=True):
        left = next((n for n, value in enumerate(elements) if value), None)
        if space_of(type) is Space.ZEROED and left is not None:
            raise TreadleError(f"element {left} of {type} is {elements[left]} after the launch", where, "0")


__all__ = ["LAUNCH", "arrive", "check_zeroed", "fresh", "initial", "is_of_launch", "space_of"]
