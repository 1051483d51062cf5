"""Attention by warpgroups: the tiles that a choice of knobs implies for heads of given sizes, and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import VectorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph.definition import Scalar
from treadle.dialects.loop import type_of
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, narrowed
from treadle.schedules.template import Choices, number
from treadle.schedules.tiles import COLUMNS, HALVES, PAIR, PRODUCT_N, QUAD, Fragment, staged_bytes
from treadle.schedules.warpgroups import SLAB, SPAN, WARPGROUP, OperandTile

ELEMENT_BYTES = 2
_OTHER_BYTES = 2048
"""Of shared memory: barriers, and what alignment leaves."""
_OTHER_REGISTERS = 32
"""Of a thread of a consumer, beside matrices: what kernels of this form by hand take, 28 to 39."""
PLAIN, OVERLAPPED, IN_TURN = range(3)
"""How a consumer proceeds: products and softmax of a tile one after another; the products of the scores of a tile along
with those of the weights of the tile before, whose second half runs under the softmax; and consumers that start these
in turn, so that one computes weights while another multiplies."""


@dataclass(frozen=True)
class AttentionWgmmaTile:
    """A block's tiles: 64 rows of queries for each consumer, and `stages` times `columns` keys and values.

    size: of a query and a key (D); width: of a value (E)
    """

    columns: int
    consumers: int
    stages: int
    order: int
    size: int
    width: int

    @staticmethod
    def of(choices: Choices, size: int, width: int) -> AttentionWgmmaTile:
        """The tiles that a choice of knobs means."""
        columns, consumers, stages, order = (
            number(choices, knob) for knob in ("columns", "consumers", "stages", "order")
        )
        return AttentionWgmmaTile(columns, consumers, stages, order, size, width)

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return SLAB * self.consumers

    @property
    def terms(self) -> int:
        """Of the scores, with zeros up to whole products."""
        return -(-self.size // COLUMNS) * COLUMNS

    @property
    def result_columns(self) -> int:
        """Of the result, with zeros up to what sums lie in."""
        return -(-self.width // COLUMNS) * COLUMNS

    @property
    def queries(self) -> OperandTile:
        """Those of a consumer."""
        return OperandTile(SLAB, _whole_rows(self.size), ELEMENT_BYTES, along_k=True)

    @property
    def keys(self) -> OperandTile:
        """The keys of a stage."""
        return OperandTile(self.columns, _whole_rows(self.size), ELEMENT_BYTES, along_k=True)

    @property
    def values(self) -> OperandTile:
        """The values of a stage, whose rows run across the keys."""
        return OperandTile(_whole_rows(self.width), self.columns, ELEMENT_BYTES, along_k=False)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        staged = staged_bytes(self.consumers * WARPGROUP, SPAN // 2, ELEMENT_BYTES)
        stages = self.stages * (self.keys.bytes + self.values.bytes)
        return self.consumers * self.queries.bytes + stages + staged + _OTHER_BYTES

    @property
    def registers(self) -> int:
        """Of a thread of a consumer, about: its part of the result, scores, and weights as an operand."""
        return self.result_columns // 2 + self.columns // 2 + self.columns // 4 + _OTHER_REGISTERS


def _whole_rows(elements: int) -> int:
    """With zeros up to rows of a tile in shared memory."""
    row = SPAN // ELEMENT_BYTES
    return -(-elements // row) * row


class RowSoftmax:
    """The softmax of a consumer's rows, whose scores come a tile at a time: as `OnlineSoftmax`, whose result is not
    scaled down at once, since products still add to it.

    scale, unit: factor of products, and that of what is exponentiated base 2; with a scale of 1, power and factor are
    one multiplication and subtraction
    Source: Milakov and Gimelshein (arXiv 1805.02867), algorithm 3.
    """

    def __init__(self, scores: Fragment, scale: float, unit: float):
        self._b, self._scores, self._scale, self._unit = scores.b, scores, scale, unit
        names = ("largest", "total", "shrink")
        self._largest, self.total, self.shrink = (self._b.alloc(name, [1, HALVES], f32) for name in names)

    def start(self) -> None:
        """Before the first tile."""
        b = self._b
        with b.tasks(["h"], repeat(HALVES), unroll=True) as (h,):
            b.store(b.constant(-inf, f32), self._largest, [0, h])
            b.store(b.constant(0, f32), self.total, [0, h])

    def prepare(
        self,
        added: Callable[[Index, Index, Index, Index], Scalar] | None,
        limit: Callable[[Index], Index] | None,
    ) -> None:
        """Scales products, adds a mask's element at [p, q, h, c], and hides what a row does not see.

        limit: of a row, given h: the first column of the tile that it does not see, less the lane's first column
        """
        b, scores = self._b, self._scores
        if self._scale == 1 and added is None and limit is None:
            return
        limits = None if limit is None else (limit(b.index(0)), limit(b.index(1)))

        def prepared(r: Index, p: Index, q: Index, h: Index, c: Index) -> Scalar:
            score = scores.load(r, p, q, h, c)
            score = score if self._scale == 1 else b.mul(score, b.constant(self._scale, f32))
            if added is not None:
                score = b.add(score, added(p, q, h, c))
            if limits is None:
                return score
            # What lanes differ in is on one side, so that the other side of all comparisons is a constant.
            visible = p * COLUMNS + q * PRODUCT_N + c < h.equals(0).select(*limits)
            return b.select(visible, score, b.constant(-inf, f32))

        scores.set(prepared)

    def weigh(self) -> None:
        """Scores become weights, relative to the largest so far; what was added up before is scaled down to it."""
        b, scores = self._b, self._scores
        bases = b.alloc("bases", [HALVES], f32)
        with b.tasks(["h"], repeat(HALVES), unroll=True) as (h,):
            old = b.load(self._largest, [0, h])
            new = self._folded("max", h, old)
            new = b.fold_lanes("max", new, QUAD)
            b.store(new, self._largest, [0, h])
            # Before the first visible key 0: -inf - -inf would be NaN, and stay it.
            is_none = b.binary("eq", new, b.constant(-inf, f32))
            base = b.select(is_none, b.constant(0, f32), self._times_unit(new))
            b.store(base, bases, [h])
            b.store(self._power(old, base), self.shrink, [0, h])
        scores.set(lambda r, p, q, h, c: self._power(scores.load(r, p, q, h, c), b.load(bases, [h])))
        with b.tasks(["h"], repeat(HALVES), unroll=True) as (h,):
            before = b.mul(b.load(self.total, [0, h]), b.load(self.shrink, [0, h]))
            # Adding -0 leaves every number as it is.
            added = self._folded("add", h, b.constant(-0.0, f32))
            b.store(b.add(before, added), self.total, [0, h])

    def _folded(self, kind: str, h: Index, initial: Scalar) -> Scalar:
        """The fold of a row of the lane's elements, as two: with each other they do not wait."""
        b, scores = self._b, self._scores
        folded = b.alloc("folded", [2], f32)
        with b.tasks(["c"], repeat(2), unroll=True) as (c,):
            b.store(initial, folded, [c])
        with b.tasks(["p", "q", "c"], repeat(*scores.shape[1:], 2), unroll=True) as (p, q, c):
            b.store(b.binary(kind, b.load(folded, [c]), scores.load(b.index(0), p, q, h, c)), folded, [c])
        return b.binary(kind, b.load(folded, [0]), b.load(folded, [1]))

    def _times_unit(self, score: Scalar) -> Scalar:
        return self._b.mul(score, self._b.constant(self._unit, f32)) if self._scale == 1 else score

    def _power(self, score: Scalar, base: Scalar) -> Scalar:
        """The weight of a score relative to another; of scores that are not scaled, that one is times the unit."""
        b = self._b
        if self._scale == 1:
            return b.approximate_exp2(b.binary("sub", self._times_unit(score), base))
        return b.approximate_exp2(b.mul(b.binary("sub", score, base), b.constant(self._unit, f32)))

    def pack(self, weights: SSAValue) -> None:
        """Rounds the weights to 16 bits: 16 columns of them are an operand A as they lie."""
        b, scores = self._b, self._scores
        type = type_of(weights).get_element_type()
        assert isinstance(type, VectorType)
        with b.tasks(["p"], repeat(scores.shape[1]), unroll=True) as (p,):
            rounded = b.alloc("rounded", type.get_shape(), type.element_type)
            with b.tasks(["q", "h", "c"], repeat(PAIR, HALVES, 2), unroll=True) as (q, h, c):
                value = narrowed(b, scores.load(b.index(0), p, q, h, c), type.element_type)
                b.store(value, rounded, [q * HALVES + h, c])
            b.store(b.load_vector(rounded, type), weights, [p])
