"""How many bits the index arithmetic of a kernel needs, by the ranges of its values, not by the sizes of its
buffers."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, MemRefType
from xdsl.ir import Operation, SSAValue

from treadle.errors import TreadleError
from treadle.index.ranges import Range, is_inside, range_sum, range_union
from treadle.index.reader import IndexReader

_NARROW: Range = (-(1 << 31), (1 << 31) - 1)
"""The range of an integer of 32 bits."""


def index_reach(root: Operation) -> Range:
    """Bounds of every index that is computed inside an operation; None on a side where one is not known.

    Intermediate results count (a product that is divided again, what a dividend is shifted by), as do a loop's variable
    after its last iteration and the addresses of the elements of local buffers, which text may compute from indices.
    """
    total: Range = (0, 0)
    reader = IndexReader()
    for op in root.walk():
        for found in _reached(op, reader):
            total = range_union(total, found)
    return total


def index_bits(root: Operation, where: str) -> int:
    """32 or 64: the bits that every index inside an operation fits; 64 where bounds are not known.

    Raises TreadleError, naming `where`, for an index that is known to reach beyond 64 bits.
    """
    reach = index_reach(root)
    lo, hi = reach
    if (lo is not None and lo < -(1 << 63)) or (hi is not None and hi >= 1 << 63):
        raise TreadleError(
            f"an index reaches {lo} to {hi}", where, "tensors whose positions fit 64 bits, stored or not"
        )
    return 32 if is_inside(reach, _NARROW) else 64


def _reached(op: Operation, reader: IndexReader) -> Iterator[Range]:
    if isinstance(op, scf.ForOp) and isinstance(op.lb.type, IndexType):
        yield range_sum(reader.read(op.body.block.args[0]).range(), reader.read(op.step).range())
    for value in _defined(op):
        if isinstance(value.type, IndexType):
            yield reader.read(value).range()
        elif isinstance(value.type, MemRefType):
            yield 0, prod(value.type.get_shape())


def _defined(op: Operation) -> Iterator[SSAValue]:
    yield from op.results
    for region in op.regions:
        for block in region.blocks:
            yield from block.args


__all__ = ["index_bits", "index_reach"]
