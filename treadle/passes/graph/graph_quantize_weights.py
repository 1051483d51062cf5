"""graph-quantize-weights: constant matrices of products in 4 or 8 bits and scales of blocks, or in bf16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

import ml_dtypes
import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import DictionaryAttr, ModuleOp, StringAttr, TensorType, bf16, f16, f32, i32
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import ConstantOp, MatmulOp, Operator
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.dialects.graph.dtypes import is_float
from treadle.errors import TreadleError
from treadle.passes.graph.graph_quantized_products import constant_value, is_constant
from treadle.passes.graph.rewriting import Array, constant_op, shape_of, tensor

# Rounding to nearest, of each block of rows of each column.

_CHUNK = 1 << 22
"""Elements that are rounded at a time, which bounds the memory for intermediate results."""
_NIBBLE = 4

Compare = Callable[[Array, Array], None]
"""What is told some rows of a matrix, and what they were rounded to, both in float32."""


def quantized(matrix: Array, bits: int, block: int, compare: Compare | None = None) -> tuple[Array, Array]:
    """Numbers `[K, N]` (int8) and scales `[ceil(K / block), N]` (bfloat16) of a finite `matrix[K, N]`, whose elements
    are about number times scale.

    8 bits: the scale is the largest magnitude of a block divided by 127, numbers are -127 to 127. 4 bits: the scale is
    the element of the largest magnitude divided by -8, with its sign, so that numbers are -8 to 7 and that element is
    -8 (Q4_0 of llama.cpp). The scale is rounded first and elements are divided by what is stored, so that its 8 bits of
    mantissa cost less than half a step for the largest element and nothing for others.
    """
    rows, columns = matrix.shape
    blocks = -(-rows // block)
    numbers, scales = np.empty((rows, columns), np.int8), np.empty((blocks, columns), ml_dtypes.bfloat16)
    step = max(1, _CHUNK // max(1, block * columns))
    for first in range(0, blocks, step):
        last = min(first + step, blocks)
        part = matrix[first * block : last * block].astype(np.float32)
        padded = np.pad(part, ((0, (last - first) * block - len(part)), (0, 0))).reshape(last - first, block, columns)
        scale = _scales(padded, bits).astype(ml_dtypes.bfloat16)
        scales[first:last] = scale
        wide = scale.astype(np.float32)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            exact = np.where(wide == 0, 0, padded / wide)
        low, high = (-8, 7) if bits == _NIBBLE else (-127, 127)
        rounded = np.clip(np.rint(exact), low, high).astype(np.int8)
        numbers[first * block : last * block] = rounded.reshape(-1, columns)[: len(part)]
        if compare is not None:
            compare(part, (rounded.astype(np.float32) * wide).reshape(-1, columns)[: len(part)])
    return numbers, scales


def _scales(blocks: Array, bits: int) -> Array:
    """Scales `[blocks, N]` of `[blocks, rows, N]`."""
    if bits != _NIBBLE:
        return np.abs(blocks).max(axis=1) / 127
    largest = np.abs(blocks).argmax(axis=1)[:, None]
    return np.take_along_axis(blocks, largest, axis=1)[:, 0] / -8


# What stands for a matrix: constants, and the definition of its elements.


@dataclass(frozen=True)
class Stored:
    """A matrix in fewer bytes.

    constants: what is kept of it
    element:   writes its element at a row and a column, in f32
    nbytes:    of the constants
    """

    constants: Sequence[ConstantOp]
    element: Callable[[DefinitionBuilder, Scalar, Scalar], Scalar]
    nbytes: int


def _in_bf16(matrix: Array, block: int, compare: Compare) -> Stored:
    narrow = matrix.astype(ml_dtypes.bfloat16)
    step = max(1, _CHUNK // max(1, matrix.shape[1]))
    for first in range(0, len(matrix), step):
        rows = slice(first, first + step)
        compare(matrix[rows].astype(np.float32), narrow[rows].astype(np.float32))
    constant = constant_op(narrow)

    def element(b: DefinitionBuilder, k: Scalar, n: Scalar) -> Scalar:
        return b.insert(arith.ExtFOp(b.at(constant.result, [k, n]), f32))

    return Stored([constant], element, narrow.nbytes)


def _in_int8(matrix: Array, block: int, compare: Compare) -> Stored:
    numbers, scales = quantized(matrix, 8, block, compare)
    held, by = constant_op(numbers), constant_op(scales)
    nbytes = numbers.nbytes + scales.nbytes

    def element(b: DefinitionBuilder, k: Scalar, n: Scalar) -> Scalar:
        number = b.insert(arith.ExtSIOp(b.at(held.result, [k, n]), i32))
        return _scaled(b, number, b.at(by.result, [b.div(k, block), n]))

    return Stored([held, by], element, nbytes)


def _in_int4(matrix: Array, block: int, compare: Compare) -> Stored:
    numbers, scales = quantized(matrix, 4, block, compare)
    pairs = _pairs(numbers)
    held, by = constant_op(pairs), constant_op(scales)
    nbytes = pairs.nbytes + scales.nbytes

    def element(b: DefinitionBuilder, k: Scalar, n: Scalar) -> Scalar:
        both = b.insert(arith.ExtUIOp(b.at(held.result, [b.div(k, 2), n]), i32))
        shift = b.insert(arith.IndexCastOp(b.mul(b.mod(k, 2), _NIBBLE), i32))
        bounded = b.binary("and", shift, b.constant(7, i32))
        number = b.binary("and", b.insert(arith.ShRSIOp(both, bounded)), b.constant(15, i32))
        return _scaled(b, b.binary("sub", number, b.constant(8, i32)), b.at(by.result, [b.div(k, block), n]))

    return Stored([held, by], element, nbytes)


def _scaled(b: DefinitionBuilder, number: Scalar, scale: Scalar) -> Scalar:
    return b.binary("mul", b.insert(arith.SIToFPOp(number, f32)), b.insert(arith.ExtFOp(scale, f32)))


def _pairs(numbers: Array) -> Array:
    """Two neighbours of a column in a byte, the first in its lowest bits, each plus 8."""
    even = np.pad(numbers, ((0, len(numbers) % 2), (0, 0)))
    above = (even + 8).astype(np.uint8).reshape(-1, 2, numbers.shape[1])
    return above[:, 0] | above[:, 1] << _NIBBLE


_STORED: dict[str, Callable[[Array, int, Compare], Stored]] = {"int4": _in_int4, "int8": _in_int8, "bf16": _in_bf16}
AS_GIVEN = "float"
ATTRIBUTE = "treadle.weights"
"""The module's attribute that says what was done, in texts by name."""
_LEAST = 1024
"""Elements of the smallest matrix that is quantised, those of 32 by 32: a smaller one takes less than a page of memory,
which stays in a core's cache whatever its type is."""


@dataclass
class Errors:
    """Of one matrix: sums of squares of its weights and of their errors, the largest of both."""

    squares: float = 0.0
    errors: float = 0.0
    weight: float = 0.0
    most: float = 0.0

    def compare(self, weights: Array, rounded: Array) -> None:
        """Counts some rows."""
        error = rounded - weights
        self.squares += float(np.vdot(weights, weights))
        self.errors += float(np.vdot(error, error))
        self.weight = max(self.weight, float(np.abs(weights).max()))
        self.most = max(self.most, float(np.abs(error).max()))


@dataclass
class Total:
    """What quantising did to all matrices of a module."""

    matrices: int = 0
    before: int = 0
    after: int = 0
    squares: float = 0.0
    errors: float = 0.0
    largest: float = 0.0

    def add(self, before: int, after: int, errors: Errors) -> None:
        """Counts a matrix, by its bytes."""
        self.matrices += 1
        self.before += before
        self.after += after
        self.squares += errors.squares
        self.errors += errors.errors
        self.largest = max(self.largest, errors.most / (errors.weight or 1.0))

    def attribute(self, weights: str, block: int) -> DictionaryAttr:
        """In texts; errors are relative: the root mean square to that of the weights, the largest to the largest weight
        of its matrix."""
        mean = sqrt(self.errors / self.squares) if self.squares else 0.0
        texts = {"kind": weights} | ({} if weights == "bf16" else {"block": str(block)})
        texts |= {"matrices": str(self.matrices), "bytes_before": str(self.before), "bytes": str(self.after)}
        texts |= {"rms_error": f"{mean:.3g}", "largest_error": f"{self.largest:.3g}"}
        return DictionaryAttr({name: StringAttr(text) for name, text in texts.items()})


@dataclass(frozen=True)
class GraphQuantizeWeightsPass(ModulePass):
    """Stores the constant matrices of floats that products multiply by in fewer bytes, dequantised where they are read.

    ```mlir
    %w = graph.constant #graph.blob<...> : tensor<896x4864xf32>
    %c = graph.matmul %a, %w : (tensor<1x896xf32>, tensor<896x4864xf32>) -> tensor<1x4864xf32>
    ```
    becomes, with `weights=int4`,
    ```mlir
    %q = graph.constant #graph.blob<...> : tensor<448x4864xui8>
    %s = graph.constant #graph.blob<...> : tensor<28x4864xbf16>
    %b = graph.compute "dequantize" (%k, %n) {
      %0 = graph.at %q[%k floordiv 2, %n] : tensor<448x4864xui8>
      %1 = graph.at %s[%k floordiv 32, %n] : tensor<28x4864xbf16>
      ... ((%0 as i32 >> 4 * (%k mod 2)) and 15) - 8) * %1 ...
    } : tensor<896x4864xf32>
    %c = graph.matmul %a, %b : (tensor<1x896xf32>, tensor<896x4864xf32>) -> tensor<1x4864xf32>
    ```
    A matrix has two dimensions, `_LEAST` elements, as many rows as a block, and depends on constants of floats alone,
    directly or through moves and arithmetic: what a model has quantised itself stays. Other readers of the same
    constant, such as an embedding that is tied to a language model's head, go on reading floats. Activations, sums and
    results keep their types. The module's attribute `treadle.weights` says how many bytes and what error that made.

    weights: int4 and int8 round to nearest (`quantized`), with a scale of bf16 for each block; bf16 rounds to that
        type; float changes nothing. TreadleError where a module has no matrix to quantise.
    block: rows of a block; int4 has 0.5 + 2 / block bytes an element
    """

    name = "graph-quantize-weights"
    weights: str = AS_GIVEN
    block: int = 32

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.weights not in (AS_GIVEN, *_STORED):
            raise TreadleError(f"unknown weights {self.weights!r}", self.name, (AS_GIVEN, *_STORED))
        if self.block < 1:
            raise TreadleError(f"blocks of {self.block} rows", self.name, "1 upwards")
        if self.weights == AS_GIVEN:
            return
        total = Total()
        for product in [inner for inner in op.walk() if isinstance(inner, MatmulOp)]:
            self._rewrite(product, total)
        if not total.matrices:
            raise TreadleError(
                f"weights={self.weights}, but no product has a constant matrix of floats to store so",
                self.name, f"a matrix of {_LEAST} elements and {self.block} rows upwards; weights={AS_GIVEN}",
            )  # fmt: skip
        op.attributes[ATTRIBUTE] = total.attribute(self.weights, self.block)

    def _rewrite(self, product: MatmulOp, total: Total) -> None:
        value = product.b
        if not _may_be_quantised(value, self.block):
            return
        matrix = constant_value(value)
        element = tensor(value).get_element_type()
        if matrix is None or not np.isfinite(matrix).all() or (self.weights == "bf16" and element != f32):
            return
        errors = Errors()
        stored = _STORED[self.weights](matrix, self.block, errors.compare)

        def entry(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
            wide = stored.element(b, *index)
            return wide if element == f32 else b.insert(arith.TruncFOp(wide, element))  # pyright: ignore

        new = compute_of(TensorType(element, matrix.shape), entry, "dequantize")
        new.location, new.result.name_hint = product.location, value.name_hint
        for constant in stored.constants:
            constant.location = product.location
        Rewriter.insert_op([*stored.constants, new], InsertPoint.before(product))
        product.operands[1] = new.result
        _erase_unused(value.owner)
        total.add(matrix.nbytes, stored.nbytes, errors)


def _may_be_quantised(value: SSAValue, block: int) -> bool:
    shape = shape_of(value)
    if len(shape) != 2 or shape[0] < block or shape[0] * shape[1] < _LEAST:
        return False
    return tensor(value).get_element_type() in (f32, f16, bf16) and is_constant(value) and _is_of_floats(value.owner)


def _is_of_floats(op: object) -> bool:
    """Whether a constant is of floats, or an operator of such constants: not what was quantised already."""
    if isinstance(op, ConstantOp):
        return is_float(op.type.get_element_type())
    return isinstance(op, Operator) and bool(op.operands) and all(_is_of_floats(each.owner) for each in op.operands)


def _erase_unused(op: object) -> None:
    """Erases what nothing reads any more, and what it alone read."""
    if isinstance(op, Operator | ConstantOp) and op.parent is not None and not op.result.uses:
        sources = [operand.owner for operand in op.operands]
        Rewriter.erase_op(op)
        for each in sources:
            _erase_unused(each)


def quantized_weights(module: ModuleOp) -> dict[str, str]:
    """What the pass noted in a module; empty if it did nothing."""
    noted = module.attributes.get(ATTRIBUTE)
    if not isinstance(noted, DictionaryAttr):
        return {}
    return {name: text.data for name, text in noted.data.items() if isinstance(text, StringAttr)}


__all__ = ["GraphQuantizeWeightsPass", "quantized", "quantized_weights"]
