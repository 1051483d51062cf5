"""Pooling, depthwise and grouped convolution on a GPU: a thread keeps what neighbouring windows share in registers."""

from __future__ import annotations

from math import ceil, prod
from typing import ClassVar

from treadle.dialects.graph import ComputeOp, WholeOp
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import KernelOp
from treadle.dialects.loop.tiles import SECTOR_BYTES
from treadle.dialects.schedule import Choice
from treadle.schedules.access_analysis import Windows, vector_width, windows_of
from treadle.schedules.kernel_builder import kernel_builder
from treadle.schedules.template import Anchor, Choices, Knob, Template, check_limit, number
from treadle.schedules.templates.window_tile import WindowTile
from treadle.target import Target

_FEW = 2048
"""Elements of a result up to which threads are better used on the terms."""
_MANY_TERMS = 512
"""Terms of a window from which on the terms are better shared out."""
_WIDEST = 16
"""Elements of a window up to which several windows fit into registers."""

_LONGEST_BYTES = 16
"""What a thread moves at once, at most."""
_MOST_REGISTERS = 128
"""Inputs, shared terms and accumulators that a thread may keep in registers."""


class WindowCuda(Template):
    """Consecutive threads compute elements that are consecutive along the result's last dimension, so that reads and
    writes are coalesced; a thread computes `windows` neighbours along another one, whose windows overlap.

    Rows that begin at sectors are not cut among blocks, if a block has room for one: the windows of a row share what
    lies between them, and neither of two blocks would need all of the sector at the cut.

    The elements under its windows are read once, into registers, and so are terms that do not depend on the window,
    such as weights: a 3x3 depthwise convolution reads 6.75 instead of 18 values an element with four windows a thread.
    With channels last, a thread computes `vector` neighbouring channels, which one access reads.
    """

    name: ClassVar[str] = "window_cuda"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("threads", (64, 128, 256), "threads of a block, at most: whole rows that begin at sectors are taken"),
        Knob("windows", (1, 2, 4, 8), "neighbouring windows of a thread"),
        Knob("vector", (1, 2, 4, 8), "consecutive elements along the last dimension that a thread takes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if isinstance(anchor, WholeOp) or prod(anchor.shape) <= _FEW:
            return False
        reduce = only_reduce(anchor)
        if reduce is None or prod(reduce.shape) > _MANY_TERMS:
            return False
        windows = windows_of(anchor, reduce)
        return windows is not None and windows.width <= _WIDEST

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        windows = _windows(anchor)
        # Four warps everywhere come before more elements a thread. Windows save reads, vectors only instructions.
        most = prod(anchor.shape) // (4 * target.warp_size * target.multiprocessors)
        count = next(n for n in (4, 2, 1) if n <= max(1, min(most, windows.extent)))
        widest = min(_widest_vector(anchor), most // count)
        vector = next(
            n for n in (8, 4, 2, 1) if n == 1 or (n <= widest and _registers(windows, count, n) <= _MOST_REGISTERS)
        )
        # Of two sizes the one whose warps have more busy lanes.
        threads = max((128, 256), key=lambda n: _busy(_block_threads(anchor, n, vector), target.warp_size))
        return {"threads": threads, "windows": count, "vector": vector}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        vector, widest = number(choices, "vector"), _widest_vector(anchor)
        message = f"{self.name}: {vector} consecutive elements of reads are not one access, {vector - widest} too many"
        accepted = f"vector = {widest} or less for {anchor.type}"
        check_limit("consecutive elements of an access", vector, widest, None, message, accepted)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        return _kernel(anchor, choices, name)


def _windows(anchor: Anchor) -> Windows:
    assert isinstance(anchor, ComputeOp)
    reduce = only_reduce(anchor)
    windows = None if reduce is None else windows_of(anchor, reduce)
    assert windows is not None, "fits rejects definitions without windows"
    return windows


def _block_threads(anchor: Anchor, most: int, vector: int) -> int:
    """Threads of a block, each with a vector of elements: as many whole rows of the result as there is room for, if
    rows begin at sectors."""
    elements = anchor.shape[-1]
    row = elements // vector
    begins_at_sectors = elements * byte_width(anchor.type.get_element_type()) % SECTOR_BYTES == 0
    return most // row * row if begins_at_sectors and row <= most else most


def _busy(threads: int, warp: int) -> float:
    """The part of a block's lanes that have a thread."""
    return threads / (ceil(threads / warp) * warp)


def _widest_vector(anchor: Anchor) -> int:
    """Consecutive elements along the last dimension that one access of each read takes."""
    assert isinstance(anchor, ComputeOp)
    most = max(1, _LONGEST_BYTES // byte_width(anchor.type.get_element_type()))
    return vector_width(anchor, anchor.body.block.args[-1], most)


def _registers(windows: Windows, count: int, vector: int) -> int:
    """Values that a thread of `count` windows of `vector` elements each keeps in registers."""
    span = (count - 1) * windows.step + windows.width
    return vector * (span * len(windows.sliding) + windows.width * len(windows.shared) + count)


def _kernel(compute: ComputeOp, choices: Choices, name: str) -> KernelOp:
    """The kernel in which each thread computes a tile."""
    windows, count, vector = _windows(compute), number(choices, "windows"), number(choices, "vector")
    threads, tensors = _block_threads(compute, number(choices, "threads"), vector), compute.tensors()
    b = kernel_builder(tensors, compute.type)
    shape = list(compute.shape)
    shape[windows.dim] = ceil(shape[windows.dim] / count)
    shape[-1] //= vector
    total = prod(shape)
    position = b.block * threads + b.thread
    with b.when(position < total if total % threads else None):
        index = position.delinearize(shape)
        index[windows.dim] = index[windows.dim] * count
        index[-1] = index[-1] * vector
        WindowTile(b, windows, count, vector, exact=windows.extent % count == 0).write(index)
    comment = f"{compute.operators.data if compute.operators is not None else 'windows'} to {compute.type}"
    return b.kernel(name, tensors, compute.type, ceil(total / threads), threads, comment)
