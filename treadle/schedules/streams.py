"""Operands of products on tensor cores that go from global memory to registers, 16 bytes a lane, without shared memory.

A sum is the same for any order of its terms, if both operands are taken in that order. A lane of a quad takes `run`
consecutive terms of four times as many, as a load of 16 bytes brings them, where an instruction's own order would give
it two at a time. `Streamed` loads the 16 rows of a product so, and `streamed_columns` gives the other operand, from a
tile in shared memory, in the same order. docs/tiles.md lists the words.

Source: Frantar et al., "MARLIN", 2024, section 3.2, for weights that are loaded in the order of fragments; NVIDIA, PTX
ISA, "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Attribute, SSAValue

from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import type_of
from treadle.dialects.loop.tiles import fragments
from treadle.dialects.task import repeat
from treadle.schedules.kernel_builder import Index, KernelBuilder
from treadle.schedules.tiles import CHUNK_BYTES, HALVES, PRODUCT_M, QUAD, Region

_PAIR = 2
"""Terms of a register."""


@dataclass(frozen=True)
class Order:
    """The order of the terms of a step, in which lanes of a quad take turns.

    run: consecutive terms of a lane, a multiple of 8; repeats: of four runs, one after another
    """

    run: int
    repeats: int = 1

    @property
    def terms(self) -> int:
        """Of a step."""
        return self.repeats * QUAD * self.run

    @property
    def products(self) -> int:
        """Instructions that multiply a repeat, of operands of 16 bits: each takes 4 terms of a lane."""
        return self.run // (HALVES * _PAIR)

    def term(self, lane: Index, repeat: Index | int, within: Index) -> Index:
        """The term of a step that comes at a place of the lane's run."""
        own = (lane % QUAD) * self.run + within
        return own + repeat * (QUAD * self.run)


@dataclass(frozen=True)
class Streamed:
    """The 16 rows of products, several steps in registers: one of `sets` is multiplied while others are loaded.

    rows: the matrix, rows by terms, of 16 bits
    along_k: whether the 16 bytes of a lane lie along the terms. Then a warp has 16 rows, and loads 64 bytes of 8 of
    them at a time. Else they lie across the terms: it has 64 rows, and loads 4 terms of all of them at a time.
    """

    b: KernelBuilder
    lane: Index
    rows: Region
    order: Order
    along_k: bool
    registers: SSAValue

    @staticmethod
    def of(b: KernelBuilder, lane: Index, rows: Region, order: Order, sets: int, *, along_k: bool) -> Streamed:
        """Allocates the registers."""
        together = across(rows.element)
        shape = [order.repeats, HALVES, order.run] if along_k else [order.repeats, order.run, together]
        return Streamed(b, lane, rows, order, along_k, b.alloc("rows", [sets, *shape], rows.element))

    @property
    def tiles(self) -> int:
        """Of 16 rows, that a warp has."""
        return tiles_of_warp(self.rows.element, along_k=self.along_k)

    def load(self, set: Index, row: Index, term: Index) -> None:
        """Loads the step that begins with a row and a term."""
        b, order, group = self.b, self.order, self.lane // QUAD
        if self.along_k:
            with (
                b.tasks(["p", "h"], repeat(order.repeats, HALVES), unroll=True) as (p, h),
                b.tasks(["e"], repeat(order.run), unroll=True, vector=True) as (e,),
            ):
                at = row + (h * (PRODUCT_M // HALVES) + group)
                value = self.rows.load(at, term + order.term(self.lane, p, e))
                b.store(value, self.registers, [set, p, h, e])
            return
        together = across(self.rows.element)
        with (
            b.tasks(["p", "i"], repeat(order.repeats, order.run), unroll=True) as (p, i),
            b.tasks(["e"], repeat(together), unroll=True, vector=True) as (e,),
        ):
            value = self.rows.load(row + (group * together + e), term + order.term(self.lane, p, i))
            b.store(value, self.registers, [set, p, i, e])

    def fragment(self, set: Index, tile: int, part: int, product: int) -> SSAValue:
        """An operand A: 16 rows of a warp's tile, and the terms of one product of a repeat."""
        b, type = self.b, fragments(self.rows.element, self.rows.element)[0]
        elements = b.alloc("fragment", type.get_shape(), self.rows.element)
        with b.tasks(["q", "h", "c"], repeat(HALVES, HALVES, _PAIR), unroll=True) as (q, h, c):
            within = q * _PAIR + c + product * (HALVES * _PAIR)
            place = [h, within] if self.along_k else [within, h + tile * HALVES]
            b.store(b.load(self.registers, [set, part, *place]), elements, [q * HALVES + h, c])
        return b.load_vector(elements, type)

    def row(self, tile: Index | int, h: Index) -> Index:
        """The row, of a warp's, that a lane's elements of the result belong to: in one of its tiles, the upper or the
        lower half."""
        group = self.lane // QUAD
        if self.along_k:
            return h * (PRODUCT_M // HALVES) + group + tile * PRODUCT_M
        return group * across(self.rows.element) + h + tile * HALVES


def across(element: Attribute) -> int:
    """Elements of the 16 bytes of a lane."""
    return CHUNK_BYTES // byte_width(element)


def tiles_of_warp(element: Attribute, *, along_k: bool) -> int:
    """Tiles of 16 rows of a warp whose lanes load 16 bytes along the terms, or across."""
    return 1 if along_k else across(element) // HALVES


def streamed_columns(
    b: KernelBuilder, buffer: SSAValue, lane: Index, row: Index, term: Index, order: Order, part: int
) -> list[SSAValue]:
    """The operands B of the products of a repeat: 8 columns, each a row of a matrix in shared memory.

    row: the lane's, its column of the product; term: the step's first
    """
    element = type_of(buffer).get_element_type()
    type = fragments(element, element)[1]
    loaded = b.alloc("columns", [order.run], element)
    together = across(element)
    with (
        b.loop("v", order.run // together, unroll=True) as v,
        b.tasks(["e"], repeat(together), unroll=True, vector=True) as (e,),
    ):
        within = v * together + e
        b.store(b.load(buffer, [row, term + order.term(lane, part, within)]), loaded, [within])
    found: list[SSAValue] = []
    for product in range(order.products):
        elements = b.alloc("fragment", type.get_shape(), element)
        with b.tasks(["q", "c"], repeat(HALVES, _PAIR), unroll=True) as (q, c):
            b.store(b.load(loaded, [q * _PAIR + c + product * (HALVES * _PAIR)]), elements, [q, c])
        found.append(b.load_vector(elements, type))
    return found


__all__ = ["Order", "Streamed", "across", "streamed_columns", "tiles_of_warp"]
