"""CUDA C++ as the printer writes it: the functions of treadle_cuda.h."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import math, vector
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    VectorType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Operation

from treadle.backends.c_like.language import Language, Values
from treadle.backends.c_like.names import Names
from treadle.backends.cuda.hopper_language import HopperLanguage
from treadle.dialects.cuda import (
    AllocOp,
    ArriveOp,
    BarrierOp,
    BlockIdOp,
    CpAsyncCommitOp,
    CpAsyncOp,
    CpAsyncWaitOp,
    KernelOp,
    LdmatrixOp,
    MmaOp,
    MmaShape,
    RoundTf32Op,
    ShuffleOp,
    Space,
    ThreadIdOp,
    space_of,
)
from treadle.dialects.cuda.kernel import placed
from treadle.dialects.graph.dtypes import STORED_TYPES, is_stored, ui8, ui16, ui32, ui64
from treadle.dialects.hopper import MbarrierType
from treadle.errors import TreadleError

_INTEGER_NAMES = {"min", "max", "div", "rem", "floordiv", "ceildiv"}
_BITS = {"bits": "__float_as_int", "from_bits": "__int_as_float"}
_WIDE_BITS = {"bits": "__double_as_longlong", "from_bits": "__longlong_as_double"}
_MMA_KINDS: dict[Attribute, str] = {f16: "f16", bf16: "bf16", f32: "tf32", i8: "s8", ui8: "u8"}
_ALIGNMENT = 16


def _fills_half_a_word(type: Attribute) -> bool:
    """Whether elements are floats of 16 bits, of which vectors hold two in an unsigned."""
    return isinstance(type, Float16Type | BFloat16Type)


def _is_byte_fragment(type: VectorType) -> bool:
    """Whether a vector is a part of a matrix of bytes, of which an unsigned holds four: registers x bytes."""
    return type.element_type in (i8, ui8) and len(type.get_shape()) > 1


class CudaLanguage(Language):
    """CUDA C++17 for NVRTC.

    `wide` says that some index needs 64 bits (`treadle/index/reader.py`); otherwise an index is an `int`, which GPUs
    compute faster.
    """

    name = "CUDA"
    infinity = "INFINITY"
    nan = "NAN"
    wide_suffix = "LL"
    scalars: ClassVar[dict[Attribute, str]] = {
        **{f32: "float", f64: "double", f16: "treadle_half", bf16: "treadle_bfloat16"},
        **{i1: "bool", i8: "signed char", i16: "short", i32: "int", i64: "long long"},
        **{ui8: "unsigned char", ui16: "unsigned short", ui32: "unsigned", ui64: "unsigned long long"},
        **dict.fromkeys(STORED_TYPES, "unsigned char"),
        MbarrierType(): "treadle_mbarrier",
    }

    def __init__(self, wide: bool = False, names: Names | None = None) -> None:
        self.index = "long long" if wide else "int"
        self._hopper = HopperLanguage(names or Names())

    def widening(self, type: Attribute) -> tuple[str, str] | None:
        if isinstance(type, Float16Type):
            return "treadle_half_to_float", "treadle_float_to_half"
        if isinstance(type, BFloat16Type):
            return "treadle_bfloat16_to_float", "treadle_float_to_bfloat16"
        return super().widening(type)

    def has_operators(self, type: Attribute) -> bool:
        element = type.element_type if isinstance(type, VectorType) else type
        return not _fills_half_a_word(element) and not is_stored(element)

    def vector_type(self, type: VectorType) -> str:
        count, element = type.element_count(), type.element_type
        if _is_byte_fragment(type):
            return f"treadle_vec<unsigned, {count // 4}>"
        if not _fills_half_a_word(element):
            return f"treadle_vec<{self.type_name(element)}, {count}>"
        if count % 2:
            raise TreadleError(f"a value of type {type}", "CUDA printer", "an even number of 16-bit floats")
        return f"treadle_vec<unsigned, {count // 2}>"

    def function(self, name: str, type: Attribute) -> str:
        if isinstance(type, VectorType) and name == "store":
            return "treadle_store"
        if isinstance(type, VectorType):
            raise TreadleError(f"{name} on {type}", "CUDA printer", "scalars of f32 and f64")
        if isinstance(type, Float32Type):
            return _BITS.get(name, f"treadle_{name}")
        if isinstance(type, Float64Type):
            return _WIDE_BITS.get(name, f"treadle_{name}_double")
        if isinstance(type, IndexType | IntegerType) and name in _INTEGER_NAMES:
            return f"treadle_{name}_integer<{self.type_name(type)}>"
        raise TreadleError(f"{name} on {type}", "CUDA printer", "f32 and f64, and f16 or bf16 through f32")

    def library_call(self, name: str, type: Attribute, operands: str) -> str:
        if isinstance(type, VectorType):
            raise TreadleError(f"{name} on {type}", "CUDA printer", "scalars of f32 and f64")
        # A value of the kernel may have the function's name.
        return f"::{name}{'' if type == f64 else 'f'}({operands})"

    def truncation(self, source: Attribute, target: Attribute) -> str:
        return f"treadle_to_integer<{self.type_name(target)}>"

    def splat(self, type: VectorType, scalar: str, zero: bool) -> str:
        name = self.vector_type(type)
        lane = f"treadle_twice({scalar})" if _fills_half_a_word(type.element_type) else scalar
        return f"{name}{{}}" if zero else f"treadle_splat<{name}>({lane})"

    def vector_load(self, type: VectorType, address: str) -> str:
        return f"treadle_load<{self.vector_type(type)}>({address})"

    def lane(self, vector: str, position: str, type: VectorType) -> str:
        if _fills_half_a_word(type.element_type) or _is_byte_fragment(type):
            raise TreadleError(f"one element of {type}", "CUDA printer", "elements of 32 bits")
        return f"{vector}.v[{position}]"

    def part(self, vector: str, position: str, type: VectorType) -> str:
        return f"treadle_part<{self.vector_type(type)}>({vector}, {position})"

    def declare_array(self, name: str, type: MemRefType, extents: str, op: Operation) -> list[str]:
        element = self.memory_type(type.element_type)
        if space_of(type) is not Space.SHARED:
            aligned = (
                f"alignas({_ALIGNMENT}) " if any(_is_vector_access(use.operation) for use in op.results[0].uses) else ""
            )
            return [f"{aligned}{element} {name}{extents};"]
        addresses = self._hopper.declare(op.results[0], name)
        if not isinstance(op, AllocOp) or op.dynamic is None:
            alignment = op.alignment if isinstance(op, AllocOp) else _ALIGNMENT
            return [f"alignas({alignment}) __shared__ {element} {name}{extents};", *addresses]
        return [*self._declare_dynamic(name, element, op, extents), *addresses]

    def _declare_dynamic(self, name: str, element: str, op: AllocOp, extents: str) -> list[str]:
        """A reference to an array in the launch's dynamic shared memory."""
        kernel = op.parent_op()
        assert isinstance(kernel, KernelOp), "verified"
        buffers = kernel.shared_buffers(dynamic=True)
        start = placed(buffers)[0][op]
        alignment = max(each.alignment for each in buffers)
        declared = f"alignas({alignment}) extern __shared__ char treadle_dynamic[];"
        cast = f"{element} (&{name}){extents} = *reinterpret_cast<{element} (*){extents}>(treadle_dynamic + {start});"
        return [cast] if start else [declared, cast]

    def loop_pragma(self, op: Operation, trips: int | None) -> str | None:
        wanted = op.attributes.get("loop.unroll")
        if isinstance(wanted, IntegerAttr):
            return f"#pragma unroll {wanted.value.data}"
        return None if wanted is None else "#pragma unroll"

    def expression(self, op: Operation, values: Values) -> str | None:
        match op:
            case ThreadIdOp():
                return f"({self.index})threadIdx.{op.dimension.data}"
            case BlockIdOp():
                return f"({self.index})blockIdx.{op.dimension.data}"
            case ArriveOp():
                counter = values.element(op.counters, op.indices)
                return f"treadle_arrive(&{counter}, {_number(op.blocks)})"
            case ShuffleOp():
                return f"treadle_shuffle_{op.mode.data}({values.at(op.value)}, {values.at(op.lane)})"
            case LdmatrixOp():
                suffix = "" if op.transpose is None else "_trans"
                text = f"treadle_ldmatrix_x{op.matrices}{suffix}(&{values.element(op.source, op.indices)})"
                return f"treadle_as_float({text})" if op.fragment.type.element_type == f32 else text
            case math.Exp2Op() if FastMathFlag.APPROX_FUNC in op.fastmath.data:
                return f"treadle_exp2_approx({values.at(op.operand)})"
            case RoundTf32Op():
                return f"treadle_round_tf32({values.at(op.value)})"
            case MmaOp():
                assert isinstance(op.a.type, VectorType) and isinstance(op.b.type, VectorType)
                kind = _MMA_KINDS[op.a.type.element_type]
                if op.shape.data is MmaShape.M16N8K32:
                    kind += f"_{_MMA_KINDS[op.b.type.element_type]}"
                operands = ", ".join(values.at(operand) for operand in (op.a, op.b, op.c))
                return f"treadle_mma_{op.shape.data}_{kind}({operands})"
            case _:
                return self._hopper.expression(op, values)

    def statement(self, op: Operation, values: Values) -> str | None:
        match op:
            case BarrierOp():
                return "treadle_barrier();"
            case CpAsyncCommitOp():
                return "treadle_cp_async_commit();"
            case CpAsyncWaitOp():
                return f"treadle_cp_async_wait<{_number(op.pending)}>();"
            case CpAsyncOp():
                target = values.element(op.destination, op.destination_indices)
                source = values.element(op.source, op.source_indices)
                where = "" if op.predicate is None else f", {values.at(op.predicate)}"
                return f"treadle_cp_async_{_number(op.bytes)}(&{target}, &{source}{where});"
            case _:
                return self._hopper.statement(op, values)


def _is_vector_access(op: Operation) -> bool:
    return isinstance(op, vector.LoadOp | vector.StoreOp)


def _number(attribute: Attribute) -> int:
    assert isinstance(attribute, IntegerAttr)
    return attribute.value.data
