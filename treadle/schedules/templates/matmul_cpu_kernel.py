"""The kernel of a matrix product on a CPU: blocks of rows by a panel of columns, in register tiles."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.definition import widened
from treadle.dialects.graph.dtypes import accumulator
from treadle.dialects.loop import KernelOp
from treadle.dialects.task import repeat
from treadle.schedules.accumulator import narrowed
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.register_tile import panel_columns
from treadle.schedules.template import Choices, number
from treadle.target import Target


@dataclass(frozen=True)
class _Columns:
    """The columns of a panel: from `first` on `used` of them exist, and `lanes` are computed."""

    first: Index
    lanes: int
    used: int

    def inside(self, b: KernelBuilder, n: Index) -> list[Predicate]:
        """When column n of the panel exists; nothing where all do."""
        return [n < self.used] if self.used < self.lanes else []


@dataclass(frozen=True)
class _Tile:
    """Where a tile begins: its row in the matrix, and in the chunk; and the pass, with its first k, unless there
    is one."""

    row: Index
    in_chunk: Index
    number: Index | None
    first_k: Index | None


def _after(first: Index | None, k: Index) -> Index:
    return k if first is None else first + k


class MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, choices: Choices, target: Target):
        self.anchor = anchor
        self.m, self.k, self.n = anchor.shape[-2], anchor.reduction_extent, anchor.shape[-1]
        self.batch = anchor.shape[:-2]
        self.element = anchor.type.get_element_type()
        self.wide = accumulator(self.element)
        self.rows, self.chunk = number(choices, "rows"), number(choices, "chunk")
        self.pack, self.passes = bool(choices["pack"]), number(choices, "passes")
        self.depth = self.k // self.passes
        self.cores = target.cores
        self.vector, self.columns = target.lanes, panel_columns(target, number(choices, "vectors"))
        types = [t for t in (anchor.a.type, anchor.b.type) if isinstance(t, TensorType)]
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        panels, chunks = ceil(self.n / self.columns), ceil(self.m / self.chunk)
        batches = 1
        for extent in self.batch:
            batches *= extent
        # Where B is larger than A, each core has its panels for all chunks; the panels of a chunk follow one another.
        cores = self.cores if self.n > self.m and panels % self.cores == 0 and chunks > 1 else 1
        panel, rest = b.block % (panels // cores), b.block // (panels // cores)
        first_row, rest = (rest % chunks) * self.chunk, rest // chunks
        if cores > 1:
            panel, rest = (rest % cores) * (panels // cores) + panel, rest // cores
        self.batch_index = rest.delinearize(self.batch) if self.batch else []
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
        """The block's rows of one panel. With several passes, all rows use a part of the panel before the next part
        is read, and their sums wait in a buffer meanwhile."""
        b, sums = self.b, None
        if self.passes > 1:
            sums = b.alloc("sums", [self.chunk, columns.lanes], self.wide)
        with self._pass() as number:
            first_k = None if number is None else number * self.depth
            source = self._packed(columns, first_k) if self.pack else None
            with b.loop("m", self.chunk, step=self.rows) as m:
                row = first_row + m
                covered = self.m % self.chunk == 0
                with b.when(None if covered else row < self.m):
                    acc = self._tile(_Tile(row, m, number, first_k), columns, source, sums)
                    with b.when(None if number is None else number >= self.passes - 1):
                        self._store(row, columns, acc)

    @contextmanager
    def _pass(self) -> Generator[Index | None]:
        """The number of a pass; None where there is a single one, and so no loop."""
        if self.passes == 1:
            yield None
        else:
            with self.b.loop("pass", self.passes) as number:
                yield number

    def _packed(self, columns: _Columns, first_k: Index | None) -> SSAValue:
        b = self.b
        panel = b.alloc("panel", [self.depth, columns.lanes], self.element)
        with b.tasks(["k", "n"], repeat(self.depth, columns.lanes), vector=True) as (k, n):
            b.store(self._right(columns, _after(first_k, k), n), panel, [k, n])
        return panel

    def _tile(self, tile: _Tile, columns: _Columns, panel: SSAValue | None, sums: SSAValue | None) -> SSAValue:
        """The accumulators of a tile after a pass. `sums` has those of the passes before, and then of this one too."""
        b, each = self.b, repeat(self.rows, columns.lanes)
        acc = b.alloc("acc", [self.rows, columns.lanes], self.wide)
        first = None if tile.number is None else tile.number < 1
        with b.when(first), b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
            b.store(b.constant(0, self.wide), acc, [r, n])
        if sums is not None and tile.number is not None:
            with b.when(tile.number >= 1), b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                b.store(b.load(sums, [tile.in_chunk + r, n]), acc, [r, n])
        with b.loop("k", self.depth) as k, b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
            at = _after(tile.first_k, k)
            left = b.load(b.inputs[0], [*self._batch_of(0), self._clamped(tile.row + r), at])
            right = self._right(columns, at, n) if panel is None else b.load(panel, [k, n])
            term = b.mul(widened(b, left), widened(b, right))
            b.store(b.add(b.load(acc, [r, n]), term), acc, [r, n])
        if sums is not None:
            with b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                b.store(b.load(acc, [r, n]), sums, [tile.in_chunk + r, n])
        return acc

    def _store(self, row: Index, columns: _Columns, acc: SSAValue) -> None:
        """Rounds a tile's sums, and stores those of rows and columns that exist."""
        b = self.b
        with b.tasks(["r", "n"], repeat(self.rows, columns.lanes), unroll=True, vector=True) as (r, n):
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
