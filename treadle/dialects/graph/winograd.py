"""A convolution of 3x3 filters by Winograd's minimal filtering, as one operator.

Of F(m x m, 3 x 3), a tile has `m x m` outputs and `a x a` inputs, a = m + 2; neighbouring tiles of inputs overlap by
two. Images lie in blocks of channels, `[N, blocks, H, W, lanes]`. Tiles are in row-major order of `[N, ceil(H / m),
ceil(W / m)]`, H and W being those of the result; the last ones may reach beyond it. Source: Lavin and Gray, "Fast
algorithms for convolutional neural networks", CVPR 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import ceil, prod

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, f32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import (
    DefinitionBuilder,
    Operator,
    Scalar,
    int_list,
    integer,
    require,
    shape_of,
)
from treadle.dialects.graph.linear import Windows, padded_at

# The matrices of Winograd's minimal filtering algorithms F(m, 3).

KERNEL = 3
"""Elements of a filter along a dimension."""

_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""Where polynomials are evaluated, besides infinity, by the outputs of a tile: fractions that f32 holds, near 1, so
that few digits cancel. Against float64, F(4x4, 3x3) at these has half the error of the usual 0, 1, -1, 2 and -2."""

OUTPUTS: tuple[int, ...] = tuple(_POINTS)
"""The outputs of a tile along a dimension for which there are matrices."""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Filtering:
    """`A^T [(G g) * (B^T d)]`: `outputs` results of a filter g of 3 elements along d, which has `tile`.

    input: `B^T`, `[tile, tile]`
    filter: `G`, `[tile, 3]`
    output: `A^T`, `[outputs, tile]`
    """

    input: Matrix
    filter: Matrix
    output: Matrix

    @property
    def tile(self) -> int:
        """Elements under a tile of outputs, and products along a dimension."""
        return len(self.input)


@cache
def filtering(outputs: int) -> Filtering:
    """F(outputs, 3) by the transposed algorithm of Toom and Cook at some points and infinity.

    Sources: Winograd, "Arithmetic complexity of computations", SIAM 1980; Lavin and Gray, "Fast algorithms for
    convolutional neural networks", CVPR 2016; Barabasz et al., "Error analysis and improving the accuracy of Winograd
    convolution for deep neural networks", ACM TOMS 2020, section 2.
    """
    points = _POINTS[outputs]
    others = [[q for q in points if q is not p] for p in points]
    scales = [_product([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    tile = len(points) + 1
    rows = [(*_polynomial(rest), Fraction(0)) for rest in others]
    last = [Fraction(n == KERNEL - 1) for n in range(KERNEL)]
    filters = [tuple(p**n / scale for n in range(KERNEL)) for p, scale in zip(points, scales, strict=True)]
    results = [(*(p**n for p in points), Fraction(n == outputs - 1)) for n in range(outputs)]
    assert tile == outputs + KERNEL - 1
    return Filtering((*rows, _polynomial(points)), (*filters, tuple(last)), tuple(results))


def _product(factors: Sequence[Fraction]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots, that of the highest power, which is 1, last."""
    result = [Fraction(1)]
    for root in roots:
        result = [a - root * b for a, b in zip([Fraction(0), *result], [*result, Fraction(0)], strict=True)]
    return tuple(result)


@irdl_op_definition
class WinogradConvOp(Operator):
    """`A^T [sum of u * (B^T d B)] A`, over the channels of the tiles d of an image `[N, blocks, H, W, lanes]` and of
    transformed filters u `[a * a, C, OC]`; the result is `[N, OC / lanes, H', W', lanes]`.

    ```mlir
    %y = graph.winograd_conv %x, %u {outputs = 2 : i64, pads = array<i64: 1, 1, 1, 1>}
        : (tensor<1x8x28x28x8xf32>, tensor<16x64x96xf32>) -> tensor<1x12x28x28x8xf32>
    ```
    `outputs` is m; `pads` lists zeros before and after rows, as of a convolution: top, left, bottom, right. Of the last
    block of x only the lanes of channels below C are read. Rejected: another rank, another type than f32, an m without
    matrices, negative pads, a filter larger than the padded image, filters of another number of products, channels that
    x has not, or that are fewer than its blocks need, results that leave a block in part.
    """

    name = "graph.winograd_conv"
    x = operand_def(TensorType)
    filters = operand_def(TensorType)
    outputs = prop_def(IntegerAttr)
    pads = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(Pure())
    assembly_format = "$x `,` $filters attr-dict `:` `(` type($x) `,` type($filters) `)` `->` type($result)"

    def __init__(self, x: SSAValue, filters: SSAValue, outputs: int, pads: Sequence[int]):
        super().__init__([x, filters], outputs=outputs, pads=pads)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        outputs, pads = integer(properties, "outputs"), int_list(properties, "pads")
        _check(types[0], 5, outputs)
        _check(types[1], 3, outputs)
        require(len(pads) == 4 and min(pads, default=0) >= 0, f"pads {list(pads)}: four of at least 0 are needed")
        n, blocks, *extents, lanes = types[0].get_shape()
        products, channels, columns = types[1].get_shape()
        wanted = filtering(outputs).tile ** 2
        require(products == wanted, f"filters {types[1]} of {products} products: {wanted} are needed")
        least, most = (blocks - 1) * lanes + 1, blocks * lanes
        require(
            least <= channels <= most, f"filters {types[1]} of {channels} channels: {types[0]} has {least} to {most}"
        )
        require(columns % lanes == 0, f"{columns} columns of {types[1]} are no blocks of {lanes}")
        height, width = (extents[d] + pads[d] + pads[d + 2] - KERNEL + 1 for d in (0, 1))
        require(min(height, width) >= 1, f"a window of 3x3 does not fit the padded input {types[0]}")
        return TensorType(f32, [n, columns // lanes, height, width, lanes])

    @property
    def filtering(self) -> Filtering:
        """The algorithm along a dimension."""
        return filtering(self.outputs.value.data)

    @property
    def image(self) -> tuple[int, ...]:
        """`[N, blocks, H, W, lanes]`."""
        return shape_of(self.x)

    @property
    def matrix(self) -> tuple[int, int]:
        """`[C, OC]`."""
        _, channels, columns = shape_of(self.filters)
        return channels, columns

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of an image's tiles."""
        outputs = self.outputs.value.data
        return ceil(self.shape[2] / outputs), ceil(self.shape[3] / outputs)

    @property
    def operation_count(self) -> int:
        """Of the products, and of the transforms along each dimension, without factors of 1 and 0."""
        tiles, (channels, columns) = self.image[0] * prod(self.tiles), self.matrix
        inputs, results = _of_tile(self.filtering.input), _of_tile(self.filtering.output)
        return tiles * (2 * self.filtering.tile**2 * channels * columns + channels * inputs + columns * results)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, block, *position, lane = index
        size, outputs, lanes = self.filtering.tile, self.outputs.value.data, self.image[-1]
        places, tile = [b.mod(i, outputs) for i in position], [b.div(i, outputs) for i in position]
        column = b.linearize([block, lane], [self.shape[1], lanes])

        def product(inner: DefinitionBuilder, at: Sequence[Scalar]) -> Scalar:
            factors = [_entry(inner, self.filtering.output, places[d], at[d]) for d in (0, 1)]
            return inner.mul(inner.mul(*factors), inner.reduce("add", [self.matrix[0]], channel(at)))

        def channel(at: Sequence[Scalar]) -> Callable[[DefinitionBuilder, Sequence[Scalar]], Scalar]:
            def term(inner: DefinitionBuilder, c: Sequence[Scalar]) -> Scalar:
                where = [n, inner.div(c[0], lanes), inner.mod(c[0], lanes)]
                transformed = inner.reduce(
                    "add", [size, size], lambda b, offset: self._input(b, at, where, tile, offset)
                )
                filter = inner.at(self.filters, [inner.linearize(at, [size, size]), c[0], column])
                return inner.mul(filter, transformed)

            return term

        return b.reduce("add", [size, size], product)

    def _input(
        self,
        b: DefinitionBuilder,
        at: Sequence[Scalar],
        where: Sequence[Scalar],
        tile: Sequence[Scalar],
        offset: Sequence[Scalar],
    ) -> Scalar:
        """What the image's element at an offset of a tile adds to the transformed one at `at`; `where` is the image,
        block and lane."""
        size, outputs = self.filtering.tile, self.outputs.value.data
        windows = Windows([size] * 2, [outputs] * 2, int_list(self.properties, "pads"), [1] * 2)
        position, conditions = windows.indices(b, tile, offset, self.image[2:4], self.tiles)
        factors = [_entry(b, self.filtering.input, at[d], offset[d]) for d in (0, 1)]
        n, block, lane = where
        return b.mul(b.mul(*factors), padded_at(b, self.x, [n, block, *position, lane], conditions))


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


def _of_tile(matrix: Matrix) -> int:
    """Operations of a matrix times a square tile times the transposed matrix."""
    once = sum(sum(value != 0 for value in row) - 1 + sum(abs(value) not in (0, 1) for value in row) for row in matrix)
    return once * (len(matrix[0]) + len(matrix))
