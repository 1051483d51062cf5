"""GNU C as the printer writes it: vector types, restrict pointers, the functions of treadle.h."""

from __future__ import annotations

from typing import ClassVar

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
from xdsl.ir import Attribute, Operation

from treadle.backends.c_like.language import Language, Values
from treadle.dialects.graph.dtypes import STORED_TYPES, is_stored, ui8, ui16, ui32, ui64
from treadle.dialects.loop import ArriveOp, MultiplyTilesOp, OpaqueBufferOp, OpaqueOp, PrefetchOp, TransposeOp, type_of
from treadle.errors import TreadleError

LANES = (4, 8, 16)
"""Lanes of the vector types in treadle.h."""

LARGEST_LOCAL = 32 << 10
"""Bytes of the largest array on the stack; a larger one is static, with a copy for each thread."""

_ALIGNMENT = 64
_BYTES: dict[Attribute, int] = {
    bf16: 2, f16: 2, f32: 4, f64: 8, i1: 1, i8: 1, i16: 2, i32: 4, i64: 8, ui8: 1, ui16: 2, ui32: 4, ui64: 8,
    **dict.fromkeys(STORED_TYPES, 1),
}  # fmt: skip
# A mask has lanes of 32 bits, as comparisons of vectors give.
_VECTOR_SUFFIXES: dict[Attribute, str] = {f32: "f", i32: "i", i1: "i", bf16: "h", f16: "h", i8: "b", ui8: "ub"}
_INTEGER_NAMES = {"min", "max", "div", "rem", "floordiv", "ceildiv"}
_SCALAR_ONLY = {"unordered", "differ", "bits", "from_bits"}
_OF_NARROW = {"load_where", "store_where", "select"}
_OF_MASKS = {"lanes", "mask", "on"}
_VECTOR_ONLY = {
    "load_first", "store_first", "reduce_add", "reduce_max", "reduce_min", "lanes", "mask", "on", "select_where",
    "load_where", "store_where", "load_strided", "load_strided_where", "load_splat", "load_splat_where",
    "store_strided", "store_strided_where", "transpose", "lookup",
}  # fmt: skip


class CLanguage(Language):
    """GNU C11 for gcc and clang."""

    name = "C"
    index = "long"  # as wide as an address; `print_kernels` checks that indices fit
    infinity = "TREADLE_INFINITY"
    nan = "TREADLE_NAN"
    wide_suffix = "LL"
    index_suffix = "L"
    wraps: ClassVar[bool] = True
    # A load in a branch keeps the branch, and the loop around it scalar (`Toolchain`); with other flags GCC 12 makes
    # masked loads of it, of which it reads the wrong elements.
    named_choices: ClassVar[bool] = True
    scalars: ClassVar[dict[Attribute, str]] = {
        **{f32: "float", f64: "double", f16: "_Float16", bf16: "treadle_bfloat16"},
        **{i1: "int", i8: "signed char", i16: "short", i32: "int", i64: "long long"},
        **{ui8: "unsigned char", ui16: "unsigned short", ui32: "unsigned", ui64: "unsigned long long"},
        **dict.fromkeys(STORED_TYPES, "unsigned char"),
    }

    def memory_type(self, type: Attribute) -> str:
        return "unsigned char" if type == i1 else self.type_name(type)

    def argument_type(self, type: Attribute) -> str:
        """The type of an element of a buffer that the caller owns: its vectors lie where floats may."""
        return f"{self.vector_type(type)}_u" if isinstance(type, VectorType) else self.memory_type(type)

    def literal(self, type: Attribute, value: float) -> str:
        # Beside a float, C would compute the other operands as floats, too.
        text = super().literal(type, value)
        return f"(_Float16){text}" if isinstance(type, Float16Type) else text

    def widening(self, type: Attribute) -> tuple[str, str] | None:
        if isinstance(type, BFloat16Type):
            return "treadle_bfloat16_to_float", "treadle_float_to_bfloat16"
        if isinstance(type, VectorType) and type.element_type in (f16, bf16):
            name, lanes = self.vector_type(type), type.get_shape()[0]
            element = "float16" if type.element_type == f16 else "bfloat16"
            return f"treadle_{element}_to_float_v{lanes}f", f"treadle_float_to_{element}_{name}"
        return ("(float)", "(_Float16)") if isinstance(type, Float16Type) else super().widening(type)

    def has_operators(self, type: Attribute) -> bool:
        element = type.element_type if isinstance(type, VectorType) else type
        is_bits = isinstance(element, BFloat16Type) or (element == f16 and isinstance(type, VectorType))
        return not is_bits and not is_stored(element)

    def vector_type(self, type: VectorType) -> str:
        suffix = _VECTOR_SUFFIXES.get(type.element_type)
        if suffix is None or type.get_num_dims() != 1 or type.get_shape()[0] not in LANES:
            raise TreadleError(
                f"a value of type {type}", "C printer", f"vectors of {LANES} f32, f16, bf16, i32, i8 or ui8"
            )
        return f"v{type.get_shape()[0]}{suffix}"

    def mask_type(self, type: Attribute) -> str:
        return f"{self.type_name(type)[:-1]}m"

    def function(self, name: str, type: Attribute) -> str:
        if isinstance(type, VectorType):
            narrow = type.element_type in (i8, ui8, f16, bf16) and name in _OF_NARROW
            if name in _SCALAR_ONLY or not (narrow or type.element_type == (i1 if name in _OF_MASKS else f32)):
                raise TreadleError(f"{name} on {type}", "C printer", "vectors of f32")
            return f"treadle_{name}_{self.mask_type(type) if name == 'lanes' else self.vector_type(type)}"
        if isinstance(type, Float32Type | Float64Type) and name not in _VECTOR_ONLY:
            return f"treadle_{name}{'f' if isinstance(type, Float32Type) else ''}"
        if isinstance(type, IndexType | IntegerType) and name in _INTEGER_NAMES:
            return f"treadle_{name}_{i64 if isinstance(type, IndexType) else type}"
        if isinstance(type, IndexType) and name == "if":
            return "treadle_if"
        raise TreadleError(f"{name} on {type}", "C printer", "f32, f64 and vectors of f32")

    def library_call(self, name: str, type: Attribute, operands: str) -> str:
        # By these names the compiler has the functions without <math.h>, which treadle.h does not include.
        if type == f64:
            return f"__builtin_{name}({operands})"
        if isinstance(type, VectorType):
            return f"TREADLE_EACH_LANE({self.vector_type(type)}, __builtin_{name}f, {operands})"
        return f"__builtin_{name}f({operands})"

    def truncation(self, source: Attribute, target: Attribute) -> str:
        return f"treadle_{f64 if source == f64 else f32}_to_{target}"

    def converted(self, text: str, source: VectorType, target: VectorType) -> str:
        name = self.vector_type(target)
        if source.element_type == f32 and isinstance(target.element_type, IntegerType):
            return f"{self.truncation(f32, target.element_type)}_{name}({text})"
        if source.element_type in (i8, ui8):
            whole = self.vector_type(VectorType(i32, source.get_shape()))
            text = f"treadle_{source.element_type}_to_i32_{whole}({text})"
            if target.element_type == i32:
                return text
        return f"__builtin_convertvector({text}, {name})"

    def clamped(self, text: str, bytes: VectorType, target: VectorType) -> str:
        # GCC 12 takes lanes out one by one where integers become bytes, and integers again.
        whole = VectorType(i32, target.get_shape())
        numbers = f"{self.truncation(f32, bytes.element_type)}_{self.vector_type(whole)}({text})"
        return numbers if target == whole else self.converted(numbers, whole, target)

    def splat(self, type: VectorType, scalar: str, zero: bool) -> str:
        name = self.vector_type(type)
        if zero:
            return f"({name}){{0}}"
        if type.element_type == f32:
            return f"treadle_splat_{name}({scalar})"
        if type.element_type == f16:
            return f"treadle_splat_float16_{name}({scalar})"
        return f"(({name}){{0}} + ({scalar}))"

    def vector_load(self, type: VectorType, address: str) -> str:
        return f"*(const {self.vector_type(type)}_u *){address}"

    def loaded(self, type: VectorType, load: str) -> str:
        return f"({self.vector_type(type)}){load}"

    def vector_lvalue(self, type: VectorType, address: str) -> str:
        return f"*({self.vector_type(type)}_u *){address}"

    def lane(self, vector: str, position: str, type: VectorType) -> str:
        return f"{vector}[{position}]"

    def expression(self, op: Operation, values: Values) -> str | None:
        if isinstance(op, OpaqueBufferOp):
            return f"TREADLE_AGAIN_BUFFER({self.memory_type(type_of(op.buffer).element_type)}, {values.at(op.buffer)})"
        if isinstance(op, ArriveOp):
            return f"treadle_arrive(&{values.element(op.counters, [op.index])}, {op.count})"
        return f"TREADLE_AGAIN({values.at(op.index)})" if isinstance(op, OpaqueOp) else None

    def statement(self, op: Operation, values: Values) -> str | None:
        if isinstance(op, PrefetchOp):
            element = self.memory_type(type_of(op.buffer).element_type)
            return f"TREADLE_PREFETCH({element}, {values.at(op.buffer)}, {values.at(op.offset)});"
        if isinstance(op, MultiplyTilesOp):
            return self._product(op, values)
        if isinstance(op, TransposeOp):
            return f"{self.function('transpose', op.type)}(&{values.element(op.buffer, op.indices)});"
        return None

    def _product(self, op: MultiplyTilesOp, values: Values) -> str:
        """A call of a function of treadle_tiles.h."""
        rows, columns, depth = op.extents
        left, right = op.elements
        name = "bf16" if isinstance(left, BFloat16Type) else f"{left}{right}"
        a, b = (f"&{values.element(*each)}" for each in ((op.a, op.a_indices), (op.b, op.b_indices)))
        rows_of = op.left
        width = _BYTES[left]
        taps = ", ".join(str(tap * width) for tap in rows_of.taps)
        acc = f"&{values.element(op.acc, op.acc_indices)}"
        ahead = (
            "0"
            if op.ahead is None
            else f"TREADLE_ADDRESS({self.memory_type(right)}, {values.at(op.b)}, {values.at(op.ahead)})"
        )
        left_rows = f"{a}, {rows_of.stride * width}, taps, {len(rows_of.taps)}, {rows_of.apart * width}"
        operands = f"{rows}, {columns}, {depth}, {left_rows}, {b}, {acc}, {ahead}, {op.fetched}"
        return f"{{ static const int taps[] = {{{taps}}}; treadle_tiles_{name}({operands}); }}"

    def declare_array(self, name: str, type: MemRefType, extents: str, op: Operation) -> list[str]:
        size = array_bytes(type)
        storage = "static _Thread_local " if size > LARGEST_LOCAL else ""
        element = self.memory_type(type.element_type)
        aligned = isinstance(type.element_type, VectorType) or size < _ALIGNMENT
        alignment = "" if aligned else f" __attribute__((aligned({_ALIGNMENT})))"
        return [f"{storage}{element} {name}{extents}{alignment};"]

    def loop_pragma(self, op: Operation, trips: int | None) -> str | None:
        wanted = op.attributes.get("loop.unroll")
        if wanted is not None and trips:
            return f"TREADLE_UNROLL({wanted.value.data if isinstance(wanted, IntegerAttr) else trips})"
        return "TREADLE_INDEPENDENT" if "loop.vector" in op.attributes else None


def array_bytes(type: MemRefType) -> int:
    """Bytes of a buffer that a kernel allocates."""
    element, lanes = type.element_type, 1
    if isinstance(element, VectorType):
        lanes, element = element.element_count(), element.element_type
    strides = type.get_strides() or [1]
    last = sum((extent - 1) * (stride or 0) for extent, stride in zip(type.get_shape(), strides, strict=False))
    return (last + 1) * lanes * _BYTES.get(element, 8)
