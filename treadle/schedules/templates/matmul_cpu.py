"""Matrix product on a CPU: a register tile of rows by two vectors, parallel over column panels and row chunks."""

from __future__ import annotations

from math import ceil
from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from treadle.dialects.graph import MatmulOp
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat
from treadle.errors import TreadleError
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Anchor, Choices, Knob, Template, number
from treadle.target import Target

COLUMNS = 32
"""Width of a panel: two vectors of 16 floats, as `graph-pack-weights` lays constants out."""


class MatmulCpu(Template):
    """`C[m, n] = sum_k A[m, k] * B[k, n]` with the accumulators of a `rows` x 32 tile in registers.

    A is read in place and broadcast, B by vectors. A block computes `chunk` rows of one panel of 32 columns; blocks
    of one chunk follow one another, so that its rows of A stay in the cache. With `pack`, a block first copies its
    panel of B to a local buffer, which pays where B is strided or computed and many rows use it.
    """

    name: ClassVar[str] = "matmul_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", (1, 2, 3, 4, 5, 6, 7, 8), "rows of a register tile"),
        Knob("chunk", tuple(range(1, 1025)), "rows that a block computes"),
        Knob("pack", (True, False), "copy the panel of B before use"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and is_float(anchor.type.get_element_type())

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        m, k, n = _extents(anchor)
        panels = ceil(n / COLUMNS)
        rows = min((8, 7, 6), key=lambda r: (ceil(m / r) * r, -r)) if m > 8 else m
        tiles = ceil(m / rows)
        # About eight blocks a core keep the load even; a block of under 2 MFLOP is not worth its start.
        wanted = max(1, min(tiles, ceil(16 / panels), ceil(2 * m * min(n, COLUMNS) * k / 2e6)))
        chunk = min(rows * ceil(tiles / wanted), 1024 // rows * rows)
        pack = m >= 32 and not _is_panel_of_constant(anchor)
        return {"rows": rows, "chunk": chunk, "pack": pack}

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        rows, chunk = number(choices, "rows"), number(choices, "chunk")
        if chunk % rows:
            raise TreadleError(
                f"matmul_cpu: tiles of {rows} rows overrun a chunk of {chunk} rows by {rows - chunk % rows}",
                accepted=f"a chunk that is a multiple of {rows}",
            )

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        return _MatmulBody(anchor, choices).build(name)


def _extents(anchor: Anchor) -> tuple[int, int, int]:
    assert isinstance(anchor, MatmulOp)
    return anchor.shape[-2], anchor.reduction_extent, anchor.shape[-1]


def _is_panel_of_constant(anchor: Anchor) -> bool:
    """Whether the right operand reads a constant that was packed in panels."""
    assert isinstance(anchor, MatmulOp)
    producer = anchor.b.owner
    return getattr(producer, "attributes", {}).get("packed") is not None


class _MatmulBody:
    """Writes the kernel of one product."""

    def __init__(self, anchor: MatmulOp, choices: Choices):
        self.anchor = anchor
        self.m, self.k, self.n = _extents(anchor)
        self.batch = anchor.shape[:-2]
        self.element = anchor.type.get_element_type()
        self.rows, self.chunk = number(choices, "rows"), number(choices, "chunk")
        self.pack = bool(choices["pack"])
        types = [t for t in (anchor.a.type, anchor.b.type) if isinstance(t, TensorType)]
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str) -> KernelOp:
        b = self.b
        panels, chunks = ceil(self.n / COLUMNS), ceil(self.m / self.chunk)
        batches = 1
        for extent in self.batch:
            batches *= extent
        panel = b.mod(b.block, panels)
        rest = b.div(b.block, panels)
        first_row = b.mul(b.mod(rest, chunks), self.chunk)
        self.batch_index = b.delinearize(b.div(rest, chunks), self.batch) if self.batch else []
        self.first_column = b.mul(panel, COLUMNS)
        source = self._packed_panel() if self.pack else None
        with b.loop("m", self.chunk, step=self.rows) as m:
            row = b.add(first_row, m)
            covered = self.m % self.chunk == 0
            with b.when(None if covered else b.binary("lt", row, self.m)):
                self._tile(row, source)
        comment = f"C[{self.m}, {self.n}] = A[{self.m}, {self.k}] * B[{self.k}, {self.n}]"
        return b.kernel(name, [self.anchor.a, self.anchor.b], self.anchor.type, panels * chunks * batches, 1, comment)

    def _packed_panel(self) -> SSAValue:
        b = self.b
        panel = b.alloc("panel", [self.k, COLUMNS], self.element)
        with b.tasks(["k", "n"], repeat(self.k, COLUMNS), vector=True) as (k, n):
            b.store(self._right(k, n), panel, [k, n])
        return panel

    def _tile(self, row: SSAValue, panel: SSAValue | None) -> None:
        b, tile = self.b, repeat(self.rows, COLUMNS)
        acc = b.alloc("acc", [self.rows, COLUMNS], self.element)
        with b.tasks(["r", "n"], tile, unroll=True, vector=True) as (r, n):
            b.store(b.constant(0, self.element), acc, [r, n])
        with b.loop("k", self.k) as k, b.tasks(["r", "n"], tile, unroll=True, vector=True) as (r, n):
            left = b.load(b.inputs[0], [*self._batch_of(0), self._clamped(b.add(row, r)), k])
            right = self._right(k, n) if panel is None else b.load(panel, [k, n])
            b.store(b.add(b.load(acc, [r, n]), b.mul(left, right)), acc, [r, n])
        with b.tasks(["r", "n"], tile, unroll=True, vector=True) as (r, n):
            line, column = b.add(row, r), b.add(self.first_column, n)
            inside = [b.binary("lt", line, self.m)] if self.m % self.rows else []
            inside += [b.binary("lt", column, self.n)] if self.n % COLUMNS else []
            b.store(b.load(acc, [r, n]), b.output, [*self.batch_index, line, column], b.all(inside))

    def _right(self, k: SSAValue, n: SSAValue) -> SSAValue:
        """B[k, first_column + n], 0 beyond the last column."""
        b = self.b
        column = b.add(self.first_column, n)
        indices = [*self._batch_of(1), k, column]
        if self.n % COLUMNS == 0:
            return b.load(b.inputs[1], indices)
        inside = b.binary("lt", column, self.n)
        return b.load(b.inputs[1], indices, inside, b.constant(0, self.element))

    def _clamped(self, row: SSAValue) -> SSAValue:
        """The row, or the last one: a tile that reaches beyond the matrix computes rows that are not stored."""
        return row if self.m % self.rows == 0 else self.b.least(row, self.m - 1)

    def _batch_of(self, operand: int) -> list[SSAValue]:
        type = (self.anchor.a, self.anchor.b)[operand].type
        assert isinstance(type, TensorType)
        return self.batch_index if type.get_num_dims() > 2 else []
