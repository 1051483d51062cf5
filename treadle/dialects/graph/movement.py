"""Operators that only move elements: reshape, transpose, broadcast, slice, concat, pad, gather, resize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, IndexType, IntegerAttr, StringAttr, TensorType, i1, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, traits_def, var_operand_def
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
    word,
)
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.graph.elementwise import broadcast_shapes
from treadle.dialects.scalar import number_op


@irdl_op_definition
class ReshapeOp(Operator):
    """The same elements in row-major order under another shape.

    ```mlir
    %y = graph.reshape %x {shape = array<i64: 2, 50>} : (tensor<100xf32>) -> tensor<2x50xf32>
    ```
    Rejected: a shape of another volume.
    """

    name = "graph.reshape"
    x = operand_def(TensorType)
    to = prop_def(DenseArrayBase.constr(i64), prop_name="shape")
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, shape: Sequence[int]):
        super().__init__([x], shape=shape)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        shape = int_list(properties, "shape")
        fits = min(shape, default=0) >= -1 and prod(shape) == prod(types[0].get_shape())
        require(fits, f"{types[0]} does not reshape to {shape}", f"a shape of {prod(types[0].get_shape())} elements")
        return TensorType(types[0].get_element_type(), shape)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        source = shape_of(self.x)
        return b.at(self.x, b.delinearize(b.linearize(index, self.shape), source))


@irdl_op_definition
class TransposeOp(Operator):
    """Permutes dimensions: result dimension `d` is source dimension `perm[d]`.

    ```mlir
    %y = graph.transpose %x {perm = array<i64: 0, 2, 1>} : (tensor<1x4x8xf32>) -> tensor<1x8x4xf32>
    ```
    Rejected: a list that is no permutation of the dimensions.
    """

    name = "graph.transpose"
    x = operand_def(TensorType)
    perm = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, perm: Sequence[int]):
        super().__init__([x], perm=perm)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        shape, perm = types[0].get_shape(), int_list(properties, "perm")
        require(sorted(perm) == list(range(len(shape))), f"{perm} is no permutation of {len(shape)} dimensions")
        return TensorType(types[0].get_element_type(), [shape[p] for p in perm])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        perm = int_list(self.properties, "perm")
        return b.at(self.x, [index[perm.index(d)] for d in range(len(perm))])


@irdl_op_definition
class BroadcastOp(Operator):
    """Repeats dimensions of extent 1, and adds leading ones, as NumPy does.

    ```mlir
    %y = graph.broadcast %x {shape = array<i64: 4, 8>} : (tensor<8xf32>) -> tensor<4x8xf32>
    ```
    Rejected: a shape to which the operand does not broadcast.
    """

    name = "graph.broadcast"
    x = operand_def(TensorType)
    to = prop_def(DenseArrayBase.constr(i64), prop_name="shape")
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, shape: Sequence[int]):
        super().__init__([x], shape=shape)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        shape = int_list(properties, "shape")
        fits = min(shape, default=0) >= -1 and broadcast_shapes([types[0].get_shape(), shape]) == shape
        require(fits, f"{types[0]} does not broadcast to {shape}")
        return TensorType(types[0].get_element_type(), shape)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        return b.broadcast_at(self.x, index)


@irdl_op_definition
class SliceOp(Operator):
    """Every `steps[d]`-th element from `starts[d]`, `sizes[d]` of them, in each dimension; steps may be negative.

    ```mlir
    %y = graph.slice %x {starts = array<i64: 0, 7>, sizes = array<i64: 4, 4>, steps = array<i64: 1, -2>}
        : (tensor<4x8xf32>) -> tensor<4x4xf32>
    ```
    Rejected: a step of 0, a range that leaves the tensor.
    """

    name = "graph.slice"
    x = operand_def(TensorType)
    starts = prop_def(DenseArrayBase.constr(i64))
    sizes = prop_def(DenseArrayBase.constr(i64))
    steps = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]):
        super().__init__([x], starts=starts, sizes=sizes, steps=steps)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        shape = types[0].get_shape()
        starts, sizes, steps = (int_list(properties, n) for n in ("starts", "sizes", "steps"))
        require(
            len(starts) == len(sizes) == len(steps) == len(shape),
            f"a slice of {types[0]} has {len(shape)} entries",
        )
        for d, extent in enumerate(shape):
            require(steps[d] != 0, f"dimension {d}: a step is not 0")
            ends = (starts[d], starts[d] + (sizes[d] - 1) * steps[d])
            inside = sizes[d] == 0 or (min(ends) >= 0 and max(ends) < extent)
            require(sizes[d] >= 0 and inside, f"dimension {d}: elements {ends} of {extent}")
        return TensorType(types[0].get_element_type(), sizes)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        starts, steps = (int_list(self.properties, n) for n in ("starts", "steps"))
        where: list[Scalar | int] = []
        for i, start, step in zip(index, starts, steps, strict=True):
            if step < 0:
                where.append(b.binary("sub", start, b.mul(i, -step)))
            else:
                where.append(b.add(b.mul(i, step), start))
        return b.at(self.x, where)


@irdl_op_definition
class ConcatOp(Operator):
    """Tensors one after another along a dimension.

    ```mlir
    %y = graph.concat %a, %b {dim = 1 : i64} : (tensor<1x4xf32>, tensor<1x8xf32>) -> tensor<1x12xf32>
    ```
    Rejected: no operand, operands that differ elsewhere than along `dim`.
    """

    name = "graph.concat"
    inputs = var_operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$inputs attr-dict `:` `(` type($inputs) `)` `->` type($result)"

    def __init__(self, inputs: Sequence[SSAValue], dim: int):
        super().__init__(inputs, dim=dim)

    @classmethod
    def group(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute]
    ) -> Sequence[SSAValue | Sequence[SSAValue]]:
        return [operands]

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        dim = integer(properties, "dim")
        require(len(types) > 0, "concat of no tensor")
        first = types[0].get_shape()
        require(0 <= dim < len(first), f"dimension {dim} of {types[0]}")
        for type in types[1:]:
            shape = type.get_shape()
            same = shape[:dim] == first[:dim] and shape[dim + 1 :] == first[dim + 1 :] and len(shape) == len(first)
            message, element = f"{type} does not continue {types[0]} along dimension {dim}", types[0].get_element_type()
            require(same, message, f"the same extents in all dimensions but {dim}")
            require(type.get_element_type() == element, "operands differ in element type", f"operands of {element}")
        total = sum(t.get_shape()[dim] for t in types)
        return TensorType(types[0].get_element_type(), [*first[:dim], total, *first[dim + 1 :]])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim = self.dim.value.data
        element = self.type.get_element_type()
        value: Scalar = b.constant(0, element)
        end = self.shape[dim]
        for x in reversed(self.inputs):
            start = end - shape_of(x)[dim]
            position = b.binary("sub", index[dim], start) if start else index[dim]
            where = b.all(
                ([b.binary("ge", index[dim], start)] if start else [])
                + ([b.binary("lt", index[dim], end)] if end < self.shape[dim] else [])
            )
            indices = [*index[:dim], position, *index[dim + 1 :]]
            value = b.at(x, indices) if where is None else b.at(x, indices, where, value)
            end = start
        return value


@irdl_op_definition
class PadOp(Operator):
    """Extends dimensions at both ends: with a constant, the mirrored interior (`reflect`), or the border (`edge`).

    ```mlir
    %y = graph.pad "constant" %x, %value {pads = array<i64: 0, 1, 0, 1>}
        : (tensor<4x8xf32>, tensor<f32>) -> tensor<4x10xf32>
    ```
    `pads` lists the beginnings, then the ends. Rejected: an unknown mode, negative pads (slice first), a
    reflection wider than the interior.
    """

    name = "graph.pad"
    mode = prop_def(StringAttr)
    x = operand_def(TensorType)
    value = operand_def(TensorType)
    pads = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$mode $x `,` $value attr-dict `:` `(` type($x) `,` type($value) `)` `->` type($result)"

    def __init__(self, mode: str, x: SSAValue, value: SSAValue, pads: Sequence[int]):
        super().__init__([x, value], mode=mode, pads=pads)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        shape, pads, mode = types[0].get_shape(), int_list(properties, "pads"), word(properties, "mode")
        require(
            mode in ("constant", "reflect", "edge"),
            f"unknown mode {mode!r}: expected constant, reflect or edge",
        )
        require(len(pads) == 2 * len(shape) and min(pads, default=0) >= 0, f"pads {pads} for {types[0]}")
        same = types[1].get_element_type() == types[0].get_element_type() and not types[1].get_shape()
        require(same, f"the padding value is {types[1]}: expected a scalar of {types[0].get_element_type()}")
        before, after = pads[: len(shape)], pads[len(shape) :]
        for d, extent in enumerate(shape):
            widest = max(before[d], after[d])
            require(
                mode != "reflect" or widest < max(extent, 1),
                f"dimension {d}: a reflection of {widest} in {extent} elements",
            )
            require(mode != "edge" or widest == 0 or extent != 0, f"dimension {d}: the border of no elements")
        return TensorType(
            types[0].get_element_type(), [p + e + q for p, e, q in zip(before, shape, after, strict=True)]
        )

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        shape, pads, mode = shape_of(self.x), int_list(self.properties, "pads"), self.mode.data
        where: list[Scalar] = []
        conditions: list[Scalar] = []
        for d, extent in enumerate(shape):
            before, after = pads[d], pads[d + len(shape)]
            i = b.binary("sub", index[d], before) if before else index[d]
            if mode == "constant":
                conditions += [b.binary("ge", i, 0)] if before else []
                conditions += [b.binary("lt", i, extent)] if after else []
            elif before or after:
                i = _folded(b, i, extent, mode)
            where.append(i)
        inside = b.all(conditions)
        return b.at(self.x, where) if inside is None else b.at(self.x, where, inside, b.at(self.value, []))


def _folded(b: DefinitionBuilder, i: Scalar, extent: int, mode: str) -> Scalar:
    """An index beyond a border, mirrored or clamped into the interior."""
    low = b.constant(0) if mode == "edge" else b.binary("sub", 0, i)
    high = b.constant(extent - 1) if mode == "edge" else b.binary("sub", 2 * extent - 2, i)
    i = b.select(b.binary("lt", i, 0), low, i)
    return b.select(b.binary("ge", i, extent), high, i)


@irdl_op_definition
class GatherOp(Operator):
    """Slices of `data` along a dimension, chosen by a tensor of indices; negative ones count from the end.

    ```mlir
    %y = graph.gather %data, %ids {dim = 0 : i64} : (tensor<30522x384xf32>, tensor<1x128xi64>) -> tensor<1x128x384xf32>
    ```
    Rejected: indices that are no integers, a dimension out of range, or one of extent 0 if elements are to be chosen
    from it. An index out of range is clamped to the nearest element, so that no input can make a kernel read out of
    bounds.
    """

    name = "graph.gather"
    data = operand_def(TensorType)
    indices = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$data `,` $indices attr-dict `:` `(` type($data) `,` type($indices) `)` `->` type($result)"

    def __init__(self, data: SSAValue, indices: SSAValue, dim: int):
        super().__init__([data, indices], dim=dim)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        data, dim = types[0].get_shape(), integer(properties, "dim")
        kind = types[1].get_element_type()
        require(not is_float(kind) and kind != i1, f"indices of {kind}: integers are needed")
        require(0 <= dim < len(data), f"dimension {dim} of {types[0]}")
        shape = [*data[:dim], *types[1].get_shape(), *data[dim + 1 :]]
        require(data[dim] != 0 or 0 in shape, f"dimension {dim} of {types[0]} has no elements to choose from")
        return TensorType(types[0].get_element_type(), shape)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim, rank, extent = (
            self.dim.value.data,
            len(shape_of(self.indices)),
            shape_of(self.data)[self.dim.value.data],
        )
        given = b.at(self.indices, index[dim : dim + rank])
        if given.type == i64:
            # A GPU's index may have 32 bits: one that is out of range has to stay out of range when it is truncated.
            given = b.binary("min", given, b.constant(extent - 1, i64))
            given = b.binary("max", given, b.constant(-extent, i64))
        chosen = b.insert(arith.IndexCastOp(given, IndexType()))
        if given.type != i64:
            chosen = b.binary("max", b.binary("min", chosen, extent - 1), -extent)
        chosen = b.select(b.binary("lt", chosen, 0), b.add(chosen, extent), chosen)
        return b.at(self.data, [*index[:dim], chosen, *index[dim + rank :]])


@irdl_op_definition
class ResizeOp(Operator):
    """Nearest-neighbour resizing: element `i` of the result is element `i * in / out` (floor) of the source.

    ```mlir
    %y = graph.resize %x {shape = array<i64: 1, 8, 26, 26>} : (tensor<1x8x13x13xf32>) -> tensor<1x8x26x26xf32>
    ```
    (ONNX's Resize with nearest, asymmetric, floor.) Rejected: a shape of another rank, an extent below 0, elements of
    an empty source.
    """

    name = "graph.resize"
    x = operand_def(TensorType)
    to = prop_def(DenseArrayBase.constr(i64), prop_name="shape")
    traits = traits_def(Pure())
    assembly_format = "$x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, x: SSAValue, shape: Sequence[int]):
        super().__init__([x], shape=shape)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        shape = int_list(properties, "shape")
        source = types[0].get_shape()
        pairs = zip(source, shape, strict=False)
        fits = len(shape) == len(source) and all(to >= 0 and (extent != 0 or to == 0) for extent, to in pairs)
        require(fits, f"{types[0]} does not resize to {shape}")
        return TensorType(types[0].get_element_type(), shape)

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        where: list[Scalar] = []
        for i, extent, size in zip(index, shape_of(self.x), self.shape, strict=True):
            if size % extent == 0:
                where.append(b.div(i, size // extent))
            else:
                where.append(b.div(b.mul(i, extent), size))
        return b.at(self.x, where)


# Elements beyond an extent that is data.


@irdl_op_definition
class MaskOp(Operator):
    """Elements at the first `n` positions along dimension `dim`, and `fill` at the others.

    ```mlir
    %y = graph.mask %x below %n {dim = 1 : i64, fill = 0xFF800000 : f32}
        : (tensor<8x512xf32>, tensor<i64>) -> tensor<8x512xf32>
    ```
    `n` is data: below 0 it counts as 0, beyond the extent as the extent. The other elements of `x` are not read, so
    that nothing of them comes through, not even NaN. Rejected: a dimension out of range, an `n` that is no scalar of
    i64, a `fill` that is no number of the element type.
    """

    name = "graph.mask"
    x = operand_def(TensorType)
    n = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    fill = prop_def(FloatAttr | IntegerAttr)
    traits = traits_def(Pure(), MovesElements())
    assembly_format = "$x `below` $n attr-dict `:` `(` type($x) `,` type($n) `)` `->` type($result)"

    def __init__(self, x: SSAValue, n: SSAValue, dim: int, fill: float):
        number = number_op(fill, tensor(x).get_element_type()).value
        super().__init__([x, n], dim=dim, fill=number)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        x, dim, fill = types[0], integer(properties, "dim"), properties["fill"]
        assert isinstance(fill, FloatAttr | IntegerAttr)
        require(0 <= dim < len(x.get_shape()), f"dimension {dim} of {x}")
        require(types[1] == TensorType(i64, []), f"n is a {types[1]}: expected tensor<i64>")
        require(fill.type == x.get_element_type(), f"fill is {fill}: expected a number of {x.get_element_type()}")
        return x

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim = self.dim.value.data
        n = extent(b, b.at(self.n, []), self.shape[dim])
        fill = b.constant(self.fill.value.data, self.type.get_element_type())
        return b.at(self.x, index, b.binary("lt", index[dim], n), fill)


def extent(b: DefinitionBuilder, n: Scalar, bound: int) -> Scalar:
    """A number of type i64 as an index from 0 to `bound`: below 0 it counts as 0, beyond the bound as the bound."""
    # A GPU's index may have 32 bits: `n` is brought into range before it is truncated.
    given = b.binary("max", b.binary("min", n, b.constant(bound, i64)), b.constant(0, i64))
    return b.insert(arith.IndexCastOp(given, IndexType()))
