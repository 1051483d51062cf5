"""Operators on tiles of images, between which a convolution of 3x3 filters is a batch of matrix products.

Of F(m x m, 3 x 3), a tile has `m x m` outputs and `a x a` inputs, a = m + 2; neighbouring tiles of inputs overlap by
two. Images lie in blocks of channels, `[N, blocks, H, W, lanes]`, and transformed tiles as `[a * a, blocks, tiles,
lanes]`: a matrix of tiles by channels for each product. Tiles are in row-major order of `[N, ceil(H / m),
ceil(W / m)]`, H and W being those of the result; the last ones may reach beyond it. Source: Lavin and Gray, "Fast
algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import ceil, prod

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, f32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar, int_list, integer, ints, require
from treadle.dialects.graph.linear import padded_at, window_index
from treadle.dialects.graph.winograd_matrices import KERNEL, OUTPUTS, Filtering, Matrix, filtering


class TilesOp(Operator):
    """A transform of all tiles of an image."""

    x = operand_def(TensorType)
    outputs = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    @property
    def filtering(self) -> Filtering:
        """The algorithm along a dimension."""
        return filtering(self.outputs.value.data)

    @property
    @abstractmethod
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of an image's tiles."""


@irdl_op_definition
class WinogradInputOp(TilesOp):
    """`B^T d B` of the tiles d of an image: `[N, blocks, H, W, lanes]` to `[a * a, blocks, tiles, lanes]`.

    ```mlir
    %v = graph.winograd_input %x {outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>}
        : (tensor<1x8x28x28x8xf32>) -> tensor<16x8x196x8xf32>
    ```
    `outputs` is m; `pads` lists zeros before and after rows, as of a convolution: top, left, bottom, right. Rejected:
    another rank, another type than f32, an m without matrices, negative pads, a filter larger than the padded image.
    """

    name = "graph.winograd_input"
    pads = prop_def(DenseArrayBase.constr(i64))

    def __init__(self, x: SSAValue, outputs: int, pads: Sequence[int]):
        super().__init__([x], {"outputs": IntegerAttr(outputs, i64), "pads": ints(pads)})

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        outputs, pads = integer(properties, "outputs"), int_list(properties, "pads")
        _check(types[0], 5, outputs)
        require(len(pads) == 4 and min(pads, default=0) >= 0, f"pads {list(pads)}: four of at least 0 are needed")
        n, blocks, height, width, lanes = types[0].get_shape()
        tiles = [
            ceil((extent + before + after - KERNEL + 1) / outputs)
            for extent, before, after in ((height, pads[0], pads[2]), (width, pads[1], pads[3]))
        ]
        require(min(tiles) >= 1, f"a window of 3x3 does not fit the padded input {types[0]}")
        return TensorType(f32, [filtering(outputs).tile ** 2, blocks, n * prod(tiles), lanes])

    @property
    def image(self) -> tuple[int, ...]:
        """`[N, blocks, H, W, lanes]`."""
        assert isinstance(self.x.type, TensorType)
        return self.x.type.get_shape()

    @property
    def tiles(self) -> tuple[int, int]:
        pads, outputs = int_list(self.properties, "pads"), self.outputs.value.data
        height, width = (self.image[d] + pads[d - 2] + pads[d] - KERNEL + 1 for d in (2, 3))
        return ceil(height / outputs), ceil(width / outputs)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        product, block, tile, lane = index
        size, outputs, pads = self.filtering.tile, self.outputs.value.data, int_list(self.properties, "pads")
        places = b.delinearize(product, [size, size])
        n, *position = b.delinearize(tile, [self.image[0], *self.tiles])

        def term(inner: DefinitionBuilder, offset: Sequence[Scalar]) -> Scalar:
            where: list[Scalar] = []
            conditions: list[Scalar] = []
            for d in (0, 1):
                extent, last = self.image[d + 2], (self.tiles[d] - 1) * outputs + size - 1 - pads[d]
                i, inside = window_index(inner, position[d], offset[d], outputs, 1, pads[d], extent, last)
                where.append(i)
                conditions += inside
            factors = [_entry(inner, self.filtering.input, places[d], offset[d]) for d in (0, 1)]
            return inner.mul(inner.mul(*factors), padded_at(inner, self.x, [n, block, *where, lane], conditions))

        return b.reduce("add", [size, size], term)


@irdl_op_definition
class WinogradOutputOp(TilesOp):
    """`A^T m A` of tiles of products: `[a * a, blocks, tiles, lanes]` to the image `[N, blocks, H, W, lanes]`.

    ```mlir
    %y = graph.winograd_output %m {outputs = 2 : i64, image = array<i64: 1, 28, 28>}
        : (tensor<16x8x196x8xf32>) -> tensor<1x8x28x28x8xf32>
    ```
    `outputs` is m, `image` lists N, H and W. Rejected: another rank, another type than f32, an m without matrices,
    other numbers of products or tiles than the image needs.
    """

    name = "graph.winograd_output"
    image = prop_def(DenseArrayBase.constr(i64))

    def __init__(self, x: SSAValue, outputs: int, image: Sequence[int]):
        super().__init__([x], {"outputs": IntegerAttr(outputs, i64), "image": ints(image)})

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        outputs, image = integer(properties, "outputs"), int_list(properties, "image")
        _check(types[0], 4, outputs)
        require(len(image) == 3 and min(image) >= 1, f"image {list(image)}: N, H and W of at least 1 are needed")
        products, blocks, tiles, lanes = types[0].get_shape()
        n, height, width = image
        wanted = (filtering(outputs).tile ** 2, n * ceil(height / outputs) * ceil(width / outputs))
        require(
            (products, tiles) == wanted,
            f"{types[0]} has {products} products of {tiles} tiles, an image {list(image)} needs {wanted[0]} of "
            f"{wanted[1]}",
        )
        return TensorType(f32, [n, blocks, height, width, lanes])

    @property
    def tiles(self) -> tuple[int, int]:
        outputs = self.outputs.value.data
        return ceil(self.shape[2] / outputs), ceil(self.shape[3] / outputs)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, block, *position, lane = index
        size, outputs = self.filtering.tile, self.outputs.value.data
        places = [b.mod(i, outputs) for i in position]
        tile = b.linearize([n, *(b.div(i, outputs) for i in position)], [self.shape[0], *self.tiles])

        def term(inner: DefinitionBuilder, offset: Sequence[Scalar]) -> Scalar:
            factors = [_entry(inner, self.filtering.output, places[d], offset[d]) for d in (0, 1)]
            product = inner.linearize(offset, [size, size])
            return inner.mul(inner.mul(*factors), inner.at(self.x, [product, block, tile, lane]))

        return b.reduce("add", [size, size], term)


def _check(type: TensorType, rank: int, outputs: int) -> None:
    require(type.get_num_dims() == rank, f"{type}: a tensor of rank {rank} is needed")
    require(type.get_element_type() == f32, f"{type}: elements of f32 are needed")
    require(min(type.get_shape()) >= 1, f"{type}: known extents of at least 1 are needed")
    require(outputs in OUTPUTS, f"tiles of {outputs} outputs: those of {', '.join(map(str, OUTPUTS))} are known")


def _entry(b: DefinitionBuilder, matrix: Matrix, row: Scalar, column: Scalar) -> Scalar:
    """The entry of a matrix at indices that are not known, chosen among those that differ from 0."""
    width = len(matrix[0])
    position = b.linearize([row, column], [len(matrix), width])
    result = b.constant(0.0, f32)
    for n, value in enumerate(value for row_values in matrix for value in row_values):
        if value:
            result = b.select(b.binary("eq", position, n), b.constant(float(value), f32), result)
    return result


__all__ = ["WinogradInputOp", "WinogradOutputOp"]
