"""Matrix product on a CPU: a register tile of rows by vectors, parallel over column panels and row chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, MatmulOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.dtypes import accumulator, byte_width, is_float
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.errors import TreadleError
from treadle.schedules.access_analysis import panel_strides, panel_width
from treadle.schedules.accumulator import narrowed
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.limits import check_divides, check_limit
from treadle.schedules.register_tile import MOST_ROWS, MOST_VECTORS, default_vectors, most_rows, panel_columns
from treadle.schedules.template import Anchor, Choices, Knob, Template, number, shared_by_batch
from treadle.target import Target

_LONGEST_CHUNK = 1024


class MatmulCpu(Template):
    """`C[m, n] = sum_k A[m, k] * B[k, n]` with the accumulators of `rows` rows by `vectors` vectors in registers.

    A is read in place and broadcast, B by vectors. A block computes `chunk` rows of one panel of `vectors` vectors (of
    16 columns with AVX-512), as wide as the panels of a constant that `graph-pack-weights` laid out; blocks of one
    chunk follow one another, so that its rows of A stay in the cache. With `pack`, a block first copies its panel of B
    to a local buffer, which pays where B is strided or computed, many rows use it, and it stays in the second cache.
    Sums of 16-bit floats run in float32, and are rounded once.
    """

    name: ClassVar[str] = "matmul_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", tuple(range(1, MOST_ROWS + 1)), "rows of a register tile"),
        Knob("vectors", tuple(range(1, MOST_VECTORS + 1)), "vectors of a register tile's row, and of a panel of B"),
        Knob("chunk", tuple(range(1, _LONGEST_CHUNK + 1)), "rows that a block computes"),
        Knob("pack", (True, False), "copy the panel of B before use"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and is_float(anchor.type.get_element_type())

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        m, k, n = _extents(anchor)
        vectors = _vectors_of_panels(anchor, target) or default_vectors(target, n)
        columns, most = panel_columns(target, vectors), most_rows(target, vectors)
        panels = ceil(n / columns)
        rows = min(range(most, max(most - 3, 0), -1), key=lambda r: (ceil(m / r) * r, -r)) if m > most else m
        tiles = ceil(m / rows)
        # About eight blocks a core keep the load even; a block of under 2 MFLOP is not worth its start.
        wanted = max(1, min(tiles, ceil(8 * target.cores / panels), ceil(2 * m * min(n, columns) * k / 2e6)))
        chunk = min(rows * ceil(tiles / wanted), _LONGEST_CHUNK // rows * rows)
        along_k, along_n = _right_strides(anchor, columns)
        # Vectors of B need neighbouring columns; rows far apart cost a page each.
        far = along_k is None or (along_k >= 768 and k >= 1024) or along_k >= 2048
        stays = k * columns * _element_bytes(anchor) <= target.l2_bytes // 2
        pack = m >= 16 and (along_n != 1 or (far and m >= 64 and stays))
        return {"rows": rows, "vectors": vectors, "chunk": chunk, "pack": pack}

    def decided(self, anchor: Anchor, target: Target) -> Choices:
        """A tile of a constant that is laid out in panels is as wide as they are."""
        vectors = _vectors_of_panels(anchor, target)
        return {} if vectors is None else {"vectors": vectors}

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """A is read for every panel, one by one, which takes as long as a vector; B for every chunk, or for every tile
        of rows if it is not packed."""
        assert isinstance(anchor, MatmulOp)
        m, _, n = _extents(anchor)
        choices = self.default(anchor, target)
        rows = number(choices, "chunk" if choices["pack"] else "rows")
        panels = ceil(n / panel_columns(target, number(choices, "vectors")))
        reads = (anchor.a, panels * target.lanes), (anchor.b, ceil(m / rows))
        return sum((shared_by_batch(anchor, x) * times for x, times in reads if x is operand), start=Fraction(0))

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        rows, vectors, chunk = (number(choices, name) for name in ("rows", "vectors", "chunk"))
        most, laid_out = most_rows(target, vectors), _vectors_of_panels(anchor, target)
        if laid_out not in (None, vectors):
            raise TreadleError(
                f"matmul_cpu: the right operand lies in memory as panels of {laid_out * target.lanes} columns, "
                f"not of {vectors * target.lanes}",
                accepted=f"vectors = {laid_out}",
            )
        check_limit(
            "rows of a tile",
            rows,
            most,
            message=f"matmul_cpu: a tile of {rows} rows by {vectors} vectors has {rows - most} rows too many for "
            f"{target.vector_registers} registers",
            accepted=f"at most {most} rows",
        )
        check_divides(
            "rows of a chunk's tiles",
            rows,
            chunk,
            f"matmul_cpu: tiles of {rows} rows overrun a chunk of {chunk} rows by {rows - chunk % rows}",
            accepted=f"a chunk that is a multiple of {rows}",
        )

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A tile has no more rows than the product, nor vectors unless panels decide them, and the chunks of as many
        blocks are even."""
        m, _, n = _extents(anchor)
        rows = min(number(choices, "rows"), m)
        tiles = ceil(m / rows)
        blocks = ceil(m / number(choices, "chunk"))
        laid_out = _vectors_of_panels(anchor, target)
        vectors = laid_out or min(number(choices, "vectors"), ceil(n / target.lanes))
        chunk = min(rows * ceil(tiles / blocks), _LONGEST_CHUNK // rows * rows)
        return {**choices, "rows": rows, "vectors": vectors, "chunk": chunk}

    def values(self, anchor: Anchor, target: Target) -> Mapping[str, tuple[Choice, ...]]:
        """Those of some candidate: of 1024 chunks most give the blocks of another one."""
        every, names = list(self.candidates(anchor, target)), ("rows", "vectors", "chunk")
        return {name: tuple(sorted({number(choices, name) for choices in every})) for name in names}

    def candidates(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """As in general, without looking at each chunk up to the longest."""
        m, _, n = _extents(anchor)
        laid_out = _vectors_of_panels(anchor, target)
        widths = range(1, min(MOST_VECTORS, ceil(n / target.lanes)) + 1) if laid_out is None else (laid_out,)
        tiles = [(rows, vectors) for vectors in widths for rows in range(1, min(m, most_rows(target, vectors)) + 1)]
        for rows, vectors in sorted(tiles):
            for chunk, pack in product(_chunks(m, rows), (True, False)):
                yield {"rows": rows, "vectors": vectors, "chunk": chunk, "pack": pack}

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        return _MatmulBody(anchor, choices, target).build(name)


def _extents(anchor: Anchor) -> tuple[int, int, int]:
    assert isinstance(anchor, MatmulOp)
    return anchor.shape[-2], anchor.reduction_extent, anchor.shape[-1]


def _chunks(m: int, rows: int) -> list[int]:
    """The chunks of tiles of `rows` rows that cut M rows into different numbers of blocks."""
    tiles, longest = ceil(m / rows), _LONGEST_CHUNK // rows
    counts = {ceil(tiles / blocks) for blocks in range(1, tiles + 1)}
    return [rows * count for count in sorted(counts) if count <= longest]


def _vectors_of_panels(anchor: Anchor, target: Target) -> int | None:
    """The vectors of the panels that the right operand is laid out in; None where any width is as good."""
    assert isinstance(anchor, MatmulOp)
    producer = anchor.b.owner
    width = panel_width(producer) if isinstance(producer, ComputeOp) else None
    vectors, rest = (0, 0) if width is None else divmod(width, target.lanes)
    return vectors if 1 <= vectors <= MOST_VECTORS and not rest else None


def _element_bytes(anchor: Anchor) -> int:
    return byte_width(anchor.type.get_element_type())


def _right_strides(anchor: Anchor, columns: int) -> tuple[int | None, int | None]:
    """How the right operand advances in memory along K, and along N in a panel; through a prologue if it has one."""
    assert isinstance(anchor, MatmulOp)
    producer = anchor.b.owner
    return panel_strides(producer, columns) if isinstance(producer, ComputeOp) else (anchor.shape[-1], 1)


@dataclass(frozen=True)
class _Columns:
    """The columns of a panel: from `first` on `used` of them exist, and `lanes` are computed."""

    first: Index
    lanes: int
    used: int

    def inside(self, b: KernelBuilder, n: Index) -> list[Predicate]:
        """When column n of the panel exists; nothing where all do."""
        return [n < self.used] if self.used < self.lanes else []


class _MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, choices: Choices, target: Target):
        self.anchor = anchor
        self.m, self.k, self.n = _extents(anchor)
        self.batch = anchor.shape[:-2]
        self.element = anchor.type.get_element_type()
        self.rows, self.chunk = number(choices, "rows"), number(choices, "chunk")
        self.pack = bool(choices["pack"])
        self.vector, self.columns = target.lanes, panel_columns(target, number(choices, "vectors"))
        types = [t for t in (anchor.a.type, anchor.b.type) if isinstance(t, TensorType)]
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        panels, chunks = ceil(self.n / self.columns), ceil(self.m / self.chunk)
        batches = 1
        for extent in self.batch:
            batches *= extent
        panel = b.block % panels
        rest = b.block // panels
        first_row = (rest % chunks) * self.chunk
        self.batch_index = (rest // chunks).delinearize(self.batch) if self.batch else []
        whole, rest_columns = divmod(self.n, self.columns)
        # Whole panels need no predicates; the last, narrower one gets code of its own.
        if whole:
            with b.when(panel < whole if rest_columns else None):
                self._panel(first_row, _Columns(panel * self.columns, self.columns, self.columns))
        if rest_columns:
            lanes = min(self.columns, ceil(rest_columns / self.vector) * self.vector)
            with b.when(panel >= whole if whole else None):
                self._panel(first_row, _Columns(b.index(whole * self.columns), lanes, rest_columns))
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, [self.anchor.a, self.anchor.b], self.anchor.type, panels * chunks * batches, 1, comment)

    def _panel(self, first_row: Index, columns: _Columns) -> None:
        """The block's rows of one panel."""
        b = self.b
        source = self._packed(columns) if self.pack else None
        with b.loop("m", self.chunk, step=self.rows) as m:
            row = first_row + m
            covered = self.m % self.chunk == 0
            with b.when(None if covered else row < self.m):
                self._tile(row, columns, source)

    def _packed(self, columns: _Columns) -> SSAValue:
        b = self.b
        panel = b.alloc("panel", [self.k, columns.lanes], self.element)
        with b.tasks(["k", "n"], repeat(self.k, columns.lanes), vector=True) as (k, n):
            b.store(self._right(columns, k, n), panel, [k, n])
        return panel

    def _tile(self, row: Index, columns: _Columns, panel: SSAValue | None) -> None:
        b, tile = self.b, repeat(self.rows, columns.lanes)
        wide = accumulator(self.element)
        acc = b.alloc("acc", [self.rows, columns.lanes], wide)
        with b.tasks(["r", "n"], tile, unroll=True, vector=True) as (r, n):
            b.store(b.constant(0, wide), acc, [r, n])
        with b.loop("k", self.k) as k, b.tasks(["r", "n"], tile, unroll=True, vector=True) as (r, n):
            left = b.load(b.inputs[0], [*self._batch_of(0), self._clamped(row + r), k])
            right = self._right(columns, k, n) if panel is None else b.load(panel, [k, n])
            term = b.mul(widened(b, left), widened(b, right))
            b.store(b.add(b.load(acc, [r, n]), term), acc, [r, n])
        with b.tasks(["r", "n"], tile, unroll=True, vector=True) as (r, n):
            line = row + r
            inside = [line < self.m] if self.m % self.rows else []
            inside += columns.inside(b, n)
            total = narrowed(b, b.load(acc, [r, n]), self.element)
            b.store(total, b.output, [*self.batch_index, line, columns.first + n], all_of(inside))

    def _right(self, columns: _Columns, k: Index, n: Index) -> SSAValue:
        """B[k, first + n], 0 beyond the last column."""
        b = self.b
        indices = [*self._batch_of(1), k, columns.first + n]
        inside = all_of(columns.inside(b, n))
        if inside is None:
            return b.load(b.inputs[1], indices)
        return b.load(b.inputs[1], indices, inside, b.constant(0, self.element))

    def _clamped(self, row: Index) -> Index:
        """The row, or the last one: a tile that reaches beyond the matrix computes rows that are not stored."""
        return row if self.m % self.rows == 0 else row.min(self.m - 1)

    def _batch_of(self, operand: int) -> list[Index]:
        type = (self.anchor.a, self.anchor.b)[operand].type
        assert isinstance(type, TensorType)
        return self.batch_index if type.get_num_dims() > 2 else []
