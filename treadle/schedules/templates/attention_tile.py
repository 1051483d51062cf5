"""The tiles of attention on CUDA cores, by the knobs and the sizes of heads, and what kernels of attention share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod

from xdsl.dialects.builtin import DYNAMIC_INDEX, TensorType, bf16, f16, f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.attention import offset_of
from treadle.dialects.graph.definition import Scalar, widened
from treadle.dialects.graph.movement import extent
from treadle.dialects.loop import Swizzle, swizzle_of_rows
from treadle.dialects.loop.attributes import type_of
from treadle.dialects.loop.tiles import BANKS
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder, all_of
from treadle.schedules.template import Choices, number

_VECTOR = 4
"""Floats of the longest access to shared memory."""
_OTHER_REGISTERS = 48
"""Registers of a thread for addresses, predicates and arithmetic in flight."""


@dataclass(frozen=True)
class AttentionTile:
    """A block's tiles: `rows` queries, `columns` keys with their values, and the weights of these by those.

    Shared memory holds them in f32. `lanes` neighbouring threads take one *strip*: the rows `strip + strips * i`. Of
    a row's keys, a lane takes `lane + lanes * j`; of its result, vectors of neighbours, `lanes` vectors apart.

    size: of a query and a key (D); width: of a value (E)
    """

    rows: int
    columns: int
    threads: int
    lanes: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionTile:
        """The tiles that a choice of knobs means."""
        rows, columns, threads, lanes = (number(choices, knob) for knob in ("rows", "columns", "threads", "lanes"))
        return AttentionTile(rows, columns, threads, lanes, size, width)

    @property
    def strips(self) -> int:
        """Groups of threads that share rows."""
        return self.threads // self.lanes

    @property
    def rows_each(self) -> int:
        """Rows of a thread."""
        return self.rows // self.strips

    @property
    def columns_each(self) -> int:
        """Keys of a thread."""
        return self.columns // self.lanes

    @property
    def padded_size(self) -> int:
        """Elements of a query and a key, with the zeros that fill the last vector."""
        return -(-self.size // _VECTOR) * _VECTOR

    @property
    def key_stride(self) -> int:
        """Elements from one query or key to the next. Lanes that read vectors of neighbouring keys meet in no bank if
        these are an odd number of vectors apart: rows that fill all banks once or more are padded, others swizzled."""
        return self.padded_size + (0 if self.padded_size % BANKS else _VECTOR)

    @property
    def key_swizzle(self) -> Swizzle | None:
        """How the vectors of queries and keys are permuted where padding does not do: lanes that write the end of one
        key and the begin of the next would meet across it."""
        swizzle = swizzle_of_rows(4 * self.key_stride, 4, 4 * _VECTOR)
        return swizzle if swizzle.phases > 1 else None

    @property
    def weight_stride(self) -> int:
        """Elements from one row of weights to the next: the strips of a warp write side by side."""
        return self.columns + (self.lanes - self.columns) % BANKS

    @property
    def vector(self) -> int:
        """Neighbours in a vector of values: the longest that pads them by a quarter at most, or as little as can be."""
        least = self._padded(1)
        return next(v for v in (_VECTOR, 2, 1) if 4 * self._padded(v) <= 5 * least)

    def _padded(self, vector: int) -> int:
        return -(-self.width // (self.lanes * vector)) * self.lanes * vector

    @property
    def padded_width(self) -> int:
        """Elements of a value, with zeros up to whole vectors of every lane."""
        return self._padded(self.vector)

    @property
    def vectors(self) -> int:
        """Vectors of a row of the result that a thread computes."""
        return self.padded_width // self.lanes // self.vector

    @property
    def size_vector(self) -> int:
        """Elements of queries and keys that a thread fetches at once: they never straddle the end of one."""
        return gcd(self.size, _VECTOR)

    @property
    def width_vector(self) -> int:
        """The same of values."""
        return gcd(self.width, _VECTOR)

    def fetched(self, lines: int, extent: int, vector: int) -> int:
        """Elements that a thread fetches of a tile."""
        return -(-lines * extent // vector // self.threads) * vector

    def _ahead(self, extent: int, vector: int) -> int:
        """Registers for the elements that a thread fetches ahead, and for the addresses of each vector of them."""
        elements = self.fetched(self.columns, extent, vector)
        return elements + 2 * elements // vector

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        keyed = (self.rows + self.columns) * self.key_stride
        return 4 * (keyed + self.columns * self.padded_width + self.rows * self.weight_stride)

    @property
    def registers(self) -> int:
        """Registers of a thread, about: the result so far, the next keys and values, and what a product is made of."""
        result = self.rows_each * (self.vectors * self.vector + 2)
        ahead = self._ahead(self.padded_size, self.size_vector) + self._ahead(self.padded_width, self.width_vector)
        scores = self.rows_each * self.columns_each + _VECTOR * (self.rows_each + self.columns_each)
        weighted = _VECTOR * self.rows_each + self.vectors * self.vector
        return result + ahead + max(scores, weighted) + _OTHER_REGISTERS


# What the kernels of attention share: a block's work tile, and the elements of a mask.


@dataclass(frozen=True)
class WorkTile:
    """A block's part of the result, and the keys that it reads.

    first_row: of the block; head: of queries and result; shared_head: of keys and values; tiles: of keys that the
    block reads; most_tiles: that any block reads; length: how many keys exist; offset: by how much the last column that
    a row of causal attention sees lies beyond its own number
    """

    first_row: Index
    head: Sequence[Index]
    shared_head: Sequence[Index]
    tiles: Index
    most_tiles: int
    length: Index | int
    offset: Index | int


def is_static_of_floats(anchor: Operation) -> bool:
    """Whether an anchor is an attention of f32, f16 or bf16 with static shapes, none of whose tensors is empty."""
    if not isinstance(anchor, AttentionOp) or DYNAMIC_INDEX in (*anchor.scores_shape, *anchor.shape):
        return False
    types = [o.type for o in anchor.operands if o not in (anchor.length, anchor.offset)]
    return all(
        isinstance(t, TensorType) and t.get_element_type() in (f32, f16, bf16) and prod(t.get_shape()) for t in types
    )


def is_worth_widening(anchor: AttentionOp) -> bool:
    """Whether attention of 16 bits, whose arithmetic here is f32's, is one kernel by default: where data say how many
    keys there are, as behind a cache, which products and a softmax read whole.

    A decoder of Qwen2 0.5B's shape reads prompts of 512 tokens 5.6 times as fast as llama.cpp so, and 2.5 times by
    products (`benchmarks/results/language-2026-11-28-openvino.json` and the one without OpenVINO, two threads). MiniLM
    in bf16 takes 1.05, 1.01, 1.01 and 1.05 of the time of its products: 128 tokens with one thread, and 128, 32 and 512
    with two, calls of commit 30b242ba, which has the kernel there, and of 591cfa09 in turn."""
    return anchor.type.get_element_type() == f32 or anchor.length is not None


@dataclass(frozen=True)
class WideRows:
    """Rows of keys as f32 in a buffer of one dimension, so that vectors may be loaded across rows."""

    b: KernelBuilder
    buffer: SSAValue
    size: int

    @staticmethod
    def of(
        b: KernelBuilder, x: SSAValue, head: Sequence[Index], rows: Callable[[Index], Index], count: int
    ) -> WideRows:
        """Writes so many rows of a buffer of narrow floats, whose numbers `rows` gives."""
        size = type_of(x).get_shape()[-1]
        wide = b.alloc("wide", [count * size], f32)
        with b.loop("n", count) as n, b.tasks(["d"], repeat(size), unroll=True, vector=True) as (d,):
            b.store(widened(b, b.load(x, [*head, rows(n), d])), wide, [n * size + d])
        return WideRows(b, wide, size)

    def load(self, row: Index, d: Index) -> Scalar:
        return self.b.load(self.buffer, [row * self.size + d])


def is_narrow(x: SSAValue) -> bool:
    """Whether a buffer has elements of 16 bits."""
    return type_of(x).get_element_type() != f32


def sizes_of(anchor: AttentionOp) -> tuple[int, int]:
    """The sizes of queries and keys, and of values."""
    assert isinstance(anchor.q.type, TensorType)
    return anchor.q.type.get_shape()[-1], anchor.shape[-1]


def blocks_of(anchor: AttentionOp, rows: int) -> int:
    """How many blocks of so many rows there are."""
    return prod(anchor.shape[:-2]) * ceil(anchor.shape[-2] / rows)


def work_tile(b: KernelBuilder, anchor: AttentionOp, rows: int, columns: int, *, heads_first: bool = False) -> WorkTile:
    """The work tile of the calling thread's block, of `rows` queries and tiles of `columns` keys.

    heads_first: whether causal blocks of equally many keys of all heads follow one another, so that those which run at
    once are equally long, and the shortest come last
    """
    m, n = anchor.scores_shape[-2:]
    parts = ceil(m / rows)
    causal, heads = bool(anchor.causal.value.data), prod(anchor.shape[:-2])
    part, head = b.block % parts, b.block // parts
    if causal and heads_first:
        # The remainder changes nothing, but says how many there are before the grid is known.
        part, head = (b.block // heads) % parts, b.block % heads
    # Causal blocks with many keys begin first, so that short ones fill the gaps at the end.
    part = parts - 1 - part if causal else part
    first_row = part * rows
    batch = anchor.shape[:-2]
    place = head.delinearize(batch) if batch else []
    shared_head = [*place[:-1], place[-1] // anchor.group_size] if place else []
    most_tiles = ceil(n / columns)
    length, offset = key_range(b, anchor)
    tiles = b.index(most_tiles) if isinstance(length, int) else (length + (columns - 1)) // columns
    if causal:
        seen = first_row + (offset + rows)
        seen = seen.max(0) if may_see_none(offset) else seen
        tiles = ((seen + (columns - 1)) // columns).min(tiles)
    return WorkTile(first_row, place, shared_head, tiles, most_tiles, length, offset)


def may_see_none(offset: Index | int) -> bool:
    """Whether a row of causal attention may be one that sees no column."""
    return not isinstance(offset, int) or offset < 0


def key_range(b: KernelBuilder, anchor: AttentionOp) -> tuple[Index | int, Index | int]:
    """How many keys exist, and the offset of causal rows: see `WorkTile`."""
    return _length(b, anchor), _offset(b, anchor)


def _length(b: KernelBuilder, anchor: AttentionOp) -> Index | int:
    """How many keys exist: all of them without a length."""
    bound = anchor.scores_shape[-1]
    if anchor.length is None:
        return bound
    operand = b.inputs[3 + (anchor.mask is not None)]
    operand.name_hint = "N"
    length = extent(b, b.load(operand, []), bound)
    length.name_hint = "length"
    return b.index(length)


def _offset(b: KernelBuilder, anchor: AttentionOp) -> Index | int:
    """The offset of causal rows: the last one sees the last key unless data say otherwise."""
    rows, keys = anchor.scores_shape[-2:]
    if anchor.offset is None:
        return keys - rows
    b.inputs[-1].name_hint = "P"
    offset = offset_of(b, b.load(b.inputs[-1], []), rows, keys)
    offset.name_hint = "offset"
    return b.index(offset)


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
