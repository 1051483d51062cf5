"""graph-pack-dequantized: what a product's matrix is dequantised from, in panels or by columns, and in few bits."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, ModuleOp, TensorType, bf16, i8, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import AtOp, ComputeOp, ConstantOp, FusedOp, MatmulOp
from treadle.dialects.graph.constant import constant_array
from treadle.dialects.graph.dtypes import numpy_dtype, ui8
from treadle.dialects.graph.extents import enclosing_function, extents_of
from treadle.dialects.scalar import number_op
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import floordiv, mod, var
from treadle.passes.graph.definition_analysis import index_reader
from treadle.passes.graph.graph_required_regions import required_within
from treadle.passes.graph.layout.layout import Layout, definition_in
from treadle.passes.graph.required_shape import least_extents, needed_shape
from treadle.passes.graph.rewriting import Array, constant_op, shape_of, tensor
from treadle.schedules.default_template import default_template
from treadle.schedules.register_tile import default_vectors, panel_columns
from treadle.target import Target

_BYTE = 8
_BYTES = (i8, ui8)


@dataclass(frozen=True)
class GraphPackDequantizedPass(ModulePass):
    """Stores the constants that a product's matrix is dequantised from in panels of columns, as `graph-pack-weights`
    stores weights, and bytes that hold small numbers only, signed or not, as several numbers each.

    ```mlir
    %b = graph.compute "dequantize" (%k, %n) {
      %0 = graph.at %numbers[%n, %block, %place] : tensor<512x28x32xui8>
      %1 = arith.extui %0 : ui8 to i32
      ... (%1 - 8) * %scales[%n, %block] ...
    } : tensor<896x512xf32>
    %c = graph.matmul %a, %b : (tensor<1x896xf32>, tensor<896x512xf32>) -> tensor<1x512xf32>
    ```
    becomes, of numbers below 16,
    ```mlir
    %b = graph.compute "dequantize" (%k, %n) {
      %0 = graph.at %packed[%panel, %block, %place floordiv 2, %lane] : tensor<8x28x16x64xui8>
      %1 = (%0 as i32 >> 4 * (%place mod 2)) and 15
      ... (%1 - 8) * %panels[%panel, %block, %lane] ...
    } : tensor<896x512xf32>
    ```
    A kernel then reads vectors of neighbouring columns, dequantises them in registers where it multiplies, and reads as
    many bytes as there are numbers of 4 bits. Numbers of 8 bits get panels alone. Matrices that are computed from
    anything but constants, whose reads have no dimension that is the column, stay.

    With `by-columns`, for GPUs, what belongs to a column lies together, in the order of its terms, so that lanes of a
    warp load 16 bytes of them each; small numbers in i32, such as zero points, become bytes first. Only constants of
    products move whose kernel dequantises and wants that (`Template.reads_by_columns`). In a range it suffices that the
    kernel of the call with the fewest rows does; the kernels of all calls then read them so.
    ```mlir
      %0 = graph.at %packed[%n, %block, %place floordiv 2] : tensor<512x28x16xui8>
    ```

    weights: bf16 packs matrices that are widened from that type, too. Those that `precision=bf16` leaves stay without:
        panels took 0.96 to 1.10 times as long (convolutions of SqueezeNet, one thread, AVX-512 and AVX2).
    """

    name = "graph-pack-dequantized"
    target: str = "cpu"
    weights: str = "float"
    width: int | None = None
    """Columns of a panel; by default those of the target's register tile for a matrix of as many."""
    by_columns: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        target, narrow = Target.parse(self.target), {*_BYTES, *([bf16] if self.weights == "bf16" else [])}
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            matrix = product.b.owner
            if not isinstance(matrix, ComputeOp) or len(matrix.shape) != 2:
                continue
            if self.by_columns:
                _order_by_columns(matrix, product, target)
                continue
            rows, columns = matrix.shape
            default = panel_columns(target, default_vectors(target, columns, rows))
            _pack(matrix, default if self.width is None else self.width, narrow)


def _order_by_columns(matrix: ComputeOp, product: MatmulOp, target: Target) -> None:
    """Puts the column's dimension first, and numbers into few bits, where the product's kernel reads them so."""
    if matrix.parent_op() is not product.parent_op() or not _columns(matrix, set(_BYTES)):
        return
    if not any(_reads_by_columns(product, rows, target) for rows in {product.shape[-2], _fewest_rows(product)}):
        return
    for at in matrix.reads():
        _hold_in_bytes(at)
    _pack(matrix, None, set(_BYTES))


def _reads_by_columns(product: MatmulOp, rows: int, target: Target) -> bool:
    """Whether the default kernel of a product of so many rows, in the same group, reads the matrix by columns."""
    shape, element = shape_of(product.a), tensor(product.a).get_element_type()
    some = Block(arg_types=[TensorType(element, (*shape[:-2], rows, shape[-1]))])
    of_rows = MatmulOp(some.args[0], product.b, sums=product.sums)
    of_rows.precision = product.precision
    Rewriter.insert_op(of_rows, InsertPoint.before(product))
    template = default_template(of_rows, target)
    Rewriter.erase_op(of_rows)
    return template is not None and template.reads_by_columns


def _fewest_rows(product: MatmulOp) -> int:
    """The rows that the smallest call of a range needs of a product; all of them without a range."""
    fused, main = product.parent_op(), enclosing_function(product)
    if not isinstance(fused, FusedOp) or main is None or not extents_of(main):
        return product.shape[-2]
    return needed_shape(product.shape, required_within(fused, product.result), least_extents(main))[-2]


def _hold_in_bytes(at: AtOp) -> None:
    """Numbers of i32 that bytes can hold are read from a constant of bytes."""
    constant = at.source.owner
    if not isinstance(constant, ConstantOp) or at.result.type != i32:
        return
    array = constant_array(constant)
    if array.size == 0 or int(array.min()) < 0 or int(array.max()) >= 1 << _BYTE:
        return
    held = constant_op(array.astype(np.uint8))
    held.location, held.result.name_hint = constant.location, constant.result.name_hint
    Rewriter.insert_op(held, InsertPoint.after(constant))
    narrow = AtOp(held.result, at.indices)
    narrow.location = at.location
    Rewriter.replace_op(at, [narrow, arith.ExtUIOp(narrow.result, i32)])
    if not constant.result.uses:
        Rewriter.erase_op(constant)


def _pack(matrix: ComputeOp, panel: int | None, narrow: Set[Attribute]) -> None:
    """Stores a matrix's constants in panels of so many columns; None: each column by itself."""
    columns = _columns(matrix, narrow)
    if not columns:
        return
    forms: dict[SSAValue, tuple[SSAValue, Layout]] = {}
    held: dict[SSAValue, _Held] = {}
    for source, dim in columns.items():
        constant = source.owner
        assert isinstance(constant, ConstantOp)
        rank = len(shape_of(source))
        order = (dim, *(d for d in range(rank) if d != dim))
        layout = Layout(order) if panel is None else Layout((*order, dim), panel)
        array, small = _compressed(layout.array(constant_array(constant)), lanes=panel is not None)
        packed = constant_op(array)
        packed.location, packed.result.name_hint = constant.location, constant.result.name_hint
        Rewriter.insert_op(packed, InsertPoint.after(constant))
        forms[source] = packed.result, layout
        if small is not None:
            held[packed.result] = small
    new = definition_in(matrix, Layout((0, 1)), forms)
    new.location, new.result.name_hint = matrix.location, matrix.result.name_hint
    for at in new.reads():
        if at.source in held:
            _read_bits(at, held[at.source])
    Rewriter.insert_op(new, InsertPoint.before(matrix))
    Rewriter.replace_op(matrix, [], [new.result])
    for source in columns:
        if not source.uses and isinstance(source.owner, ConstantOp):
            Rewriter.erase_op(source.owner)


def _columns(matrix: ComputeOp, narrow: Set[Attribute]) -> dict[SSAValue, int]:
    """The dimension of each constant that is the matrix's column; empty where the matrix is computed from anything
    else, or from none of a type in `narrow`."""
    column, reader = matrix.body.block.args[1], index_reader()
    own, found = reader.read(column), dict[SSAValue, int]()
    for at in matrix.reads():
        indices = [reader.read(index) for index in at.indices]
        moving = [d for d, index in enumerate(indices) if set(index.vars()) & set(own.vars())]
        if not isinstance(at.source.owner, ConstantOp) or at.predicate is not None:
            return {}
        if not moving:
            continue
        if len(moving) > 1 or indices[moving[0]] != own or found.setdefault(at.source, moving[0]) != moving[0]:
            return {}
    return found if any(tensor(source).get_element_type() in narrow for source in found) else {}


@dataclass(frozen=True)
class _Held:
    """How a byte holds several numbers.

    dim:     the dimension along which they are neighbours
    bits:    of each
    bias:    what is added to a number where it is stored
    element: the type of the bytes that held one number each
    """

    dim: int
    bits: int
    bias: int
    element: IntegerType


def _compressed(array: Array, *, lanes: bool) -> tuple[Array, _Held | None]:
    """Bytes that hold numbers of 4, 2 or 1 bits, the first in their lowest bits; others as they are.

    Those of a byte are neighbours in the last dimension that can be divided, before the lanes if there are some, so
    that a kernel which reads terms in order has them at once.
    """
    element = next((each for each in _BYTES if numpy_dtype(each) == array.dtype), None)
    if element is None or array.size == 0:
        return array, None
    low, high = int(array.min()), int(array.max())
    signed = low < 0
    bits = next(b for b in (1, 2, 4, 8) if (-low <= 1 << (b - 1) > high if signed else high < 1 << b))
    count = _BYTE // bits
    dim = max((d for d in range(1, array.ndim - lanes) if array.shape[d] % count == 0), default=0)
    if count == 1 or dim == 0:
        return array, None
    held = _Held(dim, bits, 1 << (bits - 1) if signed else 0, element)
    numbers = (array.astype(np.int16) + held.bias).astype(np.uint8)
    apart = numbers.reshape(*array.shape[:dim], array.shape[dim] // count, count, *array.shape[dim + 1 :])
    shifts = (bits * np.arange(count, dtype=np.uint8)).reshape(count, *[1] * (array.ndim - dim - 1))
    return np.bitwise_or.reduce(apart << shifts, axis=dim + 1), held


def _read_bits(at: AtOp, held: _Held) -> None:
    """Takes a number out of the byte that holds it."""
    emitter, builder = IndexEmitter(InsertPoint.before(at), location=at.location), Builder(InsertPoint.before(at))
    length, count = shape_of(at.source)[held.dim], _BYTE // held.bits
    position = var(at.indices[held.dim], 0, length * count - 1)
    byte = emitter.emit(floordiv(position, count))
    indices = [byte if d == held.dim else index for d, index in enumerate(at.indices)]
    which = builder.insert(arith.IndexCastOp(emitter.emit(mod(position, count) * held.bits), i32)).result
    by = builder.insert(arith.AndIOp(which, builder.insert(number_op(_BYTE - 1, i32)).results[0])).result
    read = builder.insert(AtOp(at.source, indices))
    read.location = at.location
    wide = builder.insert(arith.ExtUIOp(read.result, i32)).result
    mask = builder.insert(number_op((1 << held.bits) - 1, i32)).results[0]
    number: SSAValue = builder.insert(arith.AndIOp(builder.insert(arith.ShRSIOp(wide, by)).result, mask)).result
    if held.bias:
        bias = builder.insert(number_op(held.bias, i32)).results[0]
        number = builder.insert(arith.SubiOp(number, bias)).result
    for use in list(at.result.uses):
        _read_wide(use.operation, number)
    if at.result.uses:
        narrow = builder.insert(arith.TruncIOp(number, held.element))
        at.result.replace_all_uses_with(narrow.result)
    Rewriter.erase_op(at)


def _read_wide(reader: Operation, number: SSAValue) -> None:
    """Has an operation that widens a number of 8 bits take that of 32 bits."""
    if isinstance(reader, arith.ExtUIOp | arith.ExtSIOp) and reader.result.type == i32:
        Rewriter.replace_op(reader, [], [number])
    elif isinstance(reader, arith.UIToFPOp | arith.SIToFPOp):
        Rewriter.replace_op(reader, arith.SIToFPOp(number, reader.result.type))


__all__ = ["GraphPackDequantizedPass"]
