"""The work of a product's kernel on a CPU by its choices, in closed form, for the choice of a dispatch's kernels.

A dispatch asks for the work of tens of kernels at hundreds of points, for which recording each is too slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from xdsl.ir import SSAValue

from treadle.dialects.graph import AtOp, ComputeOp, MatmulOp
from treadle.dialects.graph.definition import tensor
from treadle.dialects.graph.dtypes import byte_width
from treadle.schedules.access_analysis import LEAST_STRIDE, strides_of_reads
from treadle.schedules.register_tile import panel_columns
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.matmul_cpu import right_strides
from treadle.schedules.work.cpu_work import Body, Reuse, Work, strided_loads
from treadle.schedules.work.rules import transposition
from treadle.target import Target

_IDLE_CYCLES = 20.0
"""Of a block that finds that nobody needs it. DietCode's product NT at one row of 128, panels of one vector, two cores
of a Xeon, the least of 12 rounds: 0.78 ms with chunks of one row, 0.37 with chunks of 12, and 0.28 with ones of 126;
that is 15 and 34 cycles for each of 196 000 and 15 000 such blocks."""


@dataclass(frozen=True)
class RightLoads:
    """How the right operand is read where it lies.

    each: loads that a vector takes; are_rows: whether those of consecutive terms are rows of a tile that a panel's copy
    may transpose; operations: that compute a vector; width: bytes in memory of an element
    """

    each: float
    are_rows: bool
    operations: float = 0.0
    width: float = 4.0


@dataclass(frozen=True)
class _Product:
    """A product and the choices of `matmul_cpu`."""

    rows: int
    depth: int
    columns: int
    batch: int
    tile: int
    vectors: int
    chunk: int
    is_packed: bool
    lanes: int
    width: int
    """Bytes of an element."""
    right: RightLoads

    @property
    def panels(self) -> int:
        return ceil(self.columns / (self.vectors * self.lanes))

    @property
    def blocks(self) -> int:
        return self.panels * ceil(self.rows / self.chunk) * self.batch

    @property
    def mean_vectors(self) -> float:
        """Vectors of a panel: the last one may have fewer."""
        whole, rest = divmod(self.columns, self.vectors * self.lanes)
        return (whole * self.vectors + ceil(rest / self.lanes)) / self.panels

    def tiles(self, heights: Sequence[int]) -> Iterator[tuple[int, int]]:
        """How many tiles have how many rows: the last one has the least of `heights` that suffices, or all."""
        whole, rest = divmod(self.rows, self.tile)
        if whole:
            yield whole, self.tile
        if rest:
            yield 1, min((h for h in (*heights, self.tile) if rest <= h <= self.tile), default=self.tile)


def product_work(
    anchor: MatmulOp,
    choices: Choices,
    target: Target,
    heights: Sequence[int] = (),
    grid: int | None = None,
    loads: RightLoads | None = None,
) -> Work:
    """What `count_work` finds in the kernel that `matmul_cpu` builds, up to addresses and what follows the product.

    heights: rows of the tiles that `loop-tail-tiles` writes beside a taller one, if the product's rows are those
        that somebody needs of more. The choices may be those of a larger product: the extents are the anchor's.
    grid: blocks of the larger product's kernel, of which those that nobody needs still take a few cycles
    loads: what `right_loads` says of the larger product, whose memory it is
    """
    product = _product(anchor, choices, target, right_loads(anchor, choices, target) if loads is None else loads)
    tiles = list(product.tiles(heights))
    share = max(1.0, product.blocks / target.cores)
    per_block = product.panels * product.batch / product.blocks
    bodies = [body for count, rows in tiles for body in _tile_bodies(product, rows, count * per_block)]
    if product.is_packed:
        bodies.append(_copy(product))
    idle = 0 if grid is None else max(0, grid - product.blocks)
    if idle:
        bodies.append(Body(_IDLE_CYCLES * idle / product.blocks))
    return Work(product.blocks, 1, tuple(bodies), _reuse(product, tiles, share), share)


def blocks_of(anchor: MatmulOp, choices: Choices, target: Target) -> int:
    """The blocks of a kernel."""
    return _product(anchor, choices, target, RightLoads(1.0, False)).blocks


def right_loads(anchor: MatmulOp, choices: Choices, target: Target) -> RightLoads:
    """How the right operand is read."""
    width, computed, definition = panel_columns(target, number(choices, "vectors")), _computed(anchor), anchor.b.owner
    if isinstance(definition, ComputeOp) and len(definition.reads()) > 1:
        along = [along_n for _, along_n in strides_of_reads(definition, width)]
        loads = (1.0 if each in (0, 1) else strided_loads(target.lanes, each or target.lanes) for each in along)
        return RightLoads(sum(loads), False, *computed)
    along_k, along_n = right_strides(anchor, width)
    if along_n in (0, 1):
        return RightLoads(1.0, False, *computed)
    stride = along_n or target.lanes
    return RightLoads(strided_loads(target.lanes, stride), along_k == 1 and abs(stride) >= LEAST_STRIDE, *computed)


def _computed(anchor: MatmulOp) -> tuple[float, float]:
    """The operations that compute an element of the right operand from what its definition reads, and the bytes of
    that."""
    definition, own = anchor.b.owner, float(byte_width(anchor.type.get_element_type()))
    if not isinstance(definition, ComputeOp):
        return 0.0, own
    read, count = set[SSAValue](), 0.0
    for op in definition.body.block.ops:
        if isinstance(op, AtOp) or not read.isdisjoint(op.operands):
            read.update(op.results)
            count += bool(op.results) and not isinstance(op, AtOp)
    sources = [tensor(source) for source in definition.tensors()]
    size = sum(prod(type.get_shape()) * byte_width(type.get_element_type()) for type in sources)
    return count, min(own, size / prod(definition.shape))


def _product(anchor: MatmulOp, choices: Choices, target: Target, loads: RightLoads) -> _Product:
    *batch, rows, columns = anchor.shape
    return _Product(
        rows, anchor.reduction_extent, columns, prod(batch), number(choices, "rows"), number(choices, "vectors"),
        number(choices, "chunk"), bool(choices["pack"]), target.lanes, byte_width(anchor.type.get_element_type()),
        loads,
    )  # fmt: skip


def _copy(product: _Product) -> Body:
    """The copy of a panel: vector by vector, or in squares of them, which are transposed."""
    lanes = product.lanes
    if not product.right.are_rows or product.depth < lanes:
        return Body(product.depth * product.mean_vectors, product.right.operations, product.right.each, 1.0)
    return Body(ceil(product.depth / lanes) * product.mean_vectors, transposition(lanes), lanes, lanes)


def _tile_bodies(product: _Product, rows: int, times: float) -> Iterator[Body]:
    """The loop over K of tiles of some rows, and what is before and after it; `times` in a block."""
    vectors = product.mean_vectors
    loads, operations = (1.0, 0.0) if product.is_packed else (product.right.each, product.right.operations)
    yield Body(times * product.depth, (rows + operations) * vectors, loads * vectors + rows, 0.0, 1.0)
    yield Body(times, 0.0, 0.0, rows * vectors)


def _reuse(product: _Product, tiles: Sequence[tuple[int, int]], share: float) -> tuple[Reuse, ...]:
    """The traffic of a worker's blocks: with no cache at all; with one that has a panel and two tiles' rows of the left
    operand; with one that has a block's rows and two panels, since blocks of one chunk follow one another; and with one
    that has all panels, which chunk after chunk reads."""
    per_block = product.panels * product.batch / product.blocks
    panel = product.depth * product.vectors * product.lanes * product.right.width
    row = product.depth * product.width
    count = sum(n for n, _ in tiles) * per_block
    rows = sum(n * r for n, r in tiles) * per_block
    result = rows * product.vectors * product.lanes * product.width
    left = rows * row
    packed = product.depth * product.vectors * product.lanes * product.width if product.is_packed else 0
    found = [Reuse(0.0, share * (count * panel + left + result + packed))]
    found.append(Reuse(float(panel + 2 * product.tile * row), share * (panel + left + result + packed)))
    chunks = max(1.0, share / product.panels)
    found.append(Reuse(2 * panel + left, share * (panel + result + packed) + chunks * left))
    batches = max(1.0, share * product.batch / product.blocks)
    all_panels = min(share, batches * product.panels) * panel
    found.append(Reuse(product.panels * panel + 2 * left, all_panels + share * (result + packed) + chunks * left))
    return tuple(sorted(found, key=lambda each: each.capacity))
