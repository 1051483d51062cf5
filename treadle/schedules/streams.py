"""Operands of products on tensor cores that go from global memory to registers, 16 bytes a lane, without shared memory.

A sum is the same for any order of its terms, if both operands are taken in that order. A lane of a quad takes `run`
consecutive terms of four times as many, as a load of 16 bytes brings them, where an instruction's own order would give
it two at a time. `Streamed` loads the 16 rows of a product so, `StreamedDefinition` what they are computed from, and
`RowsInOrder` gives the other operand, from shared memory, in the same order. docs/tiles.md lists the words.

Source: Frantar et al., "MARLIN", 2024, section 3.2, for weights that are loaded in the order of fragments; NVIDIA, PTX
ISA, "Matrix Fragments for mma.m16n8k16".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from treadle.dialects.graph import AtOp, ComputeOp
from treadle.dialects.graph.compute import yielded
from treadle.dialects.graph.definition import Scalar
from treadle.dialects.graph.dtypes import byte_width
from treadle.dialects.loop import Space, type_of
from treadle.dialects.loop.tiles import BANK_BYTES, BANKS, fragments
from treadle.dialects.task import repeat
from treadle.index.algebra import stride_along
from treadle.index.expr import var
from treadle.schedules.access_analysis import DefinitionAccesses
from treadle.schedules.kernel_builder import Index, KernelBuilder, all_of
from treadle.schedules.tiles import CHUNK_BYTES, HALVES, PRODUCT_M, QUAD, Extent, Region

_PAIR = 2
"""Terms of a register."""
_LINE_BYTES = BANKS * BANK_BYTES

Fragments = Callable[[int, int], SSAValue]
"""Gives the fragment of the n-th product of a repeat, and of a tile of 16 rows."""


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

    def term(self, lane: Index, part: Index | int, within: Index | int) -> Index:
        """The term of a step that comes at a place of the lane's run of a repeat."""
        return (lane % QUAD) * self.run + within + part * (QUAD * self.run)


def across(element: Attribute) -> int:
    """Elements of the 16 bytes of a lane."""
    return CHUNK_BYTES // byte_width(element)


def tiles_of_warp(element: Attribute, *, along_k: bool) -> int:
    """Tiles of 16 rows of a warp whose lanes load 16 bytes along the terms, or across."""
    return 1 if along_k else across(element) // HALVES


# Rows as they lie in memory.


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

    def load(self, set: Index, term: Index) -> None:
        """Loads the step that begins with a term."""
        b, order, together = self.b, self.order, across(self.rows.element)
        shape, each = ((order.repeats, HALVES), order.run) if self.along_k else ((order.repeats, order.run), together)
        with (
            b.tasks(["p", "i"], repeat(*shape), unroll=True) as (p, i),
            b.tasks(["e"], repeat(each), unroll=True, vector=True) as (e,),
        ):
            row = self.row(0, i) if self.along_k else (self.lane // QUAD) * together + e
            at = order.term(self.lane, p, e if self.along_k else i)
            b.store(self.rows.load(row, term + at), self.registers, [set, p, i, e])

    def fragments(self, set: Index, part: int, term: Index) -> Fragments:
        """The operands A of a repeat."""
        del term

        def element(tile: int, h: Index, within: Index) -> Scalar:
            place = [h, within] if self.along_k else [within, h + tile * HALVES]
            return self.b.load(self.registers, [set, part, *place])

        return lambda product, tile: _fragment_of_rows(self.b, self.rows.element, product, tile, element)

    def row(self, tile: Index | int, h: Index) -> Index:
        """The row, of a warp's, that a lane's elements of the result belong to: in one of its tiles, the upper or the
        lower half."""
        group = self.lane // QUAD
        if self.along_k:
            return h * (PRODUCT_M // HALVES) + group + tile * PRODUCT_M
        return group * across(self.rows.element) + h + tile * HALVES


def _fragment_of_rows(
    b: KernelBuilder, type: Attribute, product: int, tile: int, element: Callable[[int, Index, Index], Scalar]
) -> SSAValue:
    """An operand A, given its elements by tile, half and place in the run."""
    vector = fragments(type, type)[0]
    elements = b.alloc("fragment", vector.get_shape(), type)
    with b.tasks(["q", "h", "c"], repeat(HALVES, HALVES, _PAIR), unroll=True) as (q, h, c):
        within = q * _PAIR + c + product * (HALVES * _PAIR)
        b.store(element(tile, h, within), elements, [q * HALVES + h, c])
    return b.load_vector(elements, vector)


# Rows that are computed from less, such as weights of few bits.


@dataclass(frozen=True)
class RunRead:
    """A read of a definition: `count` consecutive elements of a tensor for a run of terms."""

    at: AtOp
    count: int

    @property
    def element(self) -> Attribute:
        """The type of an element."""
        type = self.at.source.type
        assert isinstance(type, TensorType)
        return type.get_element_type()

    @property
    def bytes(self) -> int:
        """Of a run."""
        return self.count * byte_width(self.element)


def reads_of_run(definition: ComputeOp, run: int) -> tuple[RunRead, ...] | None:
    """What each `run` consecutive terms of a definition `[terms, rows]` are computed from, each read up to 16
    consecutive bytes; None where that is not known."""
    terms, *_ = definition.shape
    if len(definition.shape) != 2 or terms % run:
        return None
    found = [_read_of_run(definition, at, run) for at in definition.reads()]
    known = [each for each in found if each is not None and each.bytes <= CHUNK_BYTES]
    return tuple(known) if len(known) == len(found) else None


def _read_of_run(definition: ComputeOp, at: AtOp, run: int) -> RunRead | None:
    term = definition.body.block.args[0]
    if at.predicate is not None or not all(_is_arithmetic(index) for index in at.indices):
        return None
    runs = var("run", 0, definition.shape[0] // run - 1)
    each = run
    while each:
        inner = var("place", 0, run // each - 1) * each + var("within", 0, each - 1)
        position = DefinitionAccesses(definition, {term: runs * run + inner}).position(at)
        if stride_along(position, "within") == 0 or each == 1:
            return RunRead(at, run // each) if each == run or stride_along(position, "place") == 1 else None
        each //= 2
    return None


def _is_arithmetic(index: SSAValue) -> bool:
    """Whether an index is computed from those of the element alone."""
    if isinstance(index, BlockArgument):
        return True
    owner = index.owner
    return isinstance(owner, Operation) and not isinstance(owner, AtOp) and all(map(_is_arithmetic, owner.operands))


@dataclass(frozen=True)
class StreamedDefinition:
    """The 16 rows of products that a definition `[terms, rows]` gives: what a run of terms is computed from is loaded
    steps ahead, and the elements are computed where they are multiplied.

    first: the block's first row and the slice's first term; ends: as those of a `Region`
    reads: of a run of the order, each with `[sets, repeats, 2, count]` registers
    """

    b: KernelBuilder
    lane: Index
    definition: ComputeOp
    buffers: Mapping[SSAValue, SSAValue]
    order: Order
    first: tuple[Index, Index]
    ends: tuple[Extent | None, Extent | None]
    reads: Sequence[tuple[RunRead, SSAValue]]

    @staticmethod
    def of(
        b: KernelBuilder,
        lane: Index,
        definition: ComputeOp,
        buffers: Mapping[SSAValue, SSAValue],
        order: Order,
        sets: int,
        first: tuple[Index, Index],
        ends: tuple[Extent | None, Extent | None],
    ) -> StreamedDefinition:
        """Allocates the registers."""
        reads = reads_of_run(definition, order.run)
        assert reads is not None, "the order is one of which the definition's reads are known"
        shape = [sets, order.repeats, HALVES]
        registers = [(read, b.alloc("held", [*shape, read.count], read.element)) for read in reads]
        return StreamedDefinition(b, lane, definition, buffers, order, first, ends, registers)

    def load(self, set: Index, term: Index) -> None:
        """Loads what the step is computed from that begins with a term."""
        b, run = self.b, self.order.run
        with b.tasks(["p", "h"], repeat(self.order.repeats, HALVES), unroll=True) as (p, h):
            for read, registers in self.reads:
                with b.tasks(["e"], repeat(read.count), unroll=True, vector=True) as (e,):
                    known, inside = self._place(p, h, term, e * (run // read.count))
                    indices = [self._value(index, known) for index in read.at.indices]
                    otherwise = None if inside is None else b.constant(0, read.element)
                    value = b.load(self.buffers[read.at.source], indices, inside, otherwise)
                    b.store(value, registers, [set, p, h, e])

    def fragments(self, set: Index, part: int, term: Index) -> Fragments:
        """Computes the operands A of a repeat."""
        b, run, element = self.b, self.order.run, self.definition.type.get_element_type()

        def computed(_: int, h: Index, within: Index) -> Scalar:
            known, _inside = self._place(b.index(part), h, term, within)
            for read, registers in self.reads:
                known[read.at.result] = b.load(registers, [set, part, h, within // (run // read.count)])
            return self._value(yielded(self.definition.body), known)

        return lambda product, tile: _fragment_of_rows(b, element, product, tile, computed)

    def row(self, tile: Index | int, h: Index) -> Index:
        """The row, of a warp's, that a lane's elements of the result belong to."""
        return h * (PRODUCT_M // HALVES) + self.lane // QUAD + tile * PRODUCT_M

    def _place(
        self, part: Index, h: Index, term: Index, within: Index
    ) -> tuple[dict[SSAValue, SSAValue], SSAValue | None]:
        """The definition's indices at a place of a run, and whether it lies inside the matrix."""
        row, at = self.first[0] + self.row(0, h), self.first[1] + (term + self.order.term(self.lane, part, within))
        inside = all_of([i < end for i, end in zip((row, at), self.ends, strict=True) if end is not None])
        of_term, of_row = self.definition.body.block.args
        return {of_term: at.value, of_row: row.value}, None if inside is None else inside.value

    def _value(self, value: SSAValue, known: dict[SSAValue, SSAValue]) -> SSAValue:
        """Writes what a value of the definition is computed by, unless it is known."""
        if value not in known:
            owner = value.owner
            assert isinstance(owner, Operation)
            for operand in owner.operands:
                self._value(operand, known)
            known[value] = self.b.evaluated(owner, known)
        return known[value]


# The other operand.


@dataclass(frozen=True)
class RowsInOrder:
    """Rows in shared memory whose chunks of 16 bytes lie in the order in which the lanes of a quad load them: with the
    rows' distance, 8 lanes that load at once meet in no bank.

    rows: how many; terms: of a row, a multiple of the order's
    """

    b: KernelBuilder
    buffer: SSAValue
    rows: int
    terms: int
    order: Order

    @staticmethod
    def of(b: KernelBuilder, rows: int, terms: int, element: Attribute, order: Order) -> RowsInOrder:
        """Allocates the buffer."""
        shape = [rows, row_distance(terms, element)]
        return RowsInOrder(b, b.alloc("rows_of_a", shape, element, Space.SHARED), rows, terms, order)

    def copy(self, source: Region, threads: int) -> None:
        """Starts asynchronous copies of a region by all threads of a block: wait, and a barrier, go with it."""
        b, together = self.b, across(source.element)
        each, runs = self.terms // together, self.order.run // together
        chunks = self.rows * each
        with b.loop("i", ceil(chunks / threads)) as i:
            place = i * threads + b.thread
            with b.when(place < chunks if chunks % threads else None):
                row, chunk = (b.index(0), place) if self.rows == 1 else (place // each, place % each)
                quad, inner = chunk // (QUAD * runs), chunk % (QUAD * runs)
                first = (quad * (QUAD * runs) + ((inner % QUAD) * runs + inner // QUAD)) * together
                b.copy(self.buffer, [row, chunk * together], together, lambda e: source.load(row, first + e))

    def fragments(self, lane: Index, column: int, part: int, term: Index) -> list[SSAValue]:
        """The operands B of the products of a repeat of a step: 8 columns, each a row; beyond the last, that one."""
        b, order = self.b, self.order
        vector = fragments(self._element, self._element)[1]
        together = across(self._element)
        row = lane // QUAD + column
        row = row if self.rows % (PRODUCT_M // HALVES) == 0 else row.min(self.rows - 1)
        loaded = b.alloc("columns", [order.run], self._element)
        with (
            b.loop("v", order.run // together, unroll=True) as v,
            b.tasks(["e"], repeat(together), unroll=True, vector=True) as (e,),
        ):
            place = term + part * (QUAD * order.run) + ((v * QUAD + lane % QUAD) * together + e)
            b.store(b.load(self.buffer, [row, place]), loaded, [v * together + e])
        found: list[SSAValue] = []
        for product in range(order.products):
            elements = b.alloc("fragment", vector.get_shape(), self._element)
            with b.tasks(["q", "c"], repeat(HALVES, _PAIR), unroll=True) as (q, c):
                b.store(b.load(loaded, [q * _PAIR + c + product * (HALVES * _PAIR)]), elements, [q, c])
            found.append(b.load_vector(elements, vector))
        return found

    @property
    def _element(self) -> Attribute:
        return type_of(self.buffer).get_element_type()


def row_distance(terms: int, element: Attribute) -> int:
    """Elements from one row of `RowsInOrder` to the next: half of a line of banks more than whole lines."""
    half = _LINE_BYTES // 2 // byte_width(element)
    return terms + (half if terms % (2 * half) == 0 else 0)


__all__ = [
    "Order",
    "RowsInOrder",
    "RunRead",
    "Streamed",
    "StreamedDefinition",
    "across",
    "reads_of_run",
    "row_distance",
    "tiles_of_warp",
]  # fmt: skip
