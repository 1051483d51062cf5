"""Operators and their computation definitions.

An `Operator` knows its result type (`infer`) and the value of one element (`element`); from these two
`definition` builds the `graph.compute` that every pass and the reference evaluator work on.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import cast

from xdsl.builder import Builder
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TensorType,
    f32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation, ParsePropInAttrDict, result_def
from xdsl.rewriter import InsertPoint
from xdsl.traits import OpTrait
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp
from treadle.dialects.graph.dtypes import byte_width, is_float, is_stored
from treadle.dialects.location import NamesNodes
from treadle.dialects.scalar import BINARY_KINDS, SCALAR_FUNCTIONS, is_unsigned, number_op

index = IndexType()
Scalar = SSAValue

FLOAT_BINARY: dict[str, type[Operation]] = {
    "add": arith.AddfOp, "sub": arith.SubfOp, "mul": arith.MulfOp, "div": arith.DivfOp,
    **BINARY_KINDS,
}  # fmt: skip
_INT_BINARY: dict[str, type[Operation]] = {
    "add": arith.AddiOp, "sub": arith.SubiOp, "mul": arith.MuliOp, "div": arith.DivSIOp, "mod": arith.RemSIOp,
    "max": arith.MaxSIOp, "min": arith.MinSIOp, "and": arith.AndIOp, "or": arith.OrIOp, "xor": arith.XOrIOp,
}  # fmt: skip
_UNSIGNED_BINARY = _INT_BINARY | {
    "div": arith.DivUIOp, "mod": arith.RemUIOp, "max": arith.MaxUIOp, "min": arith.MinUIOp,
}  # fmt: skip
_COMPARE_FLOAT = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_COMPARE_INT = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_COMPARE_UNSIGNED = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}
MATH = {function.kind or function.name: function.operation for function in SCALAR_FUNCTIONS if function.operands == 1}


class DefinitionBuilder:
    """Writes scalar expressions of a definition: arithmetic chosen by type, indices as ints or values."""

    def __init__(self, block: Block):
        self._builder = Builder(InsertPoint.at_end(block))

    def insert(self, op: Operation) -> Scalar:
        self._builder.insert(op)
        return op.results[0]

    def constant(self, value: float, type: Attribute = index) -> Scalar:
        return self.insert(number_op(value, type))

    def _pair(self, a: Scalar | int, b: Scalar | int) -> tuple[Scalar, Scalar]:
        a = self.constant(a) if isinstance(a, int) else a
        return a, self.constant(b) if isinstance(b, int) else b

    def binary(self, kind: str, a: Scalar | int, b: Scalar | int) -> Scalar:
        """`a kind b` for a kind of `BINARY`; index arithmetic on ints and indices."""
        a, b = self._pair(a, b)
        if kind in _COMPARE_INT:
            if is_float(a.type):
                return self.insert(arith.CmpfOp(a, b, _COMPARE_FLOAT[kind]))
            return self.insert(arith.CmpiOp(a, b, (_COMPARE_UNSIGNED if is_unsigned(a.type) else _COMPARE_INT)[kind]))
        table = FLOAT_BINARY if is_float(a.type) else _UNSIGNED_BINARY if is_unsigned(a.type) else _INT_BINARY
        return self.insert(table[kind](a, b))  # pyright: ignore[reportCallIssue]

    def add(self, a: Scalar | int, b: Scalar | int) -> Scalar:
        if b == 0:
            return self._pair(a, 0)[0] if isinstance(a, int) else a
        return self.binary("add", a, b)

    def mul(self, a: Scalar | int, b: Scalar | int) -> Scalar:
        if b == 1 and not isinstance(a, int):
            return a
        return self.binary("mul", a, b)

    def div(self, a: Scalar, b: int) -> Scalar:
        """Floor division of a non-negative index."""
        return a if b == 1 else self.insert(arith.DivUIOp(*self._pair(a, b)))

    def mod(self, a: Scalar, b: int) -> Scalar:
        """Remainder of a non-negative index."""
        return self.insert(arith.RemUIOp(*self._pair(a, b)))

    def math(self, kind: str, a: Scalar) -> Scalar:
        return self.insert(MATH[kind](a))  # pyright: ignore[reportCallIssue]

    def select(self, condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
        return self.insert(arith.SelectOp(condition, a, b))

    def all(self, conditions: Sequence[Scalar]) -> Scalar | None:
        """The conjunction of conditions; None if there are none."""
        result: Scalar | None = None
        for condition in conditions:
            result = condition if result is None else self.binary("and", result, condition)
        return result

    def at(
        self,
        source: SSAValue,
        indices: Sequence[Scalar | int],
        where: Scalar | None = None,
        otherwise: Scalar | None = None,
    ) -> Scalar:
        values = [self.constant(i) if isinstance(i, int) else i for i in indices]
        return self.insert(AtOp(source, values, where, otherwise))

    def reduce(
        self,
        kind: str,
        extents: Sequence[int],
        body: Callable[[DefinitionBuilder, Sequence[Scalar]], Scalar],
    ) -> Scalar:
        block = Block(arg_types=[index] * len(extents))
        inner = DefinitionBuilder(block)
        value = body(inner, block.args)
        element = value.type
        # Sums of f16 and bf16 run in f32, and are rounded once.
        term = widened(inner, value) if kind in ("add", "mul") else value
        inner._builder.insert(YieldOp(term))
        total = self.insert(ReduceOp(kind, extents, Region(block), term.type))
        return total if term is value else self.insert(arith.TruncFOp(total, element))  # pyright: ignore

    def delinearize(self, linear: Scalar, shape: Sequence[int]) -> list[Scalar]:
        """The row-major indices of a position that lies inside the shape."""
        indices: list[Scalar] = []
        outermost = True
        for n, extent in enumerate(shape):
            if extent == 1:
                indices.append(self.constant(0))
                continue
            quotient = self.div(linear, prod(shape[n + 1 :]))
            indices.append(quotient if outermost else self.mod(quotient, extent))
            outermost = False
        return indices

    def linearize(self, indices: Sequence[Scalar | int], shape: Sequence[int]) -> Scalar:
        """The row-major position of indices."""
        position: Scalar | int = 0
        for n, i in enumerate(indices):
            position = i if n == 0 else self.add(self.mul(position, shape[n]), i)
        return self.constant(position) if isinstance(position, int) else position

    def broadcast_at(self, source: SSAValue, index: Sequence[Scalar]) -> Scalar:
        """The element of `source` that NumPy's broadcasting pairs with `index`."""
        shape = shape_of(source)
        aligned = index[len(index) - len(shape) :]
        return self.at(source, [0 if e == 1 else i for e, i in zip(shape, aligned, strict=True)])


def widened(b: DefinitionBuilder, x: Scalar) -> Scalar:
    """A float of at least four bytes: what sums and products of narrow floats are computed in."""
    return b.insert(arith.ExtFOp(x, f32)) if is_float(x.type) and byte_width(x.type) < 4 else x


class MovesElements(OpTrait):
    """Elements are only moved or converted, so that they may be of `STORED_TYPES`."""


class Operator(IRDLOperation, NamesNodes):
    """A tensor operator: operands are tensors, the result is one tensor with a definition.

    A subclass declares operands and properties with xDSL's field functions, and gives `infer` and `element`.
    The result type is inferred; the verifier rejects another one.
    """

    result = result_def(TensorType)
    irdl_options = (ParsePropInAttrDict(),)

    def __init__(self, operands: Sequence[SSAValue], **given: Attribute | str | int | Sequence[int] | None):
        """Numbers and lists of them become properties of 64 bits; None is a property that is absent."""
        properties = {name: _attribute(value) for name, value in given.items() if value is not None}
        type = self._inferred([tensor(o) for o in operands], properties)
        super().__init__(operands=self.group(operands, properties), properties=properties, result_types=[type])

    @classmethod
    def group(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute]
    ) -> Sequence[SSAValue | Sequence[SSAValue]]:
        """Operands as the op's operand fields expect them: an operator of variadic operands overrides this."""
        return operands

    @classmethod
    def _inferred(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        elements = [] if cls.has_trait(MovesElements) else [t.get_element_type() for t in types]
        for element in filter(is_stored, elements):
            raise VerifyException(f"{cls.name} is not defined on {element}, which is only moved and converted")
        return cls.infer(types, properties)

    @classmethod
    @abstractmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        """The result type for operands of these types; VerifyException saying what does not fit."""

    @abstractmethod
    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        """Writes the value of the element at `index`."""

    @property
    def type(self) -> TensorType:
        return tensor(self.result)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.get_shape()

    def verify_(self) -> None:
        expected = self._inferred([tensor(o) for o in self.operands], self.properties)
        if expected != self.result.type:
            raise VerifyException(f"{self.name}: the result is {self.result.type}, the operands give {expected}")


def tensor(value: SSAValue) -> TensorType:
    """The type of a value that is a tensor; VerifyException if it is none."""
    if not isinstance(value.type, TensorType):
        raise VerifyException(f"expected a tensor, got {value.type}")
    return value.type


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The extents of a value that is a tensor; -1 stands for a symbolic one."""
    return tensor(value).get_shape()


def family(op: Operation) -> str:
    """The name of an operator without its dialect, as part of names in C: `conv` of `graph.conv`."""
    return re.sub(r"\W", "_", op.name.partition(".")[2])


def definition(op: Operator) -> ComputeOp:
    """The operator's meaning as a detached `graph.compute`."""
    if DYNAMIC_INDEX in op.shape:
        raise VerifyException(f"{op.name}: {op.type} has a symbolic dimension; a definition needs static extents")
    compute = compute_of(op.type, op.element, family(op))
    compute.location = op.location
    return compute


def compute_of(
    type: TensorType,
    element: Callable[[DefinitionBuilder, Sequence[Scalar]], Scalar],
    operators: str | None = None,
) -> ComputeOp:
    """A `graph.compute` of the given type whose elements `element` writes."""
    block = Block(arg_types=[index] * type.get_num_dims())
    value = element(DefinitionBuilder(block), block.args)
    block.add_op(YieldOp(value))
    return ComputeOp(Region(block), type, operators)


def _attribute(value: Attribute | str | int | Sequence[int]) -> Attribute:
    if isinstance(value, Attribute):
        return value
    if isinstance(value, str):
        return StringAttr(value)
    return ints(value) if isinstance(value, Sequence) else IntegerAttr(int(value), i64)


def ints(values: Sequence[int]) -> DenseArrayBase:
    """A list of integers as a property; VerifyException for one beyond 64 bits."""
    for value in values:
        require(-(1 << 63) <= value < 1 << 63, f"{value} does not fit 64 bits")
    return DenseArrayBase.from_list(i64, list(values))


def int_list(properties: Mapping[str, Attribute], name: str) -> tuple[int, ...]:
    """A list of integers from a property."""
    attribute = properties[name]
    assert isinstance(attribute, DenseArrayBase)
    return cast("DenseArrayBase[IntegerType]", attribute).get_values()


def word(properties: Mapping[str, Attribute], name: str) -> str:
    """A string from a property."""
    attribute = properties[name]
    assert isinstance(attribute, StringAttr)
    return attribute.data


def integer(properties: Mapping[str, Attribute], name: str) -> int:
    """An integer from a property."""
    attribute = properties[name]
    assert isinstance(attribute, IntegerAttr)
    return attribute.value.data


class Misfit(VerifyException):
    """Operands or properties that an operator rejects; `accepted` says what it would take, if that is known."""

    def __init__(self, message: str, accepted: str | None = None):
        super().__init__(message)
        self.accepted = accepted


def require(condition: bool, message: str, accepted: str | None = None) -> None:
    """VerifyException with `message` unless the condition holds."""
    if not condition:
        raise Misfit(message, accepted)
