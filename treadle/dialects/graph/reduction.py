"""Operators that fold dimensions: reduction, pool, and the position of an extreme element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, IntegerType, StringAttr, TensorType, i1, i32, i64
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
    word,
)
from treadle.dialects.graph.dtypes import accumulator, integer_limits, is_float
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.graph.linear import Windows

REDUCTION_KINDS = ("add", "mul", "max", "min", "mean", "and", "or")


@irdl_op_definition
class ReductionOp(Operator):
    """Folds dimensions of a tensor; `mean` divides the sum by their volume, in float32 for floats of 16 bits; that of
    integers truncates.

    ```mlir
    %y = graph.reduction "mean" %x {dims = array<i64: 2, 3>, keep = 1 : i64}
        : (tensor<1x64x7x7xf32>) -> tensor<1x64x1x1xf32>
    ```
    With `keep`, the folded dimensions stay with extent 1. Rejected: an unknown kind, a dimension that is out of range
    or named twice, `mean` of bools, or of more integers than their type can count.
    """

    name = "graph.reduction"
    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    dims = prop_def(DenseArrayBase.constr(i64))
    keep = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$kind $x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, kind: str, x: SSAValue, dims: Sequence[int], keep: bool):
        super().__init__([x], kind=kind, dims=dims, keep=keep)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        kind, dims, shape = word(properties, "kind"), int_list(properties, "dims"), types[0].get_shape()
        element = types[0].get_element_type()
        require(
            kind in REDUCTION_KINDS,
            f"unknown reduction {kind!r}: expected one of {', '.join(REDUCTION_KINDS)}",
        )
        require((kind in ("and", "or")) == (element == i1), f"{kind} is not defined on {element}")
        require(len(set(dims)) == len(dims), f"dimensions {dims} name one twice")
        require(all(0 <= d < len(shape) for d in dims), f"dimensions {dims} of a tensor of rank {len(shape)}")
        if kind == "mean" and not is_float(element):
            count, most = prod(shape[d] for d in dims), integer_limits(element)[1]
            require(count <= most, f"mean of {count} elements of {element}: expected at most {most}")
        if integer(properties, "keep"):
            return TensorType(element, [1 if d in dims else e for d, e in enumerate(shape)])
        return TensorType(element, [e for d, e in enumerate(shape) if d not in dims])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dims, shape = sorted(int_list(self.properties, "dims")), shape_of(self.x)
        extents = [shape[d] for d in dims]
        outer = iter(index if not self.keep.value.data else [i for d, i in enumerate(index) if d not in dims])
        kept = {d: next(outer) for d in range(len(shape)) if d not in dims}

        def read(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            folded = dict(zip(dims, k, strict=True))
            return inner.at(self.x, [kept[d] if d in kept else folded[d] for d in range(len(shape))])

        if self.kind.data != "mean":
            return b.reduce(self.kind.data, extents, read)
        element = self.type.get_element_type()
        total = b.reduce("add", extents, lambda inner, k: convert(inner, read(inner, k), accumulator(element)))
        return convert(b, b.binary("div", total, b.constant(prod(extents), total.type)), element)


def identity(kind: str, type: Attribute) -> float:
    """The identity of a reduction's monoid in an element type."""
    if kind in ("add", "or"):
        return 0
    if kind in ("mul", "and"):
        return 1
    if is_float(type):
        return -inf if kind == "max" else inf
    lowest, highest = integer_limits(type)
    return lowest if kind == "max" else highest


@irdl_op_definition
class PoolOp(Operator):
    """Maximum or average under a sliding window of `[N, C, spatial...]`.

    ```mlir
    %y = graph.pool "max" %x {kernel = array<i64: 3, 3>, strides = array<i64: 2, 2>, pads = array<i64: 1, 1, 1, 1>,
        dilations = array<i64: 1, 1>, ceil = 0 : i64, count_pad = 0 : i64} : (...) -> ...
    ```
    `ceil` rounds the number of positions up; with `count_pad` the average counts padding as zeros. Rejected: an
    unknown kind, lists that do not fit the rank, a stride below 1, an average of integers, a window larger than the
    padded input.
    """

    name = "graph.pool"
    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    kernel = prop_def(DenseArrayBase.constr(i64))
    strides = prop_def(DenseArrayBase.constr(i64))
    pads = prop_def(DenseArrayBase.constr(i64))
    dilations = prop_def(DenseArrayBase.constr(i64))
    ceil = prop_def(IntegerAttr)
    count_pad = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$kind $x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(
        self,
        kind: str,
        x: SSAValue,
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        ceil: bool = False,
        count_pad: bool = False,
    ):
        lists = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
        super().__init__([x], kind=kind, **lists, ceil=ceil, count_pad=count_pad)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        windows, shape = Windows.of(properties), types[0].get_shape()
        kernel, strides, pads, dilations = windows.kernel, windows.strides, windows.pads, windows.dilations
        rank = len(shape) - 2
        kind = word(properties, "kind")
        require(kind in ("max", "avg"), f"unknown pooling {kind!r}: expected max or avg")
        require(rank >= 1, f"pooling of {types[0]}: rank is at least 3")
        lengths = (len(kernel), len(strides), len(dilations), len(pads))
        require(lengths == (rank, rank, rank, 2 * rank), f"{lengths} entries for {rank} spatial dimensions")
        require(min((*kernel, *strides, *dilations)) >= 1, "kernel, strides and dilations are at least 1")
        require(min(pads) >= 0, "pads are at least 0")
        require(kind == "max" or is_float(types[0].get_element_type()), f"average of {types[0]}: floats are needed")
        spatial = windows.positions(shape[2:], bool(integer(properties, "ceil")))
        require(all(e >= 1 for e in spatial), f"a window of {kernel} does not fit the padded input {shape[2:]}")
        return TensorType(types[0].get_element_type(), [*shape[:2], *spatial])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        n, c, *position = index
        element = self.type.get_element_type()
        kernel = int_list(self.properties, "kernel")
        kind = "max" if self.kind.data == "max" else "add"

        def read(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            where, conditions = self._input(inner, position, k)
            inside = inner.all(conditions)
            if inside is None:
                return inner.at(self.x, [n, c, *where])
            return inner.at(self.x, [n, c, *where], inside, inner.constant(identity(kind, element), element))

        if kind == "max":
            return b.reduce(kind, kernel, read)
        total = b.reduce(kind, kernel, lambda inner, k: convert(inner, read(inner, k), accumulator(element)))
        return convert(b, b.binary("div", total, self._count(b, position, total.type)), element)

    def _input(
        self, b: DefinitionBuilder, position: Sequence[Scalar], offset: Sequence[Scalar]
    ) -> tuple[list[Scalar], list[Scalar]]:
        """The input indices under a window's element, and the conditions under which they are inside."""
        return Windows.of(self.properties).indices(b, position, offset, shape_of(self.x)[2:], self.shape[2:])

    def _count(self, b: DefinitionBuilder, position: Sequence[Scalar], element: Attribute) -> Scalar:
        """How many elements an average divides by, as an `element`."""
        kernel = int_list(self.properties, "kernel")
        padded = any(int_list(self.properties, "pads")) or bool(self.ceil.value.data)
        if not padded or (self.count_pad.value.data and not self.ceil.value.data):
            return b.constant(float(prod(kernel)), element)

        def one(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            inside = inner.all(self._counted(inner, position, k))
            counted, zero = inner.constant(1.0, element), inner.constant(0.0, element)
            return counted if inside is None else inner.select(inside, counted, zero)

        return b.reduce("add", kernel, one)

    def _counted(self, b: DefinitionBuilder, position: Sequence[Scalar], k: Sequence[Scalar]) -> list[Scalar]:
        """When a window's element counts: inside the input, or with `count_pad` inside the padded input."""
        if not self.count_pad.value.data:
            return self._input(b, position, k)[1]
        x, rank, windows = shape_of(self.x), len(position), Windows.of(self.properties)
        conditions: list[Scalar] = []
        for d in range(rank):
            i = b.add(b.mul(position[d], windows.strides[d]), b.mul(k[d], windows.dilations[d]))
            conditions.append(b.binary("lt", i, x[d + 2] + windows.pads[d] + windows.pads[d + rank]))
        return conditions


# The position of the largest or smallest element along a dimension.


@irdl_op_definition
class ArgReductionOp(Operator):
    """The position of the largest (`max`) or smallest (`min`) element along a dimension, as i64.

    ```mlir
    %y = graph.arg_reduction "max" %x {dim = 1 : i64, keep = 1 : i64, last = 0 : i64}
        : (tensor<4x8xf32>) -> tensor<4x1xi64>
    ```
    Of equal elements, the first counts, or with `last` the last; a NaN counts as larger, and as smaller, than any
    number. With `keep`, the dimension stays with extent 1. Rejected: an unknown kind, a dimension out of range or of
    extent 0, elements other than floats and integers of more than one bit.
    """

    name = "graph.arg_reduction"
    kind = prop_def(StringAttr)
    x = operand_def(TensorType)
    dim = prop_def(IntegerAttr)
    keep = prop_def(IntegerAttr)
    last = prop_def(IntegerAttr)
    traits = traits_def(Pure())
    assembly_format = "$kind $x attr-dict `:` `(` type($x) `)` `->` type($result)"

    def __init__(self, kind: str, x: SSAValue, dim: int, keep: bool, last: bool = False):
        super().__init__([x], kind=kind, dim=dim, keep=keep, last=last)

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        kind, dim, shape = word(properties, "kind"), integer(properties, "dim"), types[0].get_shape()
        element = types[0].get_element_type()
        require(kind in ("max", "min"), f"unknown arg_reduction {kind!r}: expected max or min")
        require(0 <= dim < len(shape), f"dimension {dim} of a tensor of rank {len(shape)}")
        require(shape[dim] != 0, f"the {kind} of no elements, along dimension {dim} of {types[0]}")
        ordered = is_float(element) or (isinstance(element, IntegerType) and element.width.data > 1)
        require(ordered, f"arg_reduction of {element}: floats or integers are needed")
        kept = [1] if integer(properties, "keep") else []
        return TensorType(i64, [*shape[:dim], *kept, *shape[dim + 1 :]])

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        dim, extent = self.dim.value.data, shape_of(self.x)[self.dim.value.data]
        outer = [*index[:dim], *index[dim + 1 :]] if self.keep.value.data else list(index)
        last = bool(self.last.value.data)

        def read(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            return inner.at(self.x, [*outer[:dim], k[0], *outer[dim:]])

        extremum = b.reduce(self.kind.data, [extent], read)

        def candidate(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
            value = read(inner, k)
            found = inner.binary("eq", value, extremum)
            if is_float(value.type):
                # A NaN makes the extremum NaN, which is equal to nothing.
                found = inner.binary("or", found, inner.binary("ne", value, value))
            position = inner.insert(arith.IndexCastOp(k[0], i32))
            return inner.select(found, position, inner.constant(-1 if last else extent, i32))

        return b.insert(arith.ExtSIOp(b.reduce("max" if last else "min", [extent], candidate), i64))
