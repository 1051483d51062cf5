"""Winograd's convolution on a CPU: transforms and products of some tiles of an image, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import combinations
from math import ceil, prod
from typing import ClassVar, NamedTuple

from xdsl.dialects.builtin import f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import ComputeOp, WinogradConvOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, int_list
from treadle.dialects.graph.winograd import Matrix
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.dialects.task import repeat, spatial
from treadle.schedules.access_analysis import panel_width
from treadle.schedules.kernel_builder import Index, Predicate, all_of, kernel_builder
from treadle.schedules.register_tile import MOST_ROWS, MOST_VECTORS, check_tile, default_vectors, most_rows
from treadle.schedules.template import Anchor, Choices, Knob, Template, fewest_cycles, number
from treadle.target import Target

# Products of constant matrices with a few values, by additions where entries are 1; rows share what they can.

_Terms = dict[int, Fraction]
"""A linear combination: the factor of each value, by its number."""


def transformed(b: DefinitionBuilder, matrix: Matrix, values: Sequence[Scalar]) -> list[Scalar]:
    """Writes `matrix * values`."""
    return _Combinations(b, values).write([{n: f for n, f in enumerate(row) if f} for row in matrix])


class _Combinations:
    """Writes linear combinations of values."""

    def __init__(self, b: DefinitionBuilder, values: Sequence[Scalar]):
        self.b, self.values = b, list(values)

    def write(self, rows: list[_Terms]) -> list[Scalar]:
        """The values of combinations."""
        self._pair_values(rows)
        results: dict[int, Scalar] = {}
        for n, m in combinations(range(len(rows)), 2):
            if n in results or m in results or not _differ_in_signs(rows[n], rows[m]):
                continue
            same = self._sum({key: f for key, f in rows[n].items() if rows[m][key] == f})
            other = self._sum({key: f for key, f in rows[n].items() if rows[m][key] == -f})
            results[n], results[m] = self.b.add(same, other), self.b.binary("sub", same, other)
        return [results[n] if n in results else self._sum(row) for n, row in enumerate(rows)]

    def _pair_values(self, rows: list[_Terms]) -> None:
        """Replaces two values whose factors differ in signs only by their sum and their difference."""
        columns = {n: {r: row[n] for r, row in enumerate(rows) if n in row} for n in range(len(self.values))}
        for n, m in combinations(range(len(self.values)), 2):
            if n not in columns or m not in columns or not _differ_in_signs(columns[n], columns[m]):
                continue
            for kind in ("add", "sub"):
                self.values.append(self.b.binary(kind, self.values[n], self.values[m]))
            for r, factor in columns[n].items():
                of_sum = columns[m][r] == factor
                rows[r] = {key: f for key, f in rows[r].items() if key not in (n, m)}
                rows[r][len(self.values) - (2 if of_sum else 1)] = factor
            del columns[n], columns[m]

    def _sum(self, terms: _Terms) -> Scalar:
        """A combination, which begins with a term that is not negated, if there is one."""
        first, *rest = sorted(terms, key=lambda n: terms[n] < 0)
        total = self._scaled(first, terms[first])
        for n in rest:
            total = self.b.binary("add" if terms[n] > 0 else "sub", total, self._scaled(n, abs(terms[n])))
        return total

    def _scaled(self, n: int, factor: Fraction) -> Scalar:
        value = self.values[n]
        return value if factor == 1 else self.b.binary("mul", value, self.b.constant(float(factor), value.type))


def _differ_in_signs(a: _Terms, b: _Terms) -> bool:
    """Whether two combinations have the same factors but for the signs of some, not of all."""
    if a.keys() != b.keys() or any(abs(a[key]) != abs(b[key]) for key in a):
        return False
    return 0 < sum(a[key] == b[key] for key in a) < len(a)


_LONGEST_CHUNK = 256
_MOST_PANELS = 64
_INPUT, _OUTPUT = 5, 4
"""Cycles that a vector of a tile takes to be transformed, of the image and of products: a load and a store, and two
additions. Estimates."""
_FEED, _ITERATION = 0.25, 1.0
"""Cycles that a vector or element takes to be loaded for a term of a register tile, and an iteration of its loop takes
by itself. Estimates."""
_LINE = 10
"""Cycles that a line of the filters takes beside its products, where it comes from memory. An estimate."""
_LATENCY = 8
"""Cycles between additions to one sum. An estimate."""
_START = 2000
"""Cycles to begin a block. An estimate."""
_OVERFLOW = 1.3
"""How many times as long products take where a block's tiles leave the second cache. An estimate."""


class WinogradCpu(Template):
    """A block transforms `chunk` tiles of the image, all channels, to a buffer; multiplies them by `panels` panels of
    filters, in register tiles of `rows` tiles by a panel's vectors; and transforms each panel's products to pixels.

    All of it stays in the core's second cache. Tiles that touch a border are read by code of their own, so that the
    others test nothing. Results are stored at one place, to which epilogues are fused. Blocks of one group of panels
    follow one another.
    """

    name: ClassVar[str] = "winograd_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", tuple(range(1, MOST_ROWS + 1)), "tiles of the image in a register tile"),
        Knob("chunk", tuple(range(1, _LONGEST_CHUNK + 1)), "tiles of the image that a block computes"),
        Knob("panels", tuple(range(1, _MOST_PANELS + 1)), "panels of filters that a block computes"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, WinogradConvOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return dict(self.listed(anchor, target)[0])

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        rows, chunk = number(choices, "rows"), number(choices, "chunk")
        check_tile(self.name, rows, _vectors(anchor, target), chunk, target)

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """As many blocks are even, and have no more tiles and panels than there are."""
        return Extents.of(anchor, target).canonical(choices)

    def _every(self, anchor: Anchor, target: Target) -> Iterable[Choices]:
        """As in general, without looking at each chunk up to the longest: a few rows, and those chunks and panels that
        give different numbers of blocks."""
        extents = Extents.of(anchor, target)
        tiles, panels, vectors = extents
        most = min(tiles, most_rows(target, vectors))
        groups = sorted({ceil(panels / count) for count in range(1, panels + 1)} & set(range(1, _MOST_PANELS + 1)))
        for rows in range(1, most + 1):
            counts = {ceil(tiles / chunk) for chunk in range(rows, _LONGEST_CHUNK + 1, rows)}
            for chunk in sorted({ceil(ceil(tiles / count) / rows) * rows for count in counts}):
                for each in groups:
                    choices: Choices = {"rows": rows, "chunk": chunk, "panels": each}
                    if chunk <= _LONGEST_CHUNK and extents.canonical(choices) == choices:
                        yield choices

    def listed(self, anchor: Anchor, target: Target) -> Sequence[Choices]:
        """Those that are estimated to be the fastest, in order."""
        extents = Extents.of(anchor, target)
        return fewest_cycles(
            self._every(anchor, target), lambda choices: estimated_cycles(anchor, choices, target, extents)
        )

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Tiles of the image overlap, and are transformed for each group of panels; filters are read in each chunk, for
        each tile of rows."""
        assert isinstance(anchor, WinogradConvOp)
        choices = self.default(anchor, target)
        tiles, panels, _ = Extents.of(anchor, target)
        if operand is anchor.filters:
            return Fraction(ceil(tiles / number(choices, "rows")))
        n, blocks, *_, lanes = anchor.image
        read = n * blocks * lanes * prod(anchor.tiles) * anchor.filtering.tile**2
        return Fraction(read * ceil(panels / number(choices, "panels")), prod(anchor.image))

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, WinogradConvOp)
        return WinogradKernel(anchor, choices, _vectors(anchor, target), target.vector_registers).build(name)


class Extents(NamedTuple):
    """What choices of an anchor on a target divide into blocks. Finding it reads definitions: once for all choices."""

    tiles: int
    """Of all images."""
    panels: int
    """Of the filters."""
    vectors: int
    """Of a panel."""

    @classmethod
    def of(cls, anchor: Anchor, target: Target) -> Extents:
        """Those of a convolution."""
        assert isinstance(anchor, WinogradConvOp)
        vectors = _vectors(anchor, target)
        return cls(anchor.image[0] * prod(anchor.tiles), ceil(anchor.shape[1] / vectors), vectors)

    def canonical(self, choices: Choices) -> Choices:
        """As `Template.canonical`."""
        rows = min(number(choices, "rows"), self.tiles)
        chunk = ceil(ceil(self.tiles / ceil(self.tiles / number(choices, "chunk"))) / rows) * rows
        groups = ceil(self.panels / number(choices, "panels"))
        return {
            "rows": rows,
            "chunk": min(chunk, _LONGEST_CHUNK // rows * rows),
            "panels": ceil(self.panels / groups),
        }


def estimated_cycles(anchor: Anchor, choices: Choices, target: Target, extents: Extents) -> float:
    """Cycles until the last core has finished its blocks; one multiplies and adds a vector."""
    assert isinstance(anchor, WinogradConvOp)
    tiles, panels, vectors = extents
    rows, chunk, each = (number(choices, knob) for knob in ("rows", "chunk", "panels"))
    products, channels = anchor.filtering.tile**2, anchor.matrix[0]
    iteration = max(_LATENCY, rows * vectors) + _FEED * (rows + vectors) + _ITERATION
    cycles = each * products * channels * (chunk / rows * iteration + vectors * _LINE)
    held = 4 * products * chunk * (anchor.image[1] + each * vectors) * target.lanes
    if held > target.l2_bytes // 2:
        cycles *= _OVERFLOW
    cycles += products * chunk * (_INPUT * anchor.image[1] + _OUTPUT * each * vectors) + _START
    return cycles * ceil(ceil(tiles / chunk) * ceil(panels / each) / target.cores)


def _vectors(anchor: Anchor, target: Target) -> int:
    """The vectors of the panels that the filters are laid out in, or else of the target's default."""
    assert isinstance(anchor, WinogradConvOp)
    producer, lanes = anchor.filters.owner, anchor.image[-1]
    width = panel_width(producer) if isinstance(producer, ComputeOp) else None
    vectors, rest = (0, 0) if width is None else divmod(width, lanes)
    if 1 <= vectors <= MOST_VECTORS and not rest:
        return vectors
    channels, columns = anchor.matrix
    return min(default_vectors(target, columns, channels), anchor.shape[1])


# The kernel of Winograd's convolution on a CPU: a chunk of tiles, of which all that is between stays in the cache.


class WinogradKernel:
    """Writes the kernel of one convolution; panels of filters have `vectors` vectors of an image's lanes, of which
    `registers` hold one each."""

    def __init__(self, anchor: WinogradConvOp, choices: Choices, vectors: int, registers: int):
        self.anchor = anchor
        self.size, self.outputs = anchor.filtering.tile, anchor.outputs.value.data
        self.images, self.blocks, *self.extents, self.lanes = anchor.image
        self.registers = registers
        self.total, self.vectors, self.columns = self.images * prod(anchor.tiles), vectors, vectors * self.lanes
        self.rows, self.chunk, self.panels = (number(choices, knob) for knob in ("rows", "chunk", "panels"))
        self.b = kernel_builder(anchor.operands, anchor.type)

    def build(self, name: str) -> KernelOp:
        b, anchor = self.b, self.anchor
        panels = ceil(anchor.shape[1] / self.vectors)
        blocks = spatial(ceil(panels / self.panels), ceil(self.total / self.chunk))
        panel, chunk = b.task_of_block(blocks)
        self.first, self.first_panel = chunk * self.chunk, panel * self.panels
        products = self._products(self._transformed_inputs())
        self._transform_products(products)
        kernel = f"F({self.outputs}x{self.outputs}, 3x3), tiles of {self.size}x{self.size}"
        comment = f"convolution by {kernel}, of {anchor.x.type} by {anchor.filters.type}"
        return b.kernel(name, anchor.operands, anchor.type, blocks.workers, 1, comment)

    def _tile(self, t: Index) -> list[Index]:
        """The image, row and column of the chunk's tile t: the last one again beyond it."""
        tile = self.first + t
        tile = tile.min(self.total - 1) if self.total % self.chunk else tile
        return tile.delinearize([self.images, *self.anchor.tiles])

    def _exists(self, t: Index) -> Predicate | None:
        """When the chunk has a tile t; None where all chunks do."""
        return self.first + t < self.total if self.total % self.chunk else None

    def _transformed_inputs(self) -> SSAValue:
        """The chunk's tiles `[blocks, products, chunk, lanes]`, transformed."""
        b, pads = self.b, int_list(self.anchor.properties, "pads")
        buffer = b.alloc("tiles", [self.blocks, self.size**2, self.chunk, self.lanes], f32)
        # A block of channels of the image stays in the first cache, and each product's tiles are written one by one.
        with b.loop("c", self.blocks) as c, b.loop("t", self.chunk) as t:
            n, *tile = self._tile(t)
            corner = [tile[d] * self.outputs - pads[d] for d in (0, 1)]
            inside = all_of(self._inside(corner))
            with b.when(inside):
                self._transform_input(buffer, [n, c, *corner], t, at_border=False)
            if inside is not None:
                outside = b.binary("eq", inside.value, b.constant(0, inside.value.type))
                with b.when(outside):
                    self._transform_input(buffer, [n, c, *corner], t, at_border=True)
        return buffer

    def _inside(self, corner: Sequence[Index]) -> list[Predicate]:
        """When all of a tile is in the image; nothing where all tiles are."""
        pads, conditions = int_list(self.anchor.properties, "pads"), list[Predicate]()
        for d in (0, 1):
            if pads[d]:
                conditions.append(corner[d] >= 0)
            if self.anchor.tiles[d] * self.outputs + self.size - self.outputs - pads[d] > self.extents[d]:
                conditions.append(corner[d] + self.size <= self.extents[d])
        return conditions

    def _transform_input(self, buffer: SSAValue, where: Sequence[Index], t: Index, *, at_border: bool) -> None:
        """Transforms a tile of an image and a block of channels; `where` has its first row and column last."""
        b, n, c = self.b, where[0], where[1]
        zero = b.constant(0.0, f32) if at_border else None

        def pixel(i: int, j: Index, e: Index) -> SSAValue:
            at = [where[2] + i, where[3] + j]
            limits = zip(at, self.extents, strict=True)
            inside = all_of([p for each, extent in limits for p in (each >= 0, each < extent)]) if at_border else None
            return b.load(b.inputs[0], [n, c, *at, e], inside, zero)

        def store(value: SSAValue, i: Index, j: int, e: Index) -> None:
            b.store(value, buffer, [c, i * self.size + j, t, e])

        self._transform(self.anchor.filtering.input, pixel, store)

    def _transform(
        self,
        matrix: Matrix,
        load: Callable[[int, Index, Index], SSAValue],
        store: Callable[[SSAValue, Index, int, Index], None],
    ) -> None:
        """`matrix * X * matrix^T` of the tile X with elements that `load` gives, by row, column and lane: of each
        column to a buffer, then of each row of that. Where it does not fit the registers beside the values, it is
        memory, and two lines at once are all that they have to hold (docs/adr/0060)."""
        b, rows, size = self.b, len(matrix), len(matrix[0])
        at_once = None if rows * size <= self.registers // 2 else 2
        lines = b.alloc("lines", [rows, size, self.lanes], f32)
        with b.loop("j", size, at_once=at_once) as j, b.loop("e", self.lanes, vector=True) as e:
            for i, value in enumerate(transformed(b, matrix, [load(i, j, e) for i in range(size)])):
                b.store(value, lines, [b.index(i), j, e])
        with b.loop("i", rows, at_once=at_once) as i, b.loop("e", self.lanes, vector=True) as e:
            for j, value in enumerate(transformed(b, matrix, [b.load(lines, [i, b.index(j), e]) for j in range(size)])):
                store(value, i, j, e)

    @contextmanager
    def _panels(self) -> Generator[tuple[Index, Index]]:
        """The block's panels of filters: the number in the block, and of all."""
        b, panels = self.b, ceil(self.anchor.shape[1] / self.vectors)
        with b.loop("panel", self.panels) as n:
            panel = self.first_panel + n
            with b.when(panel < panels if panels % self.panels else None):
                yield n, panel

    def _products(self, tiles: SSAValue) -> SSAValue:
        """The products `[products, panels, chunk, columns]` of the chunk's tiles by the block's panels of filters."""
        b, each = self.b, repeat(self.rows, self.columns)
        buffer = b.alloc("products", [self.size**2, self.panels, self.chunk, self.columns], f32)
        with (
            b.loop("p", self.size**2) as p,
            self._panels() as (number, panel),
            b.loop("m", self.chunk, step=self.rows) as m,
        ):
            acc = b.alloc("acc", [self.rows, self.columns], f32)
            with b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                b.store(b.constant(0, f32), acc, [r, n])
            with b.loop("k", self.anchor.matrix[0]) as k, b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                left = b.load(tiles, [k // self.lanes, p, m + r, k % self.lanes])
                term = b.mul(left, self._filter(p, k, panel, n))
                b.store(b.add(b.load(acc, [r, n]), term), acc, [r, n])
            with b.tasks(["r", "n"], each, unroll=True, vector=True) as (r, n):
                b.store(b.load(acc, [r, n]), buffer, [p, number, m + r, n])
        return buffer

    def _filter(self, p: Index, k: Index, panel: Index, n: Index) -> SSAValue:
        """The filter of a panel's column n; of the last vector again beyond it, of which nothing is stored."""
        column, blocks = panel * self.columns + n, self.anchor.shape[1]
        if blocks % self.vectors:
            column = (panel * self.vectors + n // self.lanes).min(blocks - 1) * self.lanes + n % self.lanes
        return self.b.load(self.b.inputs[1], [p, k, column])

    def _transform_products(self, products: SSAValue) -> None:
        """Transforms the products to pixels, and stores those that there are."""
        b, ragged = self.b, self.anchor.shape[1] % self.vectors != 0
        with self._panels() as (number, panel), b.loop("t", self.chunk) as t, b.when(self._exists(t)):
            n, *tile = self._tile(t)
            with b.loop("j", self.vectors) as j:
                block = panel * self.vectors + j
                with b.when(block < self.anchor.shape[1] if ragged else None):
                    self._output_tile(products, [number, t, j * self.lanes], [n, block, *tile])

    def _output_tile(self, products: SSAValue, source: Sequence[Index], where: Sequence[Index]) -> None:
        b, outputs = self.b, self.outputs
        *first, column = source
        n, block, *position = where
        tile = b.alloc("pixels", [outputs * outputs, self.lanes], f32)
        self._transform(
            self.anchor.filtering.output,
            lambda i, j, e: b.load(products, [j + i * self.size, *first, column + e]),
            lambda value, i, j, e: b.store(value, tile, [i * outputs + j, e]),
        )
        with b.loop("i", outputs, unroll=True) as i, b.loop("j", outputs, unroll=True) as j:
            at = [at * outputs + offset for at, offset in zip(position, (i, j), strict=True)]
            limits = zip(at, self.anchor.shape[2:4], strict=True)
            inside = all_of([each < extent if extent % outputs else None for each, extent in limits])
            with b.when(inside), b.loop("e", self.lanes, vector=True) as e:
                b.store(b.load(tile, [i * outputs + j, e]), b.output, [n, block, *at, e])
