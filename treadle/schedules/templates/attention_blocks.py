"""What the kernels of attention share: a block's work tile, and the elements of a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from xdsl.dialects.builtin import TensorType, f32

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.movement import extent
from treadle.schedules.index_value import Index, all_of
from treadle.schedules.kernel_builder import KernelBuilder


@dataclass(frozen=True)
class WorkTile:
    """A block's part of the result, and the keys that it reads.

    first_row: of the block; head: of queries and result; shared_head: of keys and values; tiles: of keys that the
    block reads; most_tiles: that any block reads; length: how many keys exist
    """

    first_row: Index
    head: Sequence[Index]
    shared_head: Sequence[Index]
    tiles: Index
    most_tiles: int
    length: Index | int


def blocks_of(anchor: AttentionOp, rows: int) -> int:
    """How many blocks of so many rows there are."""
    return prod(anchor.shape[:-2]) * ceil(anchor.shape[-2] / rows)


def work_tile(b: KernelBuilder, anchor: AttentionOp, rows: int, columns: int) -> WorkTile:
    """The work tile of the calling thread's block, of `rows` queries and tiles of `columns` keys."""
    m, n = anchor.scores_shape[-2:]
    parts = ceil(m / rows)
    part = b.block % parts
    causal = bool(anchor.causal.value.data)
    # Causal blocks with many keys begin first, so that short ones fill the gaps at the end.
    part = parts - 1 - part if causal else part
    first_row = part * rows
    batch = anchor.shape[:-2]
    head = (b.block // parts).delinearize(batch) if batch else []
    shared_head = [*head[:-1], head[-1] // anchor.group_size] if head else []
    most_tiles = ceil(n / columns)
    length = _length(b, anchor)
    tiles = b.index(most_tiles) if isinstance(length, int) else (length + (columns - 1)) // columns
    if causal:
        seen = first_row + (rows + n - m)
        seen = seen.max(0) if m > n else seen
        tiles = ((seen + (columns - 1)) // columns).min(tiles)
    return WorkTile(first_row, head, shared_head, tiles, most_tiles, length)


def _length(b: KernelBuilder, anchor: AttentionOp) -> Index | int:
    """How many keys exist: all of them without a length, which is the last operand."""
    bound = anchor.scores_shape[-1]
    if anchor.length is None:
        return bound
    b.inputs[-1].name_hint = "N"
    length = extent(b, b.load(b.inputs[-1], []), bound)
    length.name_hint = "length"
    return b.index(length)


def overhangs(total: Index | int, lines: int) -> bool:
    """Whether the last tile of so many lines may reach beyond their end."""
    return not isinstance(total, int) or total % lines > 0


def ragged_end(total: Index | int, lines: int) -> Index | int | None:
    """The end, where the last tile of so many lines may reach beyond it."""
    return total if overhangs(total, lines) else None


def share_of_keys(b: KernelBuilder, length: Index | int, share: Scalar) -> Scalar:
    """A row's share, by which its sums are multiplied; 0 where no key exists, so that nothing was added."""
    return share if isinstance(length, int) else b.select(length > 0, share, b.constant(0, f32))


def mask_varies(mask: TensorType) -> tuple[bool, bool]:
    """Whether a mask has an element of its own for each row, and for each key."""
    shape = mask.get_shape()
    return len(shape) >= 2 and shape[-2] != 1, len(shape) >= 1 and shape[-1] != 1


def mask_element(
    b: KernelBuilder,
    anchor: AttentionOp,
    head: Sequence[Index],
    row: Index,
    column: Index,
    ends: tuple[Index | int | None, Index | int | None],
) -> Scalar:
    """The mask's element for a score; 0 beyond the ends of rows and keys, which are given if tiles reach that far."""
    assert anchor.mask is not None and isinstance(anchor.mask.type, TensorType)
    type = anchor.mask.type
    shape, index = type.get_shape(), [*head, row, column]
    indices = [x if e != 1 else b.constant(0) for e, x in zip(shape, index[len(index) - len(shape) :], strict=True)]
    inside = [
        at < end
        for varies, at, end in zip(mask_varies(type), (row, column), ends, strict=True)
        if varies and end is not None
    ]
    zero = b.constant(0, type.get_element_type()) if inside else None
    return b.load(b.inputs[3], indices, all_of(inside), zero)


__all__ = [
    "WorkTile",
    "blocks_of",
    "mask_element",
    "mask_varies",
    "overhangs",
    "ragged_end",
    "share_of_keys",
    "work_tile",
]
