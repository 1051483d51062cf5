"""Arithmetic on numbers that `arith` and `math` lack; and the functions on floats, one row each, with all facts."""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    AnyFloat,
    AnyFloatConstr,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    Signedness,
    VectorType,
    bf16,
    f16,
    f32,
    f64,
)
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import ConstantLike, Pure
from xdsl.utils.exceptions import VerifyException


@irdl_op_definition
class FmodOp(IRDLOperation):
    """The remainder of C's `fmod`: `x - n y` for the whole number `n = x / y` rounded towards zero, exactly.

    ```mlir
    %r = scalar.fmod %x, %y : f32
    ```
    The sign is that of `x`, the size below that of `y`; NaN where `x` is infinite or `y` is 0, `x` where `y` is
    infinite. Rejected: operands and a result that are not of one float type, or of one vector type of floats.
    """

    name = "scalar.fmod"
    T: ClassVar = VarConstraint("T", AnyFloatConstr | VectorType.constr(AnyFloatConstr))
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"

    def __init__(self, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[lhs, rhs], result_types=[lhs.type])


@irdl_op_definition
class UnsignedConstantOp(arith.ConstantOp):
    """A number of an unsigned type: those of `arith.constant` are signless.

    ```mlir
    %c = scalar.constant 200 : ui8
    ```
    Rejected: a number whose type is not unsigned, or that is not the result's.
    """

    name = "scalar.constant"
    value = prop_def(IntegerAttr)  # pyright: ignore[reportAssignmentType]
    result = result_def(IntegerType)
    traits = traits_def(Pure(), ConstantLike())
    assembly_format = None  # the parent's checks and syntax are those of signless numbers

    def verify_(self) -> None:
        if self.value.type != self.result.type or not is_unsigned(self.result.type):
            raise VerifyException(f"scalar.constant {self.value} gives {self.result.type}: expected its unsigned type")

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(" ")
        printer.print_attribute(self.value)

    @classmethod
    def parse(cls, parser: Parser) -> UnsignedConstantOp:
        attributes = parser.parse_optional_attr_dict()
        position = parser.pos
        value = parser.parse_attribute()
        if not isinstance(value, IntegerAttr):
            parser.raise_error(f"scalar.constant gives a number of an unsigned type, not {value}", position)
        op = cls(value)
        op.attributes.update(attributes)
        return op


def is_unsigned(type: Attribute) -> bool:
    """Whether a type is one of unsigned integers."""
    return isinstance(type, IntegerType) and type.signedness.data is Signedness.UNSIGNED


def is_zero(value: SSAValue | None) -> bool:
    """Whether a value, or none, is 0 and not -0: what copies write beyond a tensor."""
    if value is None:
        return True
    op = value.owner
    if not isinstance(op, arith.ConstantOp) or not isinstance(op.value, FloatAttr | IntegerAttr):
        return False
    number = op.value.value.data
    return number == 0 and pymath.copysign(1.0, number) > 0


def number_op(value: float, type: Attribute) -> arith.ConstantOp:
    """The operation that gives a number of a scalar type."""
    if isinstance(type, IntegerType | IndexType):
        number = IntegerAttr(int(value), type)
        return UnsignedConstantOp(number) if is_unsigned(type) else arith.ConstantOp(number)
    assert isinstance(type, AnyFloat)
    return arith.ConstantOp(FloatAttr(float(value), type))


SCALAR = Dialect("scalar", [FmodOp, UnsignedConstantOp])

_ARITHMETIC = (arith.Arith.name, math.Math.name, SCALAR.name)


def is_arithmetic(op: Operation) -> bool:
    """Whether an operation computes numbers from numbers, and neither reads nor writes memory."""
    return op.dialect_name() in _ARITHMETIC


# The functions on floats that a kernel may compute: one row each, with all facts about it.
#
# The evaluator, the definitions of operators, the ONNX frontend, what may be printed for which target, the printers,
# the costs in fusion, and the tests take their entries from these rows. A function that the C library and CUDA both
# have is its row and nothing else.

Array = NDArray[Any]
TargetKind = Literal["cpu", "cuda"]

FLOATS: tuple[Attribute, ...] = (bf16, f16, f32, f64)

_COSTLY = 10
_POLYNOMIAL = 25


@dataclass(frozen=True)
class Ulps:
    """The largest distance of a result from the correctly rounded one, in floats, over the full range."""

    f32: int
    f64: int


@dataclass(frozen=True)
class ScalarFunction:
    """A function of one float type; 16-bit floats are computed in f32 and rounded, which adds one ulp.

    name:       what the C library calls it: `atan` stands for `atanf` of floats and `atan` of doubles
    operation:  what it is in the IR
    numpy: its definition on arrays, in the precision of their type
    operands:   how many it takes
    kind:       of the `graph.unary` or `graph.binary` that is this function; None if no operator is
    onnx:       the ONNX operator that is this function of floats, if there is one
    header:     that kernels call `treadle_<name>`, which treadle.h and treadle_cuda.h define, instead of the library:
                where a version of our own is faster or more exact, or where the libraries differ
    cuda_types: the types for which a GPU has it; a CPU has it for all
    cpu_ulps:   the error on a CPU; None: exact in every type. Sources: treadle_math.h for exp, log, tanh and erf of
                floats; for the others glibc's manual, "Known Maximum Errors in Math Functions"
    cuda_ulps:  the error on a GPU, likewise. Source: CUDA C++ Programming Guide, appendix "Mathematical Functions",
                maximum errors in ulp, CUDA 11 and later; sqrt with NVRTC's `-prec-sqrt=true`
    cost:       simple operations that it takes, about: 10 for a root or an exponential, 25 for a polynomial of several
                pieces, or two of the others
    spread: the standard deviation of samples on which the function is far from linear
    any_zero: of zeros of both signs, the target may give either
    """

    name: str
    operation: type[Operation]
    numpy: Callable[..., Any]
    cpu_ulps: Ulps | None = None
    cuda_ulps: Ulps | None = None
    _: KW_ONLY
    operands: int = 1
    kind: str | None = None
    onnx: str | None = None
    header: bool = False
    cuda_types: tuple[Attribute, ...] = FLOATS
    cost: int = _POLYNOMIAL
    spread: float = 8.0
    any_zero: bool = False

    def types(self, target: TargetKind) -> tuple[Attribute, ...]:
        """The element types that a kind of target has it for."""
        return FLOATS if target == "cpu" else self.cuda_types

    def ulps(self, target: TargetKind, type: Attribute) -> int:
        """By how many floats a result of an element type may miss the correctly rounded one."""
        bound = self.cpu_ulps if target == "cpu" else self.cuda_ulps
        if bound is None:
            return 0
        return bound.f32 if type == f32 else bound.f64 if type == f64 else 1


def _erf(a: Array) -> Array:
    values = [pymath.erf(v) for v in a.reshape(-1).tolist()]
    return np.array(values, np.float64).reshape(a.shape).astype(a.dtype)


def _rsqrt(a: Array) -> Array:
    return np.asarray(a.dtype.type(1) / np.sqrt(a))


def _fma(a: Array, b: Array, c: Array) -> Array:
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return np.asarray(a.astype(wide) * b + c).astype(a.dtype)


SCALAR_FUNCTIONS: tuple[ScalarFunction, ...] = (
    ScalarFunction("abs", math.AbsFOp, np.abs, kind="abs", onnx="Abs", cost=_COSTLY, header=True),
    ScalarFunction("ceil", math.CeilOp, np.ceil, kind="ceil", onnx="Ceil", cost=_COSTLY, header=True),
    ScalarFunction("floor", math.FloorOp, np.floor, kind="floor", onnx="Floor", cost=_COSTLY, header=True),
    ScalarFunction("roundeven", math.RoundEvenOp, np.rint, kind="round", onnx="Round", cost=_COSTLY, header=True),
    ScalarFunction("trunc", math.TruncOp, np.trunc, cost=_COSTLY, header=True),
    ScalarFunction("copysign", math.CopySignOp, np.copysign, operands=2, cost=_COSTLY, header=True),
    ScalarFunction("mod", FmodOp, np.fmod, operands=2, kind="mod", header=True),
    ScalarFunction("max", arith.MaximumfOp, np.maximum, operands=2, kind="max", cost=1, any_zero=True, header=True),
    ScalarFunction("min", arith.MinimumfOp, np.minimum, operands=2, kind="min", cost=1, any_zero=True, header=True),
    ScalarFunction("maxnum", arith.MaxnumfOp, np.fmax, operands=2, cost=1, any_zero=True, header=True),
    ScalarFunction("minnum", arith.MinnumfOp, np.fmin, operands=2, cost=1, any_zero=True, header=True),
    ScalarFunction("fma", math.FmaOp, _fma, Ulps(0, 0), Ulps(0, 0), operands=3, cost=_COSTLY, header=True),
    ScalarFunction(
        "sqrt", math.SqrtOp, np.sqrt, Ulps(0, 0), Ulps(0, 0), kind="sqrt", onnx="Sqrt", cost=_COSTLY, header=True
    ),
    ScalarFunction("rsqrt", math.RsqrtOp, _rsqrt, Ulps(1, 1), Ulps(2, 1), kind="rsqrt", cost=_COSTLY, header=True),
    ScalarFunction(
        "exp", math.ExpOp, np.exp, Ulps(2, 1), Ulps(2, 1), kind="exp", onnx="Exp", spread=40, cost=_COSTLY, header=True
    ),
    ScalarFunction(
        "exp2",
        math.Exp2Op,
        np.exp2,
        Ulps(1, 1),
        Ulps(2, 1),
        cuda_types=(bf16, f16, f32),
        spread=40,
        cost=_COSTLY,
        header=True,
    ),
    ScalarFunction("expm1", math.ExpM1Op, np.expm1, Ulps(1, 1), Ulps(1, 1), cost=_COSTLY, header=True),
    ScalarFunction(
        "log", math.LogOp, np.log, Ulps(2, 1), Ulps(1, 1), kind="log", onnx="Log", cost=_COSTLY, header=True
    ),
    ScalarFunction("log1p", math.Log1pOp, np.log1p, Ulps(1, 1), Ulps(1, 1), spread=0.5, cost=_COSTLY, header=True),
    ScalarFunction("pow", math.PowFOp, np.power, Ulps(1, 1), Ulps(4, 2), operands=2, kind="pow", spread=4, header=True),
    ScalarFunction(
        "sin", math.SinOp, np.sin, Ulps(1, 1), Ulps(2, 2), kind="sin", onnx="Sin", spread=100, cost=_COSTLY, header=True
    ),
    ScalarFunction(
        "cos", math.CosOp, np.cos, Ulps(1, 1), Ulps(2, 2), kind="cos", onnx="Cos", spread=100, cost=_COSTLY, header=True
    ),
    ScalarFunction("tan", math.TanOp, np.tan, Ulps(1, 1), Ulps(4, 2), kind="tan", onnx="Tan", spread=100, header=True),
    ScalarFunction(
        "tanh", math.TanhOp, np.tanh, Ulps(2, 2), Ulps(2, 1), kind="tanh", onnx="Tanh", spread=2, header=True
    ),
    ScalarFunction("erf", math.ErfOp, _erf, Ulps(2, 1), Ulps(2, 2), kind="erf", onnx="Erf", spread=2, header=True),
    ScalarFunction("acos", math.AcosOp, np.arccos, Ulps(1, 1), Ulps(2, 2), kind="acos", onnx="Acos", spread=0.5),
    ScalarFunction("asin", math.AsinOp, np.arcsin, Ulps(1, 1), Ulps(2, 2), kind="asin", onnx="Asin", spread=0.5),
    ScalarFunction("atan", math.AtanOp, np.arctan, Ulps(1, 1), Ulps(2, 2), kind="atan", onnx="Atan"),
    ScalarFunction("sinh", math.SinhOp, np.sinh, Ulps(2, 2), Ulps(3, 2), kind="sinh", onnx="Sinh"),
    ScalarFunction("cosh", math.CoshOp, np.cosh, Ulps(2, 2), Ulps(2, 1), kind="cosh", onnx="Cosh"),
    ScalarFunction("acosh", math.AcoshOp, np.arccosh, Ulps(2, 2), Ulps(4, 3), kind="acosh", onnx="Acosh"),
    ScalarFunction("asinh", math.AsinhOp, np.arcsinh, Ulps(2, 2), Ulps(3, 3), kind="asinh", onnx="Asinh"),
    ScalarFunction("atanh", math.AtanhOp, np.arctanh, Ulps(2, 2), Ulps(3, 2), kind="atanh", onnx="Atanh", spread=0.5),
)


FUNCTION_OF: Mapping[type[Operation], ScalarFunction] = {row.operation: row for row in SCALAR_FUNCTIONS}
"""By the operation that stands for it."""

UNARY_KINDS = tuple(row.kind for row in SCALAR_FUNCTIONS if row.kind and row.operands == 1)
"""The kinds of `graph.unary` that are such a function of floats."""

BINARY_KINDS = {row.kind: row.operation for row in SCALAR_FUNCTIONS if row.kind and row.operands == 2}
"""Those of `graph.binary`, with their operations."""

WHERE = "SCALAR_FUNCTIONS of treadle/dialects/scalar.py"
"""Where to look, for messages."""
