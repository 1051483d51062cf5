"""Matrix products of few rows on tensor cores, at the speed at which memory gives the weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product as combinations
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import BFloat16Type, Float16Type, TensorType, f32, i8
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.dialects.graph import ComputeOp, ConstantOp, MatmulOp
from treadle.dialects.graph.dtypes import byte_width, ui8
from treadle.dialects.loop import KernelOp, Space
from treadle.dialects.loop.tiles import WARP, fragments
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.schedules.access_analysis import has_contiguous_rows
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder, narrowed
from treadle.schedules.pipelines import streamed
from treadle.schedules.reduction_end import reduction_end, with_end
from treadle.schedules.split_k import SPLIT_K, PartialSums, Slices, outer_indices, shared_out, tiles_of
from treadle.schedules.streams import (
    Order,
    RowsInOrder,
    Streamed,
    StreamedDefinition,
    across,
    reads_of_run,
    row_distance,
    tiles_of_warp,
)
from treadle.schedules.template import (
    Anchor,
    Choices,
    Knob,
    Template,
    check_limit,
    check_limits,
    number,
    pair,
    shared_by_batch,
)
from treadle.schedules.tiles import CHUNK_BYTES, HALVES, PRODUCT_M, PRODUCT_N, QUAD, Region, end_of
from treadle.target import KIB, Target

_MOST_ROWS = 64
_ROWS = (1, *range(PRODUCT_N, _MOST_ROWS + 1, PRODUCT_N))
_OTHER_REGISTERS = 48
"""What addresses and predicates take beside weights and sums. Found by compiling: 64 registers of weights are 90 to 94
along the terms, and 122 to 126 across."""
_MOST_SUMS = 64
"""Of a thread with several steps of weights. Found by compiling: with 80 some choices spill."""
_BLOCKS = 1.5
"""Blocks of a multiprocessor, at least, for which terms are shared out. On an H100 224 to 256 blocks of 8 warps, 1.7
to 1.9 of a multiprocessor, were the fastest of kernels by hand, or within 3% of these, for 1 x 4096 x 4096, 1 x 4096 x
14336 and 1 x 14336 x 4096: 13.5, 41.2 and 41.4 us."""
_BYTES_OF_A = 64 * KIB
"""Of a slice, at most: two blocks of a multiprocessor have room for them."""
_MOST_SLICES = 32
_RUNS = (32, 16)
"""Terms of which a lane loads 16 bytes, where they have 4 and 8 bits."""
_LEAST_TERMS = 256
_LEAST_BYTES = 2 << 20
"""Of the weights of one row's product, along the terms: fewer come as fast to lanes that each add up a part of an
element's terms, as predicted."""


class MatmulRowsMma(Template):
    """The product of up to 64 rows, whose time is that of reading B, the weights: they are the 16 rows of tensor-core
    products, and the rows of A the 8 columns, so that one instruction multiplies 16 columns of C by 16 terms.

    Weights go from global memory to registers, 16 bytes a lane, `ahead` steps before they are multiplied
    (`treadle/schedules/streams.py`); the rows of A lie in shared memory. Warps that share columns, and blocks that
    share a tile's terms, add up their sums in a fixed order.

    A block of fewer rows than C has takes tiles of them in turn, and reads its weights again for each: a kernel of a
    range for the calls that have few. The others of its tiles are those that `loop-skip-padding` leaves out.

    Every size is covered: loads beyond the matrices give 0, stores beyond C are left out.
    Source: NVIDIA, CUTLASS documentation, "Efficient GEMM in CUDA", parallelized reductions; Frantar et al., "MARLIN",
    2024, section 3.
    """

    name: ClassVar[str] = "matmul_rows_mma"
    kind: ClassVar[str] = "cuda"
    least_capability: ClassVar[int] = 80
    reads_by_columns: ClassVar[bool] = True
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("warps", ((1, 8), (1, 4), (2, 4), (4, 2), (8, 1)), "warps of a block along the columns and along K"),
        Knob("ahead", (1, 2, 4), "steps of weights in registers"),
        SPLIT_K,
        Knob("rows", (0, *_ROWS), f"rows of C that a block has at a time; 0: all of up to {_MOST_ROWS}", 0),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, MatmulOp):
            return False
        return isinstance(anchor.type.get_element_type(), Float16Type | BFloat16Type)

    def has_default(self, anchor: Anchor, target: Target) -> bool:
        """Whether a column of products covers all rows, and weights are read 16 bytes at a time, enough of them."""
        assert isinstance(anchor, MatmulOp)
        (rows, columns), along_k = anchor.shape[-2:], _along_k(anchor)
        if rows > (_MOST_ROWS if is_of_few_bits(anchor) else PRODUCT_N) or anchor.reduction_extent < _LEAST_TERMS:
            return False
        if not _lies_together(anchor, along_k):
            return False
        element = anchor.type.get_element_type()
        # Constants of bytes come to lie by columns.
        if columns < tiles_of_warp(element, along_k=along_k or is_of_few_bits(anchor)) * PRODUCT_M:
            return False
        if rows > 1 or not along_k or is_of_few_bits(anchor):
            return True
        return columns * anchor.reduction_extent * byte_width(element) >= _LEAST_BYTES

    def obstacle(self, anchor: Anchor, target: Target) -> str | None:
        if not isinstance(anchor, MatmulOp) or not self.runs_on(target) or not self.fits(anchor):
            return None
        if anchor.shape[-2] > PRODUCT_N or self.has_default(anchor, target):
            return None
        if not _lies_together(anchor, _along_k(anchor)):
            return "its weights do not lie together in groups of 16 bytes"
        return "it has too few weights to be worth it"

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        assert isinstance(anchor, MatmulOp)
        return _usual(anchor, {} if anchor.shape[-2] <= _MOST_ROWS else {"rows": PRODUCT_N}, target)

    def of_part(self, anchor: Anchor, part: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has the rows of the part, or some more that take as many instructions."""
        assert isinstance(anchor, MatmulOp) and isinstance(part, MatmulOp)
        rows = _rows_of_block(part)
        return _usual(anchor, {"rows": rows} if rows < anchor.shape[-2] else {}, target)

    def in_call(self, anchor: Anchor, whole: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has the rows of the whole product, also where a call has fewer."""
        assert isinstance(whole, MatmulOp)
        return choices if choices.get("rows") else {**choices, "rows": _rows_of_block(whole)}

    def dependent(self, anchor: Anchor, target: Target) -> Mapping[str, Callable[[Choices], Choice]]:
        assert isinstance(anchor, MatmulOp)
        return {"split_k": lambda choices: _slices(anchor, choices, target)}

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Each block reads all rows of A, and the columns of B that nobody else does."""
        assert isinstance(anchor, MatmulOp)
        tile = RowsTile.of(anchor, self.default(anchor, target))
        reads = (anchor.a, ceil(anchor.shape[-1] / tile.columns)), (anchor.b, 1)
        return sum((shared_by_batch(anchor, x) * times for x, times in reads if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, MatmulOp)
        tile = RowsTile.of(anchor, choices)
        check_limit("rows of a block", tile.rows, _MOST_ROWS, accepted=f"rows = {PRODUCT_N}, or another one of them")
        tile.slices.check(self.name)
        used = (
            ("bytes of shared memory", tile.shared_bytes, target.shared_per_block),
            ("registers a thread", tile.registers + _OTHER_REGISTERS, target.registers_per_thread),
        )
        check_limits(f"{self.name} with {tile.ahead} steps of {tile.columns} columns ahead", used, target)
        if tile.ahead > 1:
            check_limit(
                "sums a thread beside several steps",
                tile.accumulators,
                _MOST_SUMS,
                message=f"{self.name}: {tile.accumulators} sums a thread, {tile.accumulators - _MOST_SUMS} too many, "
                f"leave no registers for {tile.ahead} steps",
                accepted=f"at most {_MOST_SUMS} sums a thread, or ahead = 1",
            )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        return _RowsBody(anchor, RowsTile.of(anchor, choices)).build(name)


def _along_k(anchor: MatmulOp) -> bool:
    """Whether B's elements lie together along the terms."""
    return _streamed_definition(anchor) is not None or not has_contiguous_rows(anchor, anchor.b)


def _streamed_definition(anchor: MatmulOp) -> ComputeOp | None:
    """The definition of B, if the group computes it from fewer bytes, that lanes load along the terms."""
    definition = anchor.b.owner
    if not isinstance(definition, ComputeOp) or definition.parent_op() is not anchor.parent_op():
        return None
    return definition if _run(definition) is not None else None


def _run(definition: ComputeOp) -> int | None:
    """The consecutive terms of a column that are computed from up to 16 bytes of each tensor, and from 16 of one."""
    for run in _RUNS:
        reads = reads_of_run(definition, run)
        if reads is not None and max((read.bytes for read in reads), default=0) == CHUNK_BYTES:
            return run
    return None


def _order(anchor: MatmulOp) -> Order:
    """The order of the terms of a step. Along the terms, a lane's loads bring whole lines of 128 bytes, but where they
    bring many terms."""
    definition = _streamed_definition(anchor)
    run = None if definition is None else _run(definition)
    if run is not None:
        return Order(run)
    return Order(across(anchor.type.get_element_type()), 2 if _along_k(anchor) else 1)


def is_of_few_bits(anchor: MatmulOp) -> bool:
    """Whether the group, or one before it, computes B from constants of bytes."""
    definition = anchor.b.owner
    if not isinstance(definition, ComputeOp) or definition.parent_op() is not anchor.parent_op():
        return False
    types = [at.source.type for at in definition.reads() if isinstance(at.source.owner, ConstantOp)]
    return any(isinstance(type, TensorType) and type.get_element_type() in (i8, ui8) for type in types)


def _lies_together(anchor: MatmulOp, along_k: bool) -> bool:
    """Whether each lane's elements of B are 16 bytes of memory."""
    if _streamed_definition(anchor) is not None:
        return True
    together = across(anchor.type.get_element_type())
    extent = anchor.reduction_extent if along_k else anchor.shape[-1]
    return extent % together == 0 and has_contiguous_rows(anchor, anchor.b, across=along_k, together=together)


def _rows_of_block(anchor: MatmulOp) -> int:
    """The fewest rows of a block that cover all of the product's, or the most."""
    return next((rows for rows in _ROWS if rows >= anchor.shape[-2]), _MOST_ROWS)


def _usual(anchor: MatmulOp, rows: Choices, target: Target) -> dict[str, Choice]:
    """The choices made without a search where those for rows are given."""
    order = _order(anchor)
    warps = (1, 8) if anchor.reduction_extent >= 2 * 8 * order.terms else (1, 4)
    ahead = 4 if order.repeats > 1 else 2
    split_k = _slices(anchor, {"warps": warps, **rows}, target)
    tile = RowsTile.of(anchor, {"warps": warps, "ahead": ahead, "split_k": split_k, **rows})
    return {"warps": warps, "ahead": ahead if tile.accumulators <= _MOST_SUMS else 1, "split_k": split_k, **rows}


def _slices(anchor: MatmulOp, choices: Choices, target: Target) -> int:
    """Into how many slices the terms of a block's columns are split: as few as give every multiprocessor blocks enough
    and each block little of A, of those that divide the steps, or else of all."""
    tile = RowsTile.of(anchor, {**choices, "ahead": 1, "split_k": 1})
    steps, blocks = tile.slices.steps, tiles_of(anchor, anchor.shape[-2], tile.columns)
    wanted = max(ceil(_BLOCKS * target.multiprocessors / blocks), ceil(tile.bytes_of_a / _BYTES_OF_A))
    most = min(steps, _MOST_SLICES)
    even = (each for each in range(wanted, min(2 * wanted, most) + 1) if steps % each == 0)
    return ceil(steps / ceil(steps / next(even, min(wanted, most))))


@dataclass(frozen=True)
class RowsTile:
    """The extents that choices imply for an anchor.

    rows: of A, that a block has at a time; warps: along the columns and along K; ahead: steps of weights in registers
    along_k: how weights lie; order: of the terms of a step; slices: of the terms, for blocks
    """

    rows: int
    warps: tuple[int, int]
    ahead: int
    along_k: bool
    order: Order
    slices: Slices
    element: Attribute

    @staticmethod
    def of(anchor: MatmulOp, choices: Choices) -> RowsTile:
        """The extents of some choices."""
        element, along_k, warps = anchor.type.get_element_type(), _along_k(anchor), pair(choices, "warps")
        order = _order(anchor)
        slices = shared_out(anchor, number(choices, "split_k"), warps[1] * order.terms)
        ahead = number(choices, "ahead")
        rows = choices.get("rows", 0) or anchor.shape[-2]
        assert isinstance(rows, int)
        return RowsTile(rows, warps, ahead, along_k, order, slices, element)

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * prod(self.warps)

    @property
    def tiles(self) -> int:
        """Of 16 columns of C, that a warp has."""
        return tiles_of_warp(self.element, along_k=self.along_k)

    @property
    def columns(self) -> int:
        """Of a block."""
        return self.warps[0] * self.tiles * PRODUCT_M

    @property
    def products(self) -> int:
        """Products that cover the rows of A."""
        return ceil(self.rows / PRODUCT_N)

    @property
    def height(self) -> int:
        """Rows of C whose sums are in shared memory at a time."""
        return min(self.rows, PRODUCT_N)

    @property
    def each(self) -> int:
        """Elements of `height` rows of C that a thread adds up."""
        return ceil(self.height * self.columns / self.threads)

    @property
    def summing(self) -> int:
        """Threads that add up, the first ones of a block."""
        return min(self.threads, self.height * self.columns)

    @property
    def terms(self) -> int:
        """Of a slice."""
        return self.slices.each * self.slices.block_k

    @property
    def row_of_sums(self) -> int:
        """Elements from one row of sums in shared memory to the next: a warp stores 8 columns of 4 rows at once, whose
        banks differ where columns are neighbours, and are those of two lanes each where they lie apart."""
        return self.columns + (QUAD if self.along_k else 1)

    @property
    def bytes_of_a(self) -> int:
        """Of a block's rows of A."""
        return self.rows * self.terms * byte_width(self.element)

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        sums = self.warps[1] * self.height * self.row_of_sums * f32.size
        return self.rows * row_distance(self.terms, self.element) * byte_width(self.element) + sums

    @property
    def accumulators(self) -> int:
        """Of a thread."""
        return self.tiles * self.products * HALVES * 2

    @property
    def registers(self) -> int:
        """Of a thread, for weights, 16 bytes of each of its rows of A, and sums."""
        step = self.tiles * PRODUCT_M * self.order.terms * byte_width(self.element) // WARP // 4
        return self.ahead * step + self.products * CHUNK_BYTES // 4 + self.accumulators


class _RowsBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, tile: RowsTile):
        self.anchor, self.tile = anchor, tile
        self.m, self.n = anchor.shape[-2:]
        self.k, self.element = anchor.reduction_extent, anchor.type.get_element_type()
        self.end = reduction_end(anchor)
        self.definition = _streamed_definition(anchor)
        weights = [anchor.b] if self.definition is None else self.definition.tensors()
        self.operands = with_end([anchor.a, *weights], self.end)
        self.b = kernel_builder(self.operands, anchor.type)
        self.lane, self.warp = self.b.thread % WARP, self.b.thread // WARP
        self.has_sums = self.b.thread < tile.summing if tile.summing < tile.threads else None

    def build(self, name: str) -> KernelOp:
        b, tile, slices = self.b, self.tile, self.tile.slices
        batch, columns = self.anchor.shape[:-2], ceil(self.n / tile.columns)
        tiles = prod(batch) * columns
        index, slice = (b.block, None) if slices.number == 1 else (b.block % tiles, b.block // tiles)
        self.outer = (index // columns).delinearize(batch) if batch else []
        self.column = (index % columns if batch else index) * tile.columns
        steps = slices.length(b, self.end, self.operands)
        self.first = b.index(0) if slice is None else slice * steps * slices.block_k
        rows = ceil(self.m / tile.rows)
        if rows == 1:
            self._tile(b.index(0), steps, (index, tiles), slice)
        else:
            with b.loop("rows", rows, at_once=1) as n:
                self._tile(n * tile.rows, steps, (n * tiles + index, rows * tiles), slice)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        grid = tiles * slices.number
        return b.kernel(name, self.operands, self.anchor.type, grid, tile.threads, comment)

    def _tile(self, row: Index, steps: Index | int, number: tuple[Index, int], slice: Index | None) -> None:
        """Computes a tile of rows from one on; its number, and how many there are."""
        total = self._multiply(self._rows_of_a(row), steps)
        self._finish(total, row, number, slice)

    def _region(self, operand: int, first: tuple[Index, Index], covered: tuple[int, int]) -> Region:
        values = (self.anchor.a, self.anchor.b)
        extents = (self.m, self.k) if operand == 0 else (self.k, self.n)
        outer = outer_indices(values[operand], self.outer)
        return Region.of(self.b, self.b.inputs[operand], first, extents, covered, outer)

    def _rows_of_a(self, row: Index) -> RowsInOrder:
        """Starts copies of the slice's terms of a tile's rows of A to shared memory."""
        tile = self.tile
        rows = RowsInOrder.of(self.b, tile.rows, tile.terms, self.element, tile.order)
        rows.copy(self._region(0, (row, self.first), (tile.rows, tile.slices.covered)), tile.threads)
        self.b.commit()
        return rows

    def _stream(self) -> Streamed | StreamedDefinition:
        """The warp's columns of B."""
        b, tile = self.b, self.tile
        column = self.column + (self.warp % tile.warps[0]) * (tile.tiles * PRODUCT_M)
        covered = tile.slices.covered, tile.columns
        if self.definition is None:
            weights = self._region(1, (self.first, column), covered)
            return Streamed.of(b, self.lane, weights.transposed, tile.order, tile.ahead, along_k=tile.along_k)
        ends = end_of(self.n, tile.columns), end_of(self.k, tile.slices.covered)
        buffers = dict(zip(self.operands, b.inputs, strict=True))
        first = column, self.first
        return StreamedDefinition.of(b, self.lane, self.definition, buffers, tile.order, tile.ahead, first, ends)

    def _multiply(self, rows: RowsInOrder, steps: Index | int) -> SSAValue:
        """Multiplies each warp's share of the block's terms, and gives the block's sums."""
        b, tile, order, stream = self.b, self.tile, self.tile.order, self._stream()
        along = self.warp // tile.warps[0]
        sums = b.alloc("acc", [tile.tiles, tile.products], fragments(self.element, self.element)[2])
        with b.tasks(["r", "q"], repeat(tile.tiles, tile.products), unroll=True) as where:
            b.store(b.zeros(fragments(self.element, self.element)[2]), sums, where)

        def term(step: Index) -> Index:
            return (step * tile.warps[1] + along) * order.terms

        def body(step: Index, set: Index) -> None:
            first = term(step)
            for part in range(order.repeats):
                of_b = stream.fragments(set, part, first)
                of_a = [rows.fragments(self.lane, q * PRODUCT_N, part, first) for q in range(tile.products)]
                for product, own in combinations(range(order.products), range(tile.tiles)):
                    columns = of_b(product, own)
                    for q in range(tile.products):
                        at = [b.index(own), b.index(q)]
                        b.store(b.mma(columns, of_a[q][product], b.load(sums, at)), sums, at)

        def ready() -> None:
            b.wait(0)
            b.barrier()

        streamed(b, "step", steps, tile.ahead, lambda step, set: stream.load(set, term(step)), body, ready)
        return self._share(stream, sums, along)

    def _share(self, stream: Streamed | StreamedDefinition, sums: SSAValue, along: Index) -> SSAValue:
        """Adds up the sums of warps that share columns, 8 rows of C after another, and shares them out to threads.

        Gives `[products * each]` registers of each of the first `summing` threads.
        """
        b, tile = self.b, self.tile
        parts = b.alloc("parts", [tile.warps[1], tile.height, tile.row_of_sums], f32, Space.SHARED)
        total = b.alloc("total", [tile.products * tile.each], f32)
        first = (self.warp % tile.warps[0]) * (tile.tiles * PRODUCT_M)
        for q in range(tile.products):
            if q:
                b.barrier()
            with b.tasks(["r", "h", "c"], repeat(tile.tiles, HALVES, 2), unroll=True) as (r, h, c):
                row, column = (self.lane % QUAD) * 2 + c, first + stream.row(r, h)
                value = b.extract(b.load(sums, [r, q]), [h, c], f32)
                b.store(value, parts, [along, row, column], row < tile.height if tile.height < PRODUCT_N else None)
            b.barrier()
            with b.when(self.has_sums), b.tasks(["e"], repeat(tile.each), unroll=True) as (e,):
                row, column, exists = self._place(e)
                otherwise = None if exists is None else b.constant(0.0, f32)
                at = e + q * tile.each
                b.store(b.load(parts, [0, row, column], exists, otherwise), total, [at])
                with b.loop("w", tile.warps[1], begin=1, unroll=True) as w:
                    part = b.load(parts, [w, row, column], exists, otherwise)
                    b.store(b.add(b.load(total, [at]), part), total, [at])
        return total

    def _place(self, e: Index) -> tuple[Index, Index, Predicate | None]:
        """Row and column, of 8 rows of the block's columns, of one of a thread's elements; whether there is one."""
        tile = self.tile
        place, elements = e * tile.threads + self.b.thread, tile.height * tile.columns
        exists = place < elements if tile.each * tile.summing > elements else None
        return self.b.index(0) if tile.height == 1 else place // tile.columns, place % tile.columns, exists

    def _finish(self, total: SSAValue, row: Index, number: tuple[Index, int], slice: Index | None) -> None:
        """Stores the elements of C, the tile's last block those of all blocks along K."""
        b, tile = self.b, self.tile
        if slice is None:
            with b.when(self.has_sums):
                self._store(total, row)
            return
        index, tiles = number
        sums = PartialSums(b, tiles, tile.slices.number, tile.summing, tile.products * tile.each, f32)
        last = sums.keep(index, slice, lambda v, e: b.load(total, [v * sums.lanes + e]), self.has_sums)
        with b.when(last), b.when(self.has_sums):
            sums.add_up(index, total)
            self._store(total, row)

    def _store(self, total: SSAValue, first: Index) -> None:
        b, tile = self.b, self.tile
        with b.tasks(["q", "e"], repeat(tile.products, tile.each), unroll=True) as (q, e):
            row, column, exists = self._place(e)
            i, j = first + (q * PRODUCT_N + row), self.column + column
            ends = (
                i < self.m if self.m % (tile.products * tile.height) else None,
                j < self.n if self.n % tile.columns else None,
            )
            value = narrowed(b, b.load(total, [q * tile.each + e]), self.element)
            b.store(value, b.output, [*self.outer, i, j], all_of([exists, *ends]))
