"""The transforms of Winograd's convolution on a CPU: tiles of vectors, each in registers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, prod
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Operation, SSAValue

from treadle.dialects.graph import WinogradInputOp, WinogradOutputOp
from treadle.dialects.graph.definition import int_list
from treadle.dialects.loop import KernelOp
from treadle.dialects.schedule import Choice
from treadle.schedules.index_value import Index, Predicate, all_of
from treadle.schedules.kernel_builder import KernelBuilder
from treadle.schedules.template import Anchor, Choices, Knob, Template, least_power, number
from treadle.schedules.templates.winograd_transform import transformed_twice
from treadle.target import Target

_LEAST = 16384
"""Elements that a block transforms, at least, so that it is worth its start."""


class WinogradCpu(Template):
    """Both transforms of a tile, along columns and rows, of all lanes of a block of channels.

    Tiles that touch a border have code of their own, so that the others test nothing. Results of an output transform
    are stored at one place, to which epilogues are fused. A block computes `rows` rows of tiles.
    """

    name: ClassVar[str] = "winograd_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("rows", tuple(2**n for n in range(13)), "rows of tiles that a block transforms"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, WinogradInputOp | WinogradOutputOp)

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        _, total = _extents(anchor)
        work = prod(anchor.shape) // total
        rows = 1
        while rows * work < _LEAST and rows * 8 * target.cores < total:
            rows *= 2
        return {"rows": rows}

    def canonical(self, anchor: Anchor, choices: Choices, target: Target) -> Choices:
        """A block has no more rows than there are."""
        return {"rows": least_power(number(choices, "rows"), _extents(anchor)[1])}

    def evaluations(self, anchor: Operation, operand: SSAValue, target: Target) -> Fraction | None:
        """Tiles of inputs overlap, tiles of products do not."""
        if not isinstance(anchor, WinogradInputOp):
            return Fraction(1)
        n, blocks, *_, lanes = anchor.image
        read = n * blocks * lanes * prod(anchor.tiles) * anchor.filtering.tile**2
        return Fraction(read, prod(anchor.image))

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, WinogradInputOp | WinogradOutputOp)
        assert isinstance(anchor.x.type, TensorType)
        b = KernelBuilder([anchor.x.type], anchor.type)
        (columns, total), rows = _extents(anchor), number(choices, "rows")
        with b.loop("row", rows) as row:
            position = b.block * rows + row
            with b.when(position < total if total % rows else None):
                block, n, tile_row = position.delinearize(_rows(anchor))
                first = (n * anchor.tiles[0] + tile_row) * columns
                with b.loop("column", columns) as column:
                    if isinstance(anchor, WinogradInputOp):
                        _InputTile(b, anchor, block, first + column).write(n, [tile_row, column])
                    else:
                        _output_tile(b, anchor, block, first + column, n, [tile_row, column])
        size, outputs = anchor.filtering.tile, anchor.outputs.value.data
        comment = f"{anchor.name.removeprefix('graph.')} of F({outputs}x{outputs}, 3x3), tiles of {size}x{size}"
        return b.kernel(name, [anchor.x], anchor.type, ceil(total / rows), 1, f"{comment}, to {anchor.type}")


class _InputTile:
    """A tile of an image, and where its transform goes."""

    def __init__(self, b: KernelBuilder, anchor: WinogradInputOp, block: Index, tile: Index):
        self.b, self.anchor, self.block, self.tile = b, anchor, block, tile
        self.size, self.lanes = anchor.filtering.tile, anchor.image[-1]

    def write(self, n: Index, tile: Sequence[Index]) -> None:
        """Transforms a tile of image n."""
        b, pads, extents = self.b, int_list(self.anchor.properties, "pads"), self.anchor.image[2:4]
        outputs = self.anchor.outputs.value.data
        corner = [tile[d] * outputs - pads[d] for d in (0, 1)]
        conditions: list[Predicate] = []
        for d in (0, 1):
            if pads[d]:
                conditions.append(corner[d] >= 0)
            if self.anchor.tiles[d] * outputs + self.size - outputs - pads[d] > extents[d]:
                conditions.append(corner[d] + self.size <= extents[d])
        inside = all_of(conditions)
        with b.when(inside):
            self._transform(n, corner, at_border=False)
        if inside is not None:
            outside = b.binary("eq", inside.value, b.constant(0, inside.value.type))
            with b.when(outside):
                self._transform(n, corner, at_border=True)

    def _transform(self, n: Index, corner: Sequence[Index], *, at_border: bool) -> None:
        b, size, lanes = self.b, self.size, self.lanes
        buffer = b.alloc("tile", [size * size, lanes], f32)
        with (
            b.loop("i", size, unroll=True) as i,
            b.loop("j", size, unroll=True) as j,
            b.loop("e", lanes, vector=True) as e,
        ):
            where = [corner[0] + i, corner[1] + j]
            limits = zip(where, self.anchor.image[2:4], strict=True)
            inside = all_of([p for at, extent in limits for p in (at >= 0, at < extent)]) if at_border else None
            zero = b.constant(0.0, f32) if at_border else None
            value = b.load(b.inputs[0], [n, self.block, *where, e], inside, zero)
            b.store(value, buffer, [i * size + j, e])
        with b.loop("e", lanes, vector=True) as e:
            values = [b.load(buffer, [place, e]) for place in range(size * size)]
            for product, value in enumerate(transformed_twice(b, self.anchor.filtering.input, values)):
                b.store(value, b.output, [b.index(product), self.block, self.tile, e])


def _output_tile(
    b: KernelBuilder, anchor: WinogradOutputOp, block: Index, tile: Index, n: Index, position: Sequence[Index]
) -> None:
    """Transforms the products of a tile to pixels of image n."""
    size, outputs, lanes = anchor.filtering.tile, anchor.outputs.value.data, anchor.shape[-1]
    buffer = b.alloc("tile", [outputs * outputs, lanes], f32)
    with b.loop("e", lanes, vector=True) as e:
        values = [b.load(b.inputs[0], [b.index(product), block, tile, e]) for product in range(size * size)]
        for place, value in enumerate(transformed_twice(b, anchor.filtering.output, values)):
            b.store(value, buffer, [place, e])
    with b.loop("i", outputs, unroll=True) as i, b.loop("j", outputs, unroll=True) as j:
        where = [at * outputs + offset for at, offset in zip(position, (i, j), strict=True)]
        limits = zip(where, anchor.shape[2:4], strict=True)
        inside = all_of([at < extent if extent % outputs else None for at, extent in limits])
        with b.when(inside), b.loop("e", lanes, vector=True) as e:
            b.store(b.load(buffer, [i * outputs + j, e]), b.output, [n, block, *where, e])


def _rows(anchor: WinogradInputOp | WinogradOutputOp) -> list[int]:
    """Blocks of channels, images and rows of tiles."""
    image = anchor.image if isinstance(anchor, WinogradInputOp) else anchor.shape
    return [image[1], image[0], anchor.tiles[0]]


def _extents(anchor: Anchor) -> tuple[int, int]:
    """Tiles of a row, and rows."""
    assert isinstance(anchor, WinogradInputOp | WinogradOutputOp)
    return anchor.tiles[1], prod(_rows(anchor))


__all__ = ["WinogradCpu"]
