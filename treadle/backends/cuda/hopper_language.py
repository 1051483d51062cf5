"""Operations of the hopper dialect as CUDA C++: calls of the functions of treadle_hopper.h."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects.builtin import MemRefType, bf16, f16, f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue

from treadle.backends.c_like.language import Precedence, Values
from treadle.backends.c_like.names import Names
from treadle.backends.c_like.scalars import constant_integer
from treadle.dialects import hopper
from treadle.dialects.cuda.attributes import element_bytes
from treadle.dialects.graph.dtypes import f8e4m3fn, f8e5m2, ui8
from treadle.dialects.hopper.attributes import memref_type
from treadle.dialects.hopper.barrier import number_of
from treadle.dialects.hopper.wgmma import COLUMNS, ELEMENT_BYTES, SUM, TERM_BYTES, descriptor

_ELEMENTS: Mapping[Attribute, tuple[str, str]] = {
    f16: ("treadle_half", "f16"),
    bf16: ("treadle_bfloat16", "bf16"),
    f32: ("treadle_tf32", "tf32"),
    f8e4m3fn: ("treadle_f8E4M3FN", "e4m3"),
    f8e5m2: ("treadle_f8E5M2", "e5m2"),
    i8: ("signed char", "s8"),
    ui8: ("unsigned char", "u8"),
}
"""Of an operand's elements, the type in the text, and PTX's."""
_SUMS: Mapping[Attribute, tuple[str, str, str]] = {f32: ("float", "f32", "f"), i32: ("int", "s32", "r")}
"""Of sums, the type in the text, PTX's, and the constraint of a register."""
_SWIZZLES = {128: 1, 64: 2, 32: 3}
_UNIT = 16
"""Bytes that a matrix descriptor counts."""
_PLAIN: Mapping[type[Operation], str] = {
    hopper.MbarrierFenceOp: "treadle_mbarrier_fence();",
    hopper.BulkCommitOp: "treadle_bulk_commit();",
    hopper.FenceAsyncOp: "treadle_fence_async();",
    hopper.WarpBarrierOp: "treadle_warp_barrier();",
    hopper.ClusterArriveOp: "treadle_cluster_arrive();",
    hopper.ClusterWaitOp: "treadle_cluster_wait();",
    hopper.WgmmaFenceOp: "treadle_wgmma_fence();",
    hopper.WgmmaCommitOp: "treadle_wgmma_commit();",
}


class HopperLanguage:
    """Writes the operations of one kernel.

    names: of the kernel's variables, for those of addresses
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._addresses: dict[SSAValue, str] = {}
        self._matrices: dict[tuple[SSAValue, bool], str] = {}

    def declare(self, buffer: SSAValue, name: str) -> list[str]:
        """What is declared behind a buffer in shared memory: its address, and its descriptors as an operand."""
        users = [use.operation for use in buffer.uses]
        if not any(user.dialect_name() == "hopper" for user in users):
            return []
        address = self._addresses[buffer] = self._names.claim_exact(f"{name}_at")
        lines = [f"const unsigned {address} = treadle_uniform(treadle_shared_address({name}));"]
        for user in users:
            for along_k in _operands(user, buffer):
                if (buffer, along_k) in self._matrices:
                    continue
                matrix = self._matrices[buffer, along_k] = self._names.claim_exact(f"{name}_matrix")
                layout = descriptor(memref_type(buffer), along_k=along_k)
                assert layout is not None, "verified"
                arguments = f"{address}, {layout.leading}, {layout.stride}, {_SWIZZLES[layout.swizzle]}"
                lines.append(f"const unsigned long long {matrix} = treadle_matrix({arguments});")
        return lines

    def expression(self, op: Operation, values: Values) -> str | None:
        """The value of an operation; None for others."""
        match op:
            case hopper.UniformOp():
                return f"treadle_uniform({values.at(op.value)})"
            case _:
                return None

    def statement(self, op: Operation, values: Values) -> str | None:
        """The statement of an operation without results; None for others."""
        plain = _PLAIN.get(type(op))
        if plain is not None:
            return plain
        match op:
            case hopper.MbarrierInitOp():
                return f"treadle_mbarrier_init({self._at(op.barrier, [op.index], values)}, {number_of(op.arrivals)});"
            case hopper.MbarrierArriveOp():
                barrier = self._at(op.barrier, [op.index], values)
                if op.bytes is None:
                    return f"treadle_mbarrier_arrive({barrier});"
                return f"treadle_mbarrier_expect({barrier}, {number_of(op.bytes)});"
            case hopper.MbarrierWaitOp():
                name = "treadle_mbarrier_wait" if op.cluster is None else "treadle_mbarrier_wait_cluster"
                return f"{name}({self._at(op.barrier, [op.index], values)}, {values.at(op.parity)});"
            case hopper.StoreAsyncOp():
                places = (op.buffer, op.indices), (op.barrier, [op.place])
                there = [self._at(*place, values, op.rank) for place in places]
                return f"treadle_store_async({', '.join(there)}, {values.at(op.value)});"
            case hopper.NamedBarrierOp():
                name = "treadle_named_barrier" if op.arrive is None else "treadle_named_barrier_arrive"
                return f"{name}({values.at(op.number)}, {number_of(op.threads)});"
            case hopper.RegistersOp():
                what = "decrease" if op.increase is None else "increase"
                return f"treadle_registers_{what}<{number_of(op.count)}>();"
            case hopper.TensorLoadOp():
                tile, barrier = self._at(op.buffer, op.indices, values), self._at(op.barrier, [op.place], values)
                place = _coordinates(op.coordinates, values)
                if op.offsets:
                    moved = _coordinates(op.offsets, values)
                    return f"treadle_tensor_load_pixels({tile}, {values.at(op.map)}, {barrier}, {place}, {moved});"
                return f"treadle_tensor_load({tile}, {values.at(op.map)}, {barrier}, {place});"
            case hopper.TensorStoreOp():
                tile, place = self._at(op.buffer, op.indices, values), _coordinates(op.coordinates, values)
                return f"treadle_tensor_store({values.at(op.map)}, {tile}, {place});"
            case hopper.BulkWaitOp():
                return f"treadle_bulk_wait{'' if op.read is None else '_read'}<{number_of(op.pending)}>();"
            case hopper.WgmmaWaitOp():
                return f"treadle_wgmma_wait<{number_of(op.pending)}>();"
            case hopper.BeforeWaitOp():
                return f"treadle_before_wait({values.at(op.value)});"
            case hopper.WgmmaSumsOp():
                count = op.columns // COLUMNS
                return f"treadle_wgmma_sums<{count}>({_first_sum(op.acc, op.acc_indices, values)});"
            case hopper.WgmmaOp() | hopper.WgmmaRegistersOp():
                return self._product(op, values)
            case _:
                return None

    def _product(self, op: hopper.WgmmaOp | hopper.WgmmaRegistersOp, values: Values) -> str:
        if isinstance(op, hopper.WgmmaRegistersOp):
            left, of_b = values.at(op.a), op.along_k
        else:
            of_a, of_b = op.operands_along_k
            left = self._matrix(op.a, op.a_indices, of_a, values)
        right = self._matrix(op.b, op.b_indices, of_b, values)
        keep = "true" if op.keep is None else values.at(op.keep)
        sums = _first_sum(op.acc, op.acc_indices, values)
        return f"{WgmmaShape.of(op).call}({sums}, {left}, {right}, {keep});"

    def _matrix(self, buffer: SSAValue, indices: Sequence[SSAValue], along_k: bool, values: Values) -> str:
        """The descriptor of a tile, from an element on."""
        return _moved(self._matrices[buffer, along_k], *_offset(buffer, indices, values, _UNIT))

    def _at(self, buffer: SSAValue, indices: Sequence[SSAValue], values: Values, rank: SSAValue | None = None) -> str:
        """The address of an element of a buffer in shared memory, of the block of a rank if one is given."""
        terms, known = _offset(buffer, indices, values, 1)
        start = self._addresses[buffer]
        if rank is not None:
            start = f"treadle_remote_address({start}, {values.at(rank)})"
        return " + ".join([start, *terms, *([str(known)] if known else [])])


def _operands(product: Operation, buffer: SSAValue) -> list[bool]:
    """For each operand of a product that a buffer is, whether it lies along the terms there."""
    match product:
        case hopper.WgmmaOp():
            pairs = zip((product.a, product.b), product.operands_along_k, strict=True)
            return [along_k for operand, along_k in pairs if operand is buffer]
        case hopper.WgmmaRegistersOp():
            return [product.along_k]
        case _:
            return []


def _first_sum(acc: SSAValue, indices: Sequence[SSAValue], values: Values) -> str:
    """The address of a product's first sums."""
    first = "".join(f"[{values.at(index)}]" for index in indices)
    return f"&{values.at(acc, Precedence.PRIMARY)}{first}[0][0]"


def _moved(matrix: str, terms: Sequence[str], known: int) -> str:
    """A matrix descriptor whose start is moved: by what is known, all products of a step add to one start."""
    moved = f"treadle_matrix_at({matrix}, {' + '.join(terms)})" if terms else matrix
    return f"{moved} + {known}" if known else moved


def _coordinates(coordinates: Sequence[SSAValue], values: Values) -> str:
    """The innermost first, as PTX has them."""
    return ", ".join(values.at(each) for each in reversed(coordinates))


def _offset(buffer: SSAValue, indices: Sequence[SSAValue], values: Values, unit: int) -> tuple[list[str], int]:
    """What is added to reach an element, in units of bytes that divide it: terms, and what is known."""
    type = buffer.type
    assert isinstance(type, MemRefType)
    shape, size = type.get_shape(), element_bytes(type.get_element_type()) or 1
    known, terms = 0, list[str]()
    for dimension, index in enumerate(indices):
        stride, number = prod(shape[dimension + 1 :]) * size, constant_integer(index)
        if number is not None:
            known += number * stride
        elif stride % unit == 0:
            factor = stride // unit
            plain = values.at(index, Precedence.MULTIPLY if factor > 1 else Precedence.ADD.tighter)
            terms.append(f"{plain} * {factor}" if factor > 1 else plain)
        else:
            terms.append(f"{values.at(index, Precedence.MULTIPLY)} * {stride} / {unit}")
    assert known % unit == 0, "products begin at multiples of 16 bytes"
    return terms, known // unit


@dataclass(frozen=True)
class WgmmaShape:
    """An instruction: the columns, the elements of both operands, and which lie across the terms; None for A in
    registers."""

    columns: int
    a: Attribute
    b: Attribute
    across: tuple[bool | None, bool]

    @staticmethod
    def of(op: hopper.WgmmaOp | hopper.WgmmaRegistersOp) -> WgmmaShape:
        """That of an operation."""
        if isinstance(op, hopper.WgmmaRegistersOp):
            return WgmmaShape(op.columns, op.element, op.element, (None, not op.along_k))
        along_k = op.operands_along_k
        return WgmmaShape(op.columns, *op.elements, (not along_k[0], not along_k[1]))

    @property
    def call(self) -> str:
        """The function."""
        name = "treadle_wgmma" if self.across[0] is not None else "treadle_wgmma_registers"
        across = ", ".join(str(int(each)) for each in self.across if each is not None)
        return f"{name}<{self.columns}, {_ELEMENTS[self.a][0]}, {_ELEMENTS[self.b][0]}, {across}>"

    @property
    def definition(self) -> list[str]:
        """The function's text, for compilers of device code."""
        (_, a), (_, b) = _ELEMENTS[self.a], _ELEMENTS[self.b]
        type, sum, constraint = _SUMS[SUM[self.a]]
        count, terms = self.columns // 2, TERM_BYTES // ELEMENT_BYTES[self.a]
        registers = ", ".join(f"%{n}" for n in range(count))
        sums = ", ".join(f'"+{constraint}"(sums[{n // 4}].v[{n % 4}])' for n in range(count))
        left, declared, given = f"%{count}", "unsigned long long a", ['"l"(a)']
        if self.across[0] is None:
            given = [f'"r"(a.v[{n}])' for n in range(4)]
            left, declared = f"{{{', '.join(f'%{count + n}' for n in range(4))}}}", "treadle_vec<unsigned, 4> a"
        right = count + len(given)
        options = "" if sum == "s32" else ", 1, 1"
        if ELEMENT_BYTES[self.a] == 2:
            options += "".join(f", {int(each)}" for each in self.across if each is not None)
        instruction = f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{terms}.{sum}.{a}.{b}"
        return [
            f"template <> inline void {self.call}(treadle_vec<{type}, 4> *sums, {declared}, unsigned long long b, "
            "bool keep) {",
            f'  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{right + 1}, 0;\\n"',
            f'               "{instruction} {{{registers}}}, {left}, %{right}, p{options};\\n}}"',
            f"               : {sums}",
            f'               : {", ".join(given)}, "l"(b), "r"((int)keep));',
            "}",
        ]


def is_of_hopper(kernel: Operation) -> bool:
    """Whether a kernel has operations of the dialect."""
    return any(op.dialect_name() == "hopper" for op in kernel.walk())


def definitions(kernel: Operation) -> list[str]:
    """The functions for the shapes of products that a kernel has."""
    products = (op for op in kernel.walk() if isinstance(op, hopper.WgmmaOp | hopper.WgmmaRegistersOp))
    shapes = dict.fromkeys(map(WgmmaShape.of, products))
    if not shapes:
        return []
    lines = [line for shape in shapes for line in shape.definition]
    return ["#ifndef TREADLE_NO_DEVICE_BODIES", *lines, "#endif", ""]
