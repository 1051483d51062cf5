"""Operators that contract: matmul, conv, conv_transpose, and those with weights laid out for a CPU's matrix unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from xdsl.dialects.builtin import (
    DenseArrayBase,
    Float32Type,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    bf16,
    f32,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, opt_prop_def, prop_def, traits_def
from xdsl.traits import Pure

from treadle.dialects.graph.definition import (
    DefinitionBuilder,
    MovesElements,
    Operator,
    Scalar,
    int_list,
    integer,
    require,
    shape_of,
    tensor,
    widened,
)
from treadle.dialects.graph.dtypes import SMALL_FLOATS, is_float, is_stored, ui8
from treadle.dialects.graph.elementwise import convert

_TF32, BF16 = StringAttr("tf32"), StringAttr("bf16")
_PRECISIONS: Mapping[Attribute, Sequence[Attribute]] = {f32: (_TF32, BF16), **dict.fromkeys(SMALL_FLOATS, (BF16,))}
"""That products of an element type may have."""
_OPERANDS: Mapping[Attribute | None, set[Attribute]] = {i32: {i8, ui8}, f32: set(SMALL_FLOATS)}
"""The element types that are multiplied, by that of their sums."""


@irdl_op_definition
class MatmulOp(Operator):
    """Matrix product `[batch..., M, K] x [batch..., K, N]`; batch dimensions are equal, or absent from one operand.

    ```mlir
    %c = graph.matmul %a, %b : (tensor<12x128x64xf32>, tensor<12x64x128xf32>) -> tensor<12x128x128xf32>
    ```
    Transposes are separate operators, which fuse as index-only prologues. The sum of f16 and bf16 runs in f32 and is
    rounded once. `precision = "tf32"` allows tensor cores to round operands of f32 to 10 bits of mantissa,
    `precision = "bf16"` the matrix units of CPUs to round them to bf16. With
    `sums = i32` operands are bytes, each of which may be signed or not, and the result is i32, which wraps:
    ```mlir
    %c = graph.matmul %a, %b {sums = i32} : (tensor<128x384xui8>, tensor<384x64xi8>) -> tensor<128x64xi32>
    ```
    With `sums = f32` operands are f8E4M3FN or f8E5M2, each of either type, and the result is f32. Tensor cores carry
    sums of a few terms in 14 bits, so that the result is as exact as that of operands which are rounded to f16, or with
    `precision = "bf16"` to bf16 (docs/adr/0099):
    ```mlir
    %c = graph.matmul %a, %b {sums = f32} : (tensor<128x384xf8E4M3FN>, tensor<384x64xf8E5M2>) -> tensor<128x64xf32>
    ```
    Rejected: rank below 2, extents of K or of the batch that differ, different element types, another precision, or one
    of other operands; other sums, or operands of other types than theirs.
    """

    name = "graph.matmul"
    a = operand_def(TensorType)
    b = operand_def(TensorType)
    precision = opt_prop_def(StringAttr)
    sums = opt_prop_def(IntegerType | Float32Type)
    traits = traits_def(Pure(), MovesElements())  # of 8 bits: they are converted, and then multiplied
    assembly_format = "$a `,` $b attr-dict `:` `(` type($a) `,` type($b) `)` `->` type($result)"

    def __init__(
        self,
        a: SSAValue,
        b: SSAValue,
        *,
        sums: IntegerType | Float32Type | None = None,
        precision: StringAttr | None = None,
    ):
        super().__init__([a, b], sums=sums, precision=precision)

    @property
    def is_of_bytes(self) -> bool:
        """Whether operands are bytes, with sums in i32."""
        return self.sums == i32

    @property
    def is_of_small_floats(self) -> bool:
        """Whether operands are floats of 8 bits, with sums in f32."""
        return self.sums == f32

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        a, b = (list(t.get_shape()) for t in types)
        element, other, sums = types[0].get_element_type(), types[1].get_element_type(), properties.get("sums")
        require(len(a) >= 2 and len(b) >= 2, f"matmul of ranks {len(a)} and {len(b)}: each is at least 2")
        if sums is None:
            message = f"matmul of {types[0]} and {types[1]}: element types differ"
            require(element == other, message, f"two operands of {element}, or of {other}")
            require(not is_stored(element), f"{cls.name} is not defined on {element} without sums", "sums = f32")
        else:
            fits = {element, other} <= _OPERANDS.get(sums, set())
            known = "i32 of i8 and ui8, f32 of f8E4M3FN and f8E5M2"
            require(fits, f"sums of {sums} of {element} and {other}: only {known} are known")
        precision = properties.get("precision")
        allowed = precision is None or precision in _PRECISIONS.get(element, ())
        known = '"tf32" and "bf16" of f32, "bf16" of floats of 8 bits'
        require(allowed, f"precision {precision} of {element}: only {known} are known")
        message = f"matmul of {types[0]} and {types[1]}: {a[-1]} columns against {b[-2]} rows"
        require(a[-1] == b[-2], message, f"as many rows of the second operand as the first has columns: {a[-1]}")
        batch = a[:-2] or b[:-2]
        require(b[:-2] in ([], batch), f"matmul of {types[0]} and {types[1]}: batch dimensions differ")
        return TensorType(element if sums is None else sums, [*batch, a[-2], b[-1]])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        *batch, i, j = index
        total = self.type.get_element_type()

        def term(inner: DefinitionBuilder, x: Scalar) -> Scalar:
            return widened(inner, x) if self.sums is None else convert(inner, x, total)

        def product(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            left = inner.at(self.a, [*self._batch_of(self.a, batch), i, k[0]])
            right = inner.at(self.b, [*self._batch_of(self.b, batch), k[0], j])
            return inner.mul(term(inner, left), term(inner, right))

        return convert(b, b.reduce("add", [self.reduction_extent], product), total)

    @staticmethod
    def _batch_of(operand: SSAValue, batch: Sequence[Scalar]) -> Sequence[Scalar]:
        return batch if len(shape_of(operand)) > 2 else []

    @property
    def reduction_extent(self) -> int:
        return shape_of(self.a)[-1]


def window_extent(
    extent: int, kernel: int, stride: int, before: int, after: int, dilation: int, ceil: bool = False
) -> int:
    """Number of positions of a sliding window along one dimension."""
    span = extent + before + after - dilation * (kernel - 1) - 1
    if not ceil:
        return span // stride + 1
    positions = -(-span // stride) + 1
    # The last window has to start inside the input or its left padding.
    return positions - 1 if (positions - 1) * stride >= extent + before else positions


@dataclass(frozen=True)
class Windows:
    """Windows that slide over the spatial dimensions of an input.

    kernel: the extents of a window; pads: those before all dimensions, then those after
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int]
    dilations: Sequence[int]

    @classmethod
    def of(cls, properties: Mapping[str, Attribute], kernel: Sequence[int] | None = None) -> Windows:
        """What an operator's properties say; `kernel` for one whose weights have the extents of a window."""
        given = int_list(properties, "kernel") if kernel is None else kernel
        return cls(given, *(int_list(properties, name) for name in ("strides", "pads", "dilations")))

    def positions(self, extents: Sequence[int], ceil: bool = False) -> list[int]:
        """How many positions a window has along each dimension of an input."""
        kernel, strides, dilations, after = self.kernel, self.strides, self.dilations, self.pads[len(extents) :]
        return [
            window_extent(extent, kernel[d], strides[d], self.pads[d], after[d], dilations[d], ceil)
            for d, extent in enumerate(extents)
        ]

    def indices(
        self,
        b: DefinitionBuilder,
        position: Sequence[Scalar],
        offset: Sequence[Scalar],
        extents: Sequence[int],
        positions: Sequence[int],
    ) -> tuple[list[Scalar], list[Scalar]]:
        """The input's indices under the element `offset` of a window at `position`, and the conditions under which
        they are inside the input. `extents` are the input's, `positions` how many positions there are."""
        where: list[Scalar] = []
        conditions: list[Scalar] = []
        for d, extent in enumerate(extents):
            stride, dilation, before = self.strides[d], self.dilations[d], self.pads[d]
            index = b.add(b.mul(position[d], stride), b.mul(offset[d], dilation))
            if before:
                index = b.binary("sub", index, before)
                conditions.append(b.binary("ge", index, 0))
            if (positions[d] - 1) * stride + (self.kernel[d] - 1) * dilation - before >= extent:
                conditions.append(b.binary("lt", index, extent))
            where.append(index)
        return where, conditions


@irdl_op_definition
class ConvOp(Operator):
    """Convolution of `[N, C, spatial...]` with weights `[OC, C/groups, kernel...]`.

    ```mlir
    %y = graph.conv %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>,
        groups = 1 : i64} : (tensor<1x3x224x224xf32>, tensor<64x3x3x3xf32>) -> tensor<1x64x112x112xf32>
    ```
    `pads` lists the beginnings, then the ends. Sums of i32 wrap. Rejected: elements that are neither floats nor i32,
    ranks, channels or groups that do not fit, a window larger than the padded input.
    """

    name = "graph.conv"
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$x `,` $w attr-dict `:` `(` type($x) `,` type($w) `)` `->` type($result)"

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
    ):
        super().__init__([x, w], strides=strides, pads=pads, dilations=dilations, groups=groups)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, w = (t.get_shape() for t in types)
        windows, groups = Windows.of(properties, w[2:]), integer(properties, "groups")
        _check_conv(types, windows)
        accepted = f"an input of {w[1] * groups} channels" if groups >= 1 else "1 group or more"
        require(groups >= 1 and x[1] == w[1] * groups, f"{x[1]} channels are not {groups} groups of {w[1]}", accepted)
        require(w[0] % groups == 0, f"{w[0]} output channels are not a multiple of {groups} groups")
        spatial = windows.positions(x[2:])
        require(all(e >= 1 for e in spatial), f"a window of {w[2:]} does not fit the padded input {x[2:]}")
        return TensorType(types[0].get_element_type(), [x[0], w[0], *spatial])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, oc, *position = index
        x, w, groups = shape_of(self.x), shape_of(self.w), self.groups.value.data
        group = b.div(oc, w[0] // groups)

        def product(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            where, conditions = self.input_indices(inner, position, k[1:])
            channel = k[0] if groups == 1 else inner.add(inner.mul(group, w[1]), k[0])
            value = padded_at(inner, self.x, [n, channel, *where], conditions)
            return inner.mul(widened(inner, value), widened(inner, inner.at(self.w, [oc, *k])))

        assert len(x) == len(w)
        return convert(b, b.reduce("add", w[1:], product), self.type.get_element_type())

    def input_indices(
        self, b: DefinitionBuilder, position: Sequence[Scalar], offset: Sequence[Scalar]
    ) -> tuple[list[Scalar], list[Scalar]]:
        """The input's spatial indices under window element `offset` at `position`, and when they are inside."""
        windows = Windows.of(self.properties, shape_of(self.w)[2:])
        return windows.indices(b, position, offset, shape_of(self.x)[2:], self.shape[2:])


def padded_at(b: DefinitionBuilder, x: SSAValue, index: Sequence[Scalar], conditions: Sequence[Scalar]) -> Scalar:
    """The element of `x`, or 0 where a condition fails."""
    where = b.all(conditions)
    if where is None:
        return b.at(x, index)
    return b.at(x, index, where, b.constant(0, tensor(x).get_element_type()))


def _check_conv(types: Sequence[TensorType], windows: Windows) -> None:
    strides, pads, dilations = windows.strides, windows.pads, windows.dilations
    rank = types[0].get_num_dims() - 2
    require(rank >= 1, f"convolution of {types[0]}: rank is at least 3")
    require(types[1].get_num_dims() == rank + 2, f"weights {types[1]} for an input {types[0]}: ranks differ")
    element = types[0].get_element_type()
    require(is_float(element) or element == i32, f"convolution of {types[0]}: floats or i32 are needed")
    require(types[0].get_element_type() == types[1].get_element_type(), "input and weights differ in element type")
    lengths = (len(strides), len(dilations), len(pads))
    require(lengths == (rank, rank, 2 * rank), f"{lengths} strides, dilations, pads for {rank} spatial dimensions")
    require(min(strides) >= 1 and min(dilations) >= 1, "strides and dilations are at least 1")
    require(min(pads) >= 0, "pads are at least 0")


@irdl_op_definition
class ConvTransposeOp(Operator):
    """Transposed convolution of `[N, C, spatial...]` with weights `[C, OC/groups, kernel...]`.

    ```mlir
    %y = graph.conv_transpose %x, %w {strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations =
        array<i64: 1, 1>, groups = 1 : i64, output_padding = array<i64: 0, 0>} : (...) -> ...
    ```
    Rejected: as `graph.conv`.
    """

    name = "graph.conv_transpose"
    x = operand_def(TensorType)
    w = operand_def(TensorType)
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    output_padding = prop_def(DenseArrayBase.constr(i64))
    groups = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$x `,` $w attr-dict `:` `(` type($x) `,` type($w) `)` `->` type($result)"

    def __init__(
        self,
        x: SSAValue,
        w: SSAValue,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        groups: int,
        output_padding: Sequence[int],
    ):
        lists = {"strides": strides, "pads": pads, "dilations": dilations}
        super().__init__([x, w], **lists, groups=groups, output_padding=output_padding)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, w = (t.get_shape() for t in types)
        windows, groups, rank = Windows.of(properties, w[2:]), integer(properties, "groups"), len(x) - 2
        strides, pads, dilations = windows.strides, windows.pads, windows.dilations
        extra = int_list(properties, "output_padding")
        _check_conv(types, windows)
        require(groups >= 1 and x[1] % groups == 0, f"{x[1]} channels are not a multiple of {groups} groups")
        require(x[1] == w[0], f"{x[1]} channels do not fit weights {types[1]}")
        require(len(extra) == rank, f"{len(extra)} entries of output_padding for {rank} spatial dimensions")
        spatial = [
            (x[n + 2] - 1) * strides[n] + dilations[n] * (w[n + 2] - 1) + 1 - pads[n] - pads[n + rank] + extra[n]
            for n in range(rank)
        ]
        require(all(e >= 1 for e in spatial), f"pads {pads} leave nothing of the result {spatial}")
        return TensorType(types[0].get_element_type(), [x[0], w[1] * groups, *spatial])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, oc, *position = index
        x, w, groups = shape_of(self.x), shape_of(self.w), self.groups.value.data
        strides, pads, dilations = (int_list(self.properties, name) for name in ("strides", "pads", "dilations"))
        group, within = (b.div(oc, w[1]), b.mod(oc, w[1])) if groups > 1 else (None, oc)

        def product(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            channel = k[0] if group is None else inner.add(inner.mul(group, x[1] // groups), k[0])
            where: list[Scalar] = []
            conditions: list[Scalar] = []
            for d in range(len(position)):
                # The input position that stride steps spread to this output: (o + pad - k * dilation) / stride.
                # The difference is kept non-negative by a multiple of the stride.
                lift = -(-(w[d + 2] - 1) * dilations[d] // strides[d])
                spread = inner.add(position[d], pads[d] + lift * strides[d])
                spread = inner.binary("sub", spread, inner.mul(k[d + 1], dilations[d]))
                source = inner.binary("sub", inner.div(spread, strides[d]), lift)
                if strides[d] > 1:
                    conditions.append(inner.binary("eq", inner.mod(spread, strides[d]), 0))
                conditions.append(inner.binary("ge", source, 0))
                conditions.append(inner.binary("lt", source, x[d + 2]))
                where.append(source)
            value = padded_at(inner, self.x, [n, channel, *where], conditions)
            return inner.mul(widened(inner, value), widened(inner, inner.at(self.w, [channel, within, *k[1:]])))

        return convert(b, b.reduce("add", [x[1] // groups, *w[2:]], product), self.type.get_element_type())


# A matrix product whose right operand is laid out for the matrix unit of a CPU's core.

PANEL_COLUMNS = 32
SUMS: Mapping[Attribute, Attribute] = {bf16: f32, i8: i32, ui8: i32}
"""In which type sums of products of elements are carried."""


def panels_type(element: Attribute, rows: int, columns: int) -> TensorType:
    """The type of a matrix `[rows, columns]` in panels."""
    side = 2 if element == bf16 else 4
    whole = 16 * side
    return TensorType(element, [ceil(columns / PANEL_COLUMNS), ceil(rows / whole) * 16, PANEL_COLUMNS, side])


@irdl_op_definition
class PackedMatmulOp(Operator):
    """Matrix product `[batch..., M, K] x [K, N]` of a matrix in panels of 32 columns, with sums in f32 or i32.

    ```mlir
    %c = graph.packed_matmul %a, %panels {columns = 3072 : i64}
        : (tensor<128x768xbf16>, tensor<96x384x32x2xbf16>) -> tensor<128x3072xf32>
    ```
    Element [k, n] of the matrix is that at `[n / 32, k / p, n % 32, k % p]` of the panels, p being 2 for bf16 and 4 for
    i8 and ui8; beyond its rows and columns they have zeros, which fill 64 bytes of a column. Products of bf16 are
    summed in f32, which is the result; those of bytes, each of which may be signed or not, exactly in i32. Rejected:
    other element types, a rank below 2, panels of another shape.
    """

    name = "graph.packed_matmul"
    a = operand_def(TensorType)
    panels = operand_def(TensorType)
    columns = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$a `,` $panels attr-dict `:` `(` type($a) `,` type($panels) `)` `->` type($result)"

    def __init__(self, a: SSAValue, panels: SSAValue, columns: int):
        super().__init__([a, panels], columns=columns)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        a, panels = types
        columns, shape = integer(properties, "columns"), list(a.get_shape())
        left, right = a.get_element_type(), panels.get_element_type()
        fits = left in SUMS and right in SUMS and (left == bf16) == (right == bf16)
        require(fits, f"packed_matmul of {left} and {right}: both bf16, or i8 and ui8, are needed")
        require(len(shape) >= 2 and min(shape[-1], columns) >= 1, f"packed_matmul of {a}: its rank is at least 2")
        wanted = panels_type(right, shape[-1], columns)
        require(panels == wanted, f"panels {panels} of {shape[-1]} rows and {columns} columns: {wanted} is needed")
        return TensorType(SUMS[left], [*shape[:-1], columns])

    @property
    def reduction_extent(self) -> int:
        """K."""
        return shape_of(self.a)[-1]

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        *outer, n = index
        side = shape_of(self.panels)[-1]

        def product(inner: DefinitionBuilder, at: Sequence[Scalar]) -> Scalar:
            k = at[0]
            left = inner.at(self.a, [*outer, k])
            panel = [inner.div(n, PANEL_COLUMNS), inner.div(k, side), inner.mod(n, PANEL_COLUMNS), inner.mod(k, side)]
            right = inner.at(self.panels, panel)
            total = self.type.get_element_type()
            return inner.mul(convert(inner, left, total), convert(inner, right, total))

        return b.reduce("add", [self.reduction_extent], product)


# A convolution of images in blocks of channels, whose filters are laid out for the matrix unit of a CPU's core.


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
        super().__init__([x, panels], channels=extents[0], columns=extents[1], **lists)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, panels = types
        left, right = x.get_element_type(), panels.get_element_type()
        channels, columns = (integer(properties, name) for name in ("channels", "columns"))
        windows = Windows.of(properties)
        kernel, strides, pads, dilations = windows.kernel, windows.strides, windows.pads, windows.dilations
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
        sizes = windows.positions(spatial)
        require(min(sizes) >= 1, f"a window of {list(kernel)} does not fit the padded input {x}")
        return TensorType(SUMS[left], [n, ceil(columns / PANEL_COLUMNS), *sizes, PANEL_COLUMNS])

    @property
    def image(self) -> tuple[int, ...]:
        """`[N, blocks, H, W, lanes]`."""
        return shape_of(self.x)

    @property
    def reduction_extent(self) -> int:
        """The terms of a sum, with those of lanes beyond the channels."""
        return self.image[1] * prod(self.list_of("kernel")) * self.image[-1]

    def list_of(self, name: str) -> tuple[int, ...]:
        """The kernel, strides, pads or dilations."""
        return tuple(int_list(self.properties, name))

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, panel, *position, column = index
        windows, lanes, side = Windows.of(self.properties), self.image[-1], shape_of(self.panels)[-1]

        def product(inner: DefinitionBuilder, at: Sequence[Scalar]) -> Scalar:
            channel, *offset = at
            block, lane = inner.div(channel, lanes), inner.mod(channel, lanes)
            where, conditions = windows.indices(inner, position, offset, self.image[2:4], self.shape[2:4])
            left = padded_at(inner, self.x, [n, block, *where, lane], conditions)
            k = inner.linearize([block, *offset, lane], [self.image[1], *windows.kernel, lanes])
            right = inner.at(self.panels, [panel, inner.div(k, side), column, inner.mod(k, side)])
            total = self.type.get_element_type()
            return inner.mul(convert(inner, left, total), convert(inner, right, total))

        return b.reduce("add", [self.channels.value.data, *windows.kernel], product)
