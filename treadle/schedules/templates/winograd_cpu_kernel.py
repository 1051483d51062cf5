"""The kernel of Winograd's convolution on a CPU: a chunk of tiles, of which all that is between stays in the cache."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import ceil, prod

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import SSAValue

from treadle.dialects.graph import WinogradConvOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.graph.winograd import Matrix
from treadle.dialects.loop import KernelOp
from treadle.dialects.task import repeat
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Choices, number
from treadle.schedules.templates.winograd_transform import transformed


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
        types = [operand.type for operand in anchor.operands if isinstance(operand.type, TensorType)]
        self.b = KernelBuilder(types, anchor.type)

    def build(self, name: str) -> KernelOp:
        b, anchor = self.b, self.anchor
        chunks, panels = ceil(self.total / self.chunk), ceil(anchor.shape[1] / self.vectors)
        self.first = b.block % chunks * self.chunk
        self.first_panel = b.block // chunks * self.panels
        products = self._products(self._transformed_inputs())
        self._transform_products(products)
        kernel = f"F({self.outputs}x{self.outputs}, 3x3), tiles of {self.size}x{self.size}"
        comment = f"convolution by {kernel}, of {anchor.x.type} by {anchor.filters.type}"
        return b.kernel(name, anchor.operands, anchor.type, chunks * ceil(panels / self.panels), 1, comment)

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


__all__ = ["WinogradKernel"]
