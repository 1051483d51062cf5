"""The table of what may be printed is what is printed and compiles, for each target, operation and element type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from xdsl.dialects import arith, func, math, memref, vector
from xdsl.dialects import test as test_dialect
from xdsl.dialects.builtin import (
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    TensorType,
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
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from treadle.backends.c.compiler import Unit, compile_objects
from treadle.backends.c.printer import print_kernel as print_c
from treadle.backends.c_like.language import CONVERSIONS, INTEGER_FUNCTIONS, OPERATORS
from treadle.backends.c_like.language import FUNCTIONS as PRINTED_FUNCTIONS
from treadle.backends.cuda.compiler import Unit as CudaUnit
from treadle.backends.cuda.compiler import compile_cubin
from treadle.backends.cuda.emulator.emulator import Emulator
from treadle.backends.cuda.printer import print_kernel as print_cuda
from treadle.dialects.cuda import KernelOp, ReturnOp
from treadle.dialects.graph import BinaryOp, CastOp, UnaryOp, definition
from treadle.dialects.graph.dtypes import STORED_TYPES, f8e8m0fnu, is_float, ui8, ui16, ui32, ui64
from treadle.dialects.graph.elementwise import COMPARISONS, UNARY
from treadle.dialects.scalar import BINARY_KINDS, SCALAR, is_unsigned, number_op
from treadle.errors import TreadleError
from treadle.passes.instruments import check_legal
from treadle.passes.scalar_forms import SCALAR_FORMS, VECTOR_FORMS, Form, missing_form
from treadle.target import Target

FUNCTIONS = "SCALAR_FUNCTIONS of treadle/dialects/scalar.py"
SCALARS, VECTORS = (f"{table} of treadle/passes/scalar_forms.py" for table in ("SCALAR_FORMS", "VECTOR_FORMS"))
UNSIGNED: tuple[Attribute, ...] = (ui8, ui16, ui32, ui64)
TYPES: tuple[Attribute, ...] = (i1, i8, i16, i32, i64, *UNSIGNED, IndexType(), bf16, f16, f32, f64, *STORED_TYPES)
CONSTANTS = ("arith.constant", "scalar.constant")
KINDS: dict[str, type[Operation]] = {kind.name: kind for d in (arith.Arith, math.Math, SCALAR) for kind in d.operations}
OPERANDS = {"math.fma": 3, "arith.select": 3, "arith.negf": 1, "arith.bitcast": 1, "math.powf": 2, "math.copysign": 2}
SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")


def rank_zero(type: Attribute) -> MemRefType[Attribute]:
    """A buffer of a few elements."""
    return MemRefType(type, [64])


def widens(name: str, source: Attribute, target: Attribute) -> bool:
    """Whether an operation may convert one type to another; others keep the type."""
    if name == "arith.bitcast":
        return source != target and bits(source) == bits(target)
    if KINDS[name] not in CONVERSIONS:
        return source == target or name in ("arith.cmpi", "arith.cmpf")
    if name in ("arith.extf", "arith.extsi", "arith.extui"):
        return bits(source) < bits(target)
    if name in ("arith.truncf", "arith.trunci"):
        return bits(source) > bits(target)
    return name != "arith.index_cast" or (isinstance(source, IndexType) != isinstance(target, IndexType))


def bits(type: Attribute) -> int:
    """The size of an element type."""
    return type.width.data if isinstance(type, IntegerType) else type.bitwidth if is_float(type) else 64  # pyright: ignore


def instances(forms: dict[str, Form]) -> Iterator[tuple[str, Attribute, Attribute]]:
    """Each operation that the table has, with each type of its operands and of its result."""
    for name, (operands, results) in forms.items():
        for source in operands or results:
            for target in results:
                if name in CONSTANTS or widens(name, source, target):
                    yield name, source, target


def operation(name: str, values: Sequence[SSAValue], flag: SSAValue, result: Attribute) -> Operation:
    """The operation on values of one type."""
    if name in CONSTANTS:
        return number_op(2.5 if is_float(result) else 1, result)
    count = OPERANDS.get(name, 1 if KINDS[name] in CONVERSIONS or name.startswith("math.") else 2)
    operands = [flag, *values[:2]] if name == "arith.select" else [*values, values[0]][:count]
    less = 6 if name == "arith.cmpi" and is_unsigned(values[0].type) else 2
    predicate = {"predicate": IntegerAttr(less, i64)} if name in ("arith.cmpi", "arith.cmpf") else {}
    return KINDS[name].create(operands=operands, result_types=[result], properties=predicate)


def statements(forms: dict[str, Form], buffers: Mapping[Attribute, SSAValue], at: SSAValue) -> Iterator[Operation]:
    """Loads of two elements of each type, and each operation with a store of its result."""
    values: dict[Attribute, list[SSAValue]] = {}
    for type, buffer in buffers.items():
        loads = [memref.LoadOp.get(buffer, [at]) for _ in range(2)]
        values[type] = [load.res for load in loads]
        yield from loads
    for name, source, target in instances(forms):
        taken = values[source]
        if name in SHIFTS:
            three = arith.ConstantOp(IntegerAttr(3, source))  # pyright: ignore
            yield three
            taken = [taken[0], three.result]
        op = operation(name, taken, values[i1][0], target)
        yield op
        yield memref.StoreOp.get(op.results[0], buffers[target], [at])


def scalar_block(kind: str, extra: Sequence[Attribute]) -> Block:
    block = Block(arg_types=[*map(rank_zero, TYPES), *extra])
    zero = arith.ConstantOp(IntegerAttr(0, IndexType()))
    block.add_op(zero)
    buffers = dict(zip(TYPES, block.args, strict=False))
    block.add_ops(list(statements(dict(SCALAR_FORMS[kind]), buffers, zero.result)))
    return block


def test_every_form_of_the_cpu_compiles() -> None:
    ids = [IndexType(), IndexType()]
    block = scalar_block("cpu", ids)
    block.add_op(func.ReturnOp())
    scalars = func.FuncOp("scalars", ([*map(rank_zero, TYPES), *ids], []), Region(block))
    assert compile_objects([Unit("scalars", print_c(scalars)), Unit("vectors", print_c(vectors()))])


def vectors() -> func.FuncOp:
    """Each operation that the table has for vectors, on 16 numbers or on the masks that comparing them gives."""
    of_masks, elements = VectorType(i1, [16]), (f32, bf16, i32, i8, ui8)
    types = [*map(rank_zero, elements), rank_zero(i1), IndexType(), IndexType()]
    block = Block(arg_types=types)
    zero, one = (arith.ConstantOp(IntegerAttr(n, IndexType())) for n in (0, 1))
    buffers: dict[Attribute, SSAValue] = dict(zip(elements, block.args, strict=False))
    numbers = {
        type: [vector.LoadOp(buffers[type], [zero.result], VectorType(type, [16])) for _ in range(2)]
        for type in buffers
    }
    loads = [load for pair in numbers.values() for load in pair]
    flag = memref.LoadOp.get(block.args[len(elements)], [zero.result])
    masks = [vector.CreateMaskOp([n.result], of_masks) for n in (zero, one)]
    block.add_ops([zero, one, *loads, flag, *masks])
    for name, (operands, results) in VECTOR_FORMS["cpu"].items():
        for result in results if name != "arith.constant" else ():
            if result in buffers:
                given = [load.result for load in numbers[result if result in operands else operands[-1]]]
                op = operation(name, given, flag.res, VectorType(result, [16]))
                block.add_ops([op, vector.StoreOp(op.results[0], buffers[result], [zero.result])])
    block.add_op(func.ReturnOp())
    return func.FuncOp("vectors", (types, []), Region(block))


def test_every_form_of_a_gpu_compiles() -> None:
    block = scalar_block("cuda", [])
    block.add_op(ReturnOp())
    kernel = KernelOp("scalars", (1, 1, 1), (1, 1, 1), Region(block))
    Emulator(print_cuda(kernel), ())


def test_every_form_of_a_gpu_compiles_with_nvrtc() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    block = scalar_block("cuda", [])
    block.add_op(ReturnOp())
    text = print_cuda(KernelOp("scalars", (1, 1, 1), (1, 1, 1), Region(block)))
    assert compile_cubin(CudaUnit("scalars", text), Target.parse("sm_80")).image


def test_the_table_has_what_the_printers_have() -> None:
    printed = {kind.name for table in (OPERATORS, PRINTED_FUNCTIONS, INTEGER_FUNCTIONS) for kind in table}
    printed |= {kind.name for kind in CONVERSIONS}
    printed |= {*CONSTANTS, "arith.select", "arith.cmpi", "arith.cmpf", "arith.andi", "arith.ori", "arith.xori"}
    printed |= {"arith.negf", "arith.bitcast"}
    printed -= {"vector.fma"}
    for kind in ("cpu", "cuda"):
        assert set(SCALAR_FORMS[kind]) == printed
        assert set(VECTOR_FORMS[kind]) <= printed


@pytest.mark.parametrize(
    ("kind", "op", "type", "message"),
    [
        ("cpu", math.CbrtOp, f32, f"math.cbrt has no form on a cpu target; accepted: an operation of {FUNCTIONS}"),
        ("cuda", math.Exp2Op, f64, rf"math.exp2 with a f64 has no form on a cuda .*: bf16, f16, f32 \({FUNCTIONS}"),
        ("cpu", arith.CeilDivUIOp, i32, f"arith.ceildivui has no form on a cpu target; accepted: an .* of {SCALARS}"),
        ("cpu", arith.AddiOp, i1, rf"arith.addi with a i1 has no form on a cpu .*: index, i8, i16.* \({SCALARS}"),
        (
            "cpu",
            arith.DivUIOp,
            i32,
            rf"arith.divui with a i32 has no form on a cpu .*: index, ui8, .* \({SCALARS}",
        ),
        ("cpu", arith.DivSIOp, VectorType(i32, [16]), f"arith.divsi of vectors has no form on a cpu .* of {VECTORS}"),
        ("cpu", arith.AddiOp, VectorType(i64, [16]), rf"arith.addi with a vector<16xi64> .*: i32 \({VECTORS}"),
        ("cuda", math.ExpOp, VectorType(f32, [4]), f"math.exp of vectors has no form on a cuda .* of {VECTORS}"),
        ("cpu", math.ExpOp, VectorType(f64, [4]), rf"math.exp with a vector<4xf64> has no form .*: f32 \({VECTORS}"),
    ],
)
def test_what_has_no_form_is_named_with_its_place_and_the_table(
    kind: str, op: type[Operation], type: Attribute, message: str
) -> None:
    block = Block(arg_types=[type])
    count = 2 if op.name.startswith("arith.") else 1
    block.add_op(op.create(operands=[block.args[0]] * count, result_types=[type]))
    block.add_op(func.ReturnOp())
    module = ModuleOp([func.FuncOp("k", ([type], []), Region(block))])
    with pytest.raises(TreadleError, match=message) as caught:
        check_legal(module, "lower", kind)
    assert "func.func @k" in str(caught.value)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("type", [f32, f64, f16, bf16], ids=str)
def test_every_kind_of_operator_on_floats_can_be_printed(kind: str, type: Attribute) -> None:
    """Forms compile above, and functions are compared with their definitions in tests/backends."""
    values = test_dialect.TestOp(result_types=[TensorType(type, [4])] * 2).results
    unary = [UnaryOp(name, values[0]) for name in UNARY if name != "not"]
    binary = [BinaryOp(name, *values) for name in (*BINARY_KINDS, *COMPARISONS, "add", "sub", "mul", "div")]
    missing = [
        (made.kind.data, lacks)
        for made in (*unary, *binary)
        for op in definition(made).body.block.ops
        if (lacks := missing_form(op, kind)) is not None
    ]
    assert missing == []


def test_signed_comparisons_of_unsigned_numbers_are_rejected() -> None:
    x = test_dialect.TestOp(result_types=[ui8]).results[0]
    assert missing_form(arith.CmpiOp(x, x, "slt"), "cpu") == ("arith.cmpi slt of ui8", "eq, ne, ult, ule, ugt, uge")
    assert missing_form(arith.CmpiOp(x, x, "ult"), "cpu") is None


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("type", UNSIGNED, ids=str)
def test_every_kind_of_operator_on_unsigned_integers_can_be_printed(kind: str, type: Attribute) -> None:
    values = test_dialect.TestOp(result_types=[TensorType(type, [4])] * 2).results
    unary = [UnaryOp(name, values[0]) for name in ("neg", "abs", "sign", "relu")]
    names = ("add", "sub", "mul", "div", "mod", "max", "min", "and", "or", "xor", *COMPARISONS)
    casts = [CastOp(values[0], to) for to in TYPES if to not in (IndexType(), f8e8m0fnu)]
    casts += [CastOp(test_dialect.TestOp(result_types=[TensorType(to, [4])]).results[0], type) for to in (i1, i8, f32)]
    missing = [
        (made.name, lacks)
        for made in (*unary, *casts, *(BinaryOp(name, *values) for name in names))
        for op in definition(made).body.block.ops
        if (lacks := missing_form(op, kind)) is not None
    ]
    assert missing == []
