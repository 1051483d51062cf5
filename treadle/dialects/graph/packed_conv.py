"""A convolution of images in blocks of channels, whose filters are laid out for the matrix unit of a CPU's core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, prod

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, TensorType, bf16, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import DefinitionBuilder, Operator, Scalar, int_list, integer, ints, require
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.graph.linear import padded_at, window_index
from treadle.dialects.graph.packed_matmul import PANEL_COLUMNS, SUMS, panels_type


@irdl_op_definition
class PackedConvOp(Operator):
    """Convolution of an image `[N, C / lanes, H, W, lanes]` by filters `[C / lanes * KH * KW * lanes, OC]` in panels of
    32 columns, with sums in f32 or i32; the result is `[N, OC / 32, H', W', 32]`.

    ```mlir
    %y = graph.packed_conv %x, %panels {channels = 64 : i64, columns = 96 : i64, kernel = array<i64: 3, 3>,
        strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
        : (tensor<1x2x28x28x32xbf16>, tensor<3x288x32x2xbf16>) -> tensor<1x3x28x28x32xf32>
    ```
    A pixel's block of channels has 64 bytes: 32 lanes of bf16, 64 of bytes. Rows of the filters are `(block, row of
    the window, column of the window, lane)`; panels are those of `graph.packed_matmul`, and so are the sums. `pads` are
    zeros: top, left, bottom, right. Of the last block of x only lanes of channels below C are read; columns of the
    result beyond OC are zeros. Rejected: another rank, other element types, blocks of another size, channels that x has
    not or that are fewer than its blocks need, panels of another shape, negative pads, strides or dilations below 1, a
    window larger than the padded image.
    """

    name = "graph.packed_conv"
    x = operand_def(TensorType)
    panels = operand_def(TensorType)
    channels = prop_def(IntegerAttr)
    columns = prop_def(IntegerAttr)
    kernel = prop_def(DenseArrayBase.constr(i64))
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(Pure())
    assembly_format = "$x `,` $panels attr-dict `:` `(` type($x) `,` type($panels) `)` `->` type($result)"

    def __init__(
        self,
        x: SSAValue,
        panels: SSAValue,
        extents: tuple[int, int],
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
    ):
        """`extents` are the channels of the image, and of the result."""
        lists = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
        numbers = dict(zip(("channels", "columns"), extents, strict=True))
        super().__init__(
            [x, panels],
            {**{k: IntegerAttr(v, i64) for k, v in numbers.items()}, **{k: ints(v) for k, v in lists.items()}},
        )

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, panels = types
        left, right = x.get_element_type(), panels.get_element_type()
        channels, columns = (integer(properties, name) for name in ("channels", "columns"))
        kernel, strides, pads, dilations = (
            int_list(properties, name) for name in ("kernel", "strides", "pads", "dilations")
        )
        fits = left in SUMS and right in SUMS and (left == bf16) == (right == bf16)
        require(fits, f"packed_conv of {left} and {right}: both bf16, or i8 and ui8, are needed")
        lanes = 32 if left == bf16 else 64
        shape = x.get_shape()
        is_image = len(shape) == 5 and min(shape) >= 1 and shape[-1] == lanes
        require(is_image, f"packed_conv of {x}: an image [N, blocks, H, W, {lanes}] is needed")
        n, blocks, *spatial, _ = shape
        require(ceil(channels / lanes) == blocks, f"{channels} channels of {x}: they do not need {blocks} blocks")
        counts = [len(each) for each in (kernel, strides, dilations, pads)]
        require(counts == [2, 2, 2, 4], f"a kernel, strides, dilations and pads of {counts} numbers: 2, 2, 2 and 4")
        require(min(*kernel, *strides, *dilations) >= 1, "a kernel, strides and dilations are at least 1")
        require(min(pads) >= 0, f"pads {list(pads)}: no negative ones are known")
        wanted = panels_type(right, blocks * prod(kernel) * lanes, columns)
        require(panels == wanted, f"panels {panels} of {columns} columns: {wanted} is needed")
        sizes = [
            (spatial[d] + pads[d] + pads[d + 2] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1 for d in (0, 1)
        ]
        require(min(sizes) >= 1, f"a window of {list(kernel)} does not fit the padded input {x}")
        return TensorType(SUMS[left], [n, ceil(columns / PANEL_COLUMNS), *sizes, PANEL_COLUMNS])

    @property
    def image(self) -> tuple[int, ...]:
        """`[N, blocks, H, W, lanes]`."""
        assert isinstance(self.x.type, TensorType)
        return self.x.type.get_shape()

    @property
    def reduction_extent(self) -> int:
        """The terms of a sum, with those of lanes beyond the channels."""
        return self.image[1] * prod(self.list_of("kernel")) * self.image[-1]

    def list_of(self, name: str) -> tuple[int, ...]:
        """The kernel, strides, pads or dilations."""
        return tuple(int_list(self.properties, name))

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, panel, *position, column = index
        kernel, strides, pads, dilations = map(self.list_of, ("kernel", "strides", "pads", "dilations"))
        lanes = self.image[-1]
        assert isinstance(self.panels.type, TensorType)
        side = self.panels.type.get_shape()[-1]

        def product(inner: DefinitionBuilder, at: Sequence[Scalar]) -> Scalar:
            channel, *offset = at
            block, lane = inner.div(channel, lanes), inner.mod(channel, lanes)
            where: list[Scalar] = []
            conditions: list[Scalar] = []
            for d in (0, 1):
                last = (self.shape[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] - pads[d]
                i, inside = window_index(
                    inner, position[d], offset[d], strides[d], dilations[d], pads[d], self.image[2 + d], last
                )
                where.append(i)
                conditions += inside
            left = padded_at(inner, self.x, [n, block, *where, lane], conditions)
            k = inner.linearize([block, *offset, lane], [self.image[1], *kernel, lanes])
            right = inner.at(self.panels, [panel, inner.div(k, side), column, inner.mod(k, side)])
            total = self.type.get_element_type()
            return inner.mul(convert(inner, left, total), convert(inner, right, total))

        return b.reduce("add", [self.channels.value.data, *kernel], product)


__all__ = ["PackedConvOp"]
