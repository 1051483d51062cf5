"""The C printer: what the text looks like, and that it computes what the IR says."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.backends.c.compiler import build_library
from treadle.backends.c.executor import CpuProgram
from treadle.backends.c.printer import print_host, print_kernels
from treadle.backends.interface import TensorSpec
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.lower.loop_lower_accesses import LoopLowerAccessesPass
from treadle.passes.lower.loop_to_c import LoopToCPass

BFLOAT16 = ml_dtypes.bfloat16
F32 = np.dtype(np.float32)
INPUTS = Path(__file__).parent / "inputs"


def lowered(text: str) -> ModuleOp:
    context = treadle_context()
    module = Parser(context, text).parse_module()
    module.verify()
    for lowering in (LoopLowerAccessesPass(), LoopToCPass()):
        lowering.apply(context, module)
        module.verify()
    return module


def kernel(body: str, arguments: str = "%A : memref<64xf32>, %C : memref<64xf32>", head: str = "") -> str:
    constants = "\n".join(f"%c{n} = arith.constant {n} : index" for n in (0, 1, 2, 3, 4, 8, 16, 64))
    return f"loop.func @k({arguments}) grid(%b in 2) threads(%t in 1) {head} {{\n{constants}\n{body}\n}}"


def printed(body: str, **more: str) -> str:
    """The lines inside the kernel's loop over blocks, without their common indentation."""
    (unit,) = print_kernels(lowered(kernel(body, **more)))
    lines = unit.text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("    for (long b"))
    return "\n".join(line[8:] for line in lines[start + 1 : -2])


def run(text: str, inputs: list[np.ndarray], outputs: list[tuple[tuple[int, ...], np.dtype]]) -> list[np.ndarray]:
    """Runs kernel @k of `text` on the inputs, then the outputs."""
    names = [f"%i{n}" for n in range(len(inputs))] + [f"%o{n}" for n in range(len(outputs))]
    module = lowered(text)
    types = [str(t) for t in next(iter(module.ops)).function_type.inputs.data[:-2]]  # pyright: ignore
    lines = [
        f"{name} = host.buffer {'input' if name[1] == 'i' else 'output'} {name[2:]} : {type}"
        for name, type in zip(names, types, strict=True)
    ]
    call = f"host.launch @k({', '.join(names)}) : {', '.join(types)}"
    module = lowered(text + "\nfunc.func @main() {\n" + "\n".join([*lines, call, "host.return"]) + "\n}")
    library = build_library([*print_kernels(module), print_host(module)])
    given = [TensorSpec(n, a.shape, a.dtype) for n, a in zip(names, inputs, strict=False)]
    wanted = [TensorSpec(n, shape, dtype) for n, (shape, dtype) in zip(names[len(inputs) :], outputs, strict=True)]
    with CpuProgram(library, given, wanted, threads=2) as program:
        return program.run(inputs)


def test_an_elementwise_kernel_reads_as_written_by_hand() -> None:
    (unit,) = print_kernels(
        lowered(
            kernel(
                """
  %n = arith.constant 50 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %m = arith.muli %b, %c64 : index
  scf.for %i = %c0 to %c64 step %c1 {
    %at = arith.addi %m, %i : index
    %in = arith.cmpi slt, %at, %n : index
    %x = loop.load %A[%at] where %in else %zero : memref<64xf32>
    %neg = arith.negf %x : f32
    %e = math.exp %neg : f32
    %d = arith.addf %e, %one : f32
    %y = arith.divf %x, %d : f32
    loop.store %y, %C[%at] where %in : memref<64xf32>
  }""",
                head='comment "Sigmoid, Mul"',
            )
        )
    )
    assert unit.name == "k"
    assert (
        unit.text
        == """#include "treadle.h"

/* Sigmoid, Mul */
void k(void *const *args, long worker, long workers) {
    const float *restrict A = args[0];
    float *restrict C = args[1];
    for (long b = 2 * worker / workers; b < 2 * (worker + 1) / workers; b++) {
        const long m = b * 64;
        for (long i = 0; i < 64; i++) {
            const long at = m + i;
            const int in = at < 50;
            const float x = in ? A[at] : 0.0f;
            if (in) {
                C[at] = x / (treadle_expf(-x) + 1.0f);
            }
        }
    }
}
"""
    )


def test_sums_are_carried_in_one_variable_through_nested_loops() -> None:
    text = printed("""
  %zero = arith.constant 0.0 : f32
  %sum = scf.for %i = %c0 to %c8 step %c1 iter_args(%s = %zero) -> (f32) {
    %inner = scf.for %j = %c0 to %c8 step %c2 iter_args(%r = %s) -> (f32) {
      %p = arith.addi %i, %j : index
      %a = loop.load %A[%p] : memref<64xf32>
      %n = arith.addf %a, %r : f32
      scf.yield %n : f32
    } {loop.vector}
    scf.yield %inner : f32
  } {loop.unroll}
  loop.store %sum, %C[%b] : memref<64xf32>""")
    assert (
        text
        == """float sum = 0.0f;
TREADLE_UNROLL(8)
for (long i = 0; i < 8; i++) {
    TREADLE_INDEPENDENT
    for (long j = 0; j < 8; j += 2) {
        sum += A[i + j];
    }
}
C[b] = sum;"""
    )


def test_carried_values_change_at_once() -> None:
    body = """
  %f0 = arith.constant 0.0 : f32
  %f1 = arith.constant 1.0 : f32
  %n, %m = scf.for %i = %c0 to %c8 step %c1 iter_args(%x = %f0, %y = %f1) -> (f32, f32) {
    %z = arith.addf %x, %y : f32
    scf.yield %y, %z : f32, f32
  }
  loop.store %n, %C[%b] : memref<64xf32>"""
    text = printed(body)
    assert "const float next_m = n + m;\n    n = m;\n    m = next_m;" in text
    (result,) = run(kernel(body), [np.zeros(64, F32)], [((64,), F32)])
    assert result[:2].tolist() == [21, 21]


def test_a_load_never_passes_a_store_to_its_buffer() -> None:
    text = printed("""
  %x = loop.load %A[%c0] : memref<64xf32>
  %old = loop.load %C[%c1] : memref<64xf32>
  loop.store %x, %C[%c1] : memref<64xf32>
  %y = arith.addf %x, %old : f32
  loop.store %y, %C[%c2] : memref<64xf32>""")
    assert (
        text
        == """const float x = A[0];
const float old = C[1];
C[1] = x;
C[2] = x + old;"""
    )


def test_nothing_moves_into_a_loop() -> None:
    text = printed("""
  %x = loop.load %A[%b] : memref<64xf32>
  %e = math.exp %x : f32
  scf.for %i = %c0 to %c8 step %c1 {
    loop.store %e, %C[%i] : memref<64xf32>
  }""")
    assert (
        text
        == """const float e = treadle_expf(A[b]);
for (long i = 0; i < 8; i++) {
    C[i] = e;
}"""
    )


def test_a_bound_is_not_loaded_once_an_iteration() -> None:
    text = printed(
        """
  %n = loop.load %N[%c0] : memref<1xindex>
  scf.for %i = %c0 to %n step %c1 {
    loop.store %i, %N[%c0] : memref<1xindex>
  }""",
        arguments="%N : memref<1xindex>",
    )
    assert text.startswith("const long n = N[0];\nfor (long i = 0; i < n; i++) {")


def test_a_choice_with_statements_assigns_its_results() -> None:
    text = printed("""
  %p = arith.cmpi eq, %b, %c0 : index
  %x = loop.load %A[%c0] : memref<64xf32>
  %y = scf.if %p -> (f32) {
    loop.store %x, %C[%c0] : memref<64xf32>
    scf.yield %x : f32
  } else {
    %z = arith.mulf %x, %x : f32
    scf.yield %z : f32
  }
  loop.store %y, %C[%c1] : memref<64xf32>""")
    assert (
        text
        == """const float x = A[0];
float y;
if (b == 0) {
    C[0] = x;
    y = x;
} else {
    y = x * x;
}
C[1] = y;"""
    )


def test_a_branch_alone_on_the_other_side_is_an_else_if() -> None:
    """Where another statement stands beside it, it is in a block."""
    text = printed("""
  %x = loop.load %A[%c0] : memref<64xf32>
  %c9 = arith.constant 9 : index
  %p = arith.cmpi eq, %b, %c0 : index
  scf.if %p {
    loop.store %x, %C[%c0] : memref<64xf32>
  } else {
    %n = arith.addi %b, %c2 : index
    %q = arith.cmpi slt, %n, %c9 : index
    scf.if %q {
      loop.store %x, %C[%c1] : memref<64xf32>
    } else {
      loop.store %x, %C[%c2] : memref<64xf32>
    }
  }
  scf.if %p {
    loop.store %x, %C[%c0] : memref<64xf32>
  } else {
    %y = loop.load %A[%c1] : memref<64xf32>
    loop.store %y, %C[%c1] : memref<64xf32>
    scf.if %p {
      loop.store %y, %C[%c2] : memref<64xf32>
    }
  }""")
    assert (
        text
        == """const float x = A[0];
const int p = b == 0;
if (p) {
    C[0] = x;
} else if (b + 2 < 9) {
    C[1] = x;
} else {
    C[2] = x;
}
if (p) {
    C[0] = x;
} else {
    const float y = A[1];
    C[1] = y;
    if (p) {
        C[2] = y;
    }
}"""
    )


def test_parentheses_are_the_fewest() -> None:
    text = printed("""
  %a = loop.load %A[%c0] : memref<64xf32>
  %x = loop.load %A[%c1] : memref<64xf32>
  %y = loop.load %A[%c2] : memref<64xf32>
  %0 = arith.subf %x, %y : f32
  %1 = arith.subf %a, %0 : f32
  %2 = arith.mulf %1, %1 : f32
  %3 = arith.divf %a, %2 : f32
  %4 = arith.negf %3 : f32
  loop.store %4, %C[%c0] : memref<64xf32>
  %m1 = arith.constant -1 : index
  %i = arith.addi %b, %c8 : index
  %j = arith.addi %i, %m1 : index
  %k = arith.muli %j, %c4 : index
  %l = arith.divui %k, %c3 : index
  %p = arith.cmpi sge, %l, %c0 : index
  %q = arith.cmpi slt, %b, %c4 : index
  %r = arith.cmpi eq, %b, %c1 : index
  %s = arith.andi %p, %q : i1
  %t2 = arith.ori %s, %r : i1
  %v = arith.select %t2, %a, %x : f32
  loop.store %v, %C[%c1] : memref<64xf32>""")
    assert "C[0] = -(a / (x_1 * x_1));" in text
    assert "C[1] = ((b + 8 - 1) * 4 / 3 >= 0 && b < 4) || b == 1 ? a : x;" in text


def test_names_cannot_break_the_text() -> None:
    module = lowered(
        kernel(
            """
  %int = loop.load %A[%c0] : memref<64xf32>
  %v16f = arith.addf %int, %int : f32
  %treadle_expf = arith.mulf %v16f, %v16f : f32
  loop.store %treadle_expf, %C[%c0] : memref<64xf32>""",
            head='comment "a */ int evil; /* b \\\\"',
        ).replace("@k(", '@"for (;;) /* x"(')
    )
    (unit,) = print_kernels(module)
    assert "/* a * / int evil; / * b */" in unit.text
    assert "void for_x(" in unit.text
    build_library([unit])


@pytest.mark.parametrize(("symbol", "name"), [("exp", "exp_kernel"), ("while", "while_"), ("3x", "kernel3x")])
def test_kernels_are_not_called_like_keywords_or_library_functions(symbol: str, name: str) -> None:
    module = lowered(kernel("").replace("@k(", f'@"{symbol}"('))
    assert [unit.name for unit in print_kernels(module)] == [name]


def test_matmul_in_vectors() -> None:
    text = (INPUTS / "matmul.mlir").read_text()
    module = lowered(text)
    (unit,) = print_kernels(module)
    assert (
        """
                TREADLE_UNROLL(8)
                for (long r = 0; r < 8; r++) {
                    const float a = A[(m + r) * 768 + k];
                    TREADLE_UNROLL(2)
                    for (long v = 0; v < 2; v++) {
                        acc[r][v] += a * B[p * 1536 + k * 2 + v];
                    }
                }
"""
        in unit.text
    )
    random = np.random.default_rng(0)
    a, b = random.standard_normal((128, 768), F32), random.standard_normal((768, 768), F32)
    packed = np.ascontiguousarray(b.reshape(768, 24, 2, 16).transpose(1, 0, 2, 3))
    library = build_library([unit, print_host(module)])
    specs = [TensorSpec("a", a.shape, F32), TensorSpec("b", packed.shape, F32)]
    with CpuProgram(library, specs, [TensorSpec("c", (128, 768), F32)], threads=2) as program:
        (c,) = program.run([a, packed])
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-3)


def test_vectors_masks_and_reductions() -> None:
    body = """
  %n = arith.constant 50 : index
  %zero = arith.constant dense<0.0> : vector<16xf32>
  %half = arith.constant dense<0.5> : vector<16xf32>
  scf.for %i = %c0 to %n step %c16 {
    %left = arith.subi %n, %i : index
    %mask = vector.create_mask %left : vector<16xi1>
    %x = vector.maskedload %A[%i], %mask, %zero : memref<64xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
    %s = loop.load %A[%i] : memref<64xf32>
    %w = vector.broadcast %s : f32 to vector<16xf32>
    %p = arith.mulf %x, %w : vector<16xf32>
    %q = arith.addf %half, %p : vector<16xf32>
    %e = math.exp %q : vector<16xf32>
    %m = arith.maximumf %e, %w : vector<16xf32>
    vector.maskedstore %C[%i], %mask, %m : memref<64xf32>, vector<16xi1>, vector<16xf32>
  }
  %all = vector.load %A[%c0] : memref<64xf32>, vector<16xf32>
  %sum = vector.reduction <add>, %all : vector<16xf32> into f32
  %third = vector.extract %all[3] : f32 from vector<16xf32>
  loop.store %sum, %C[%c64] : memref<66xf32>
  %c65 = arith.constant 65 : index
  loop.store %third, %C[%c65] : memref<66xf32>"""
    body = body.replace("%C[%i], %mask, %m : memref<64xf32>", "%C[%i], %mask, %m : memref<66xf32>")
    arguments = "%A : memref<64xf32>, %C : memref<66xf32>"
    text = printed(body, arguments=arguments)
    assert (
        """    const float s = A[i];
    treadle_store_first_v16f(&C[i], treadle_max_v16f(treadle_exp_v16f(0.5f + \
treadle_load_first_v16f(&A[i], left) * s), treadle_splat_v16f(s)), left);
"""
        in text
    )
    a = np.random.default_rng(1).standard_normal(64, F32)
    (c,) = run(kernel(body, arguments), [a], [((66,), F32)])
    first = np.repeat(a[::16], 16)
    np.testing.assert_allclose(c[:50], np.maximum(np.exp(a * first + 0.5), first)[:50], rtol=1e-6)
    np.testing.assert_allclose(c[64:], [a[:16].sum(), a[3]], rtol=1e-5)


FLOAT_OPS = {
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.subf": np.subtract,
    "arith.divf": np.divide,
    "math.powf": np.power,
    "math.copysign": np.copysign,
}
UNARY_OPS = {
    "math.absf": np.abs,
    "math.ceil": np.ceil,
    "math.cos": np.cos,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.floor": np.floor,
    "math.log": np.log,
    "math.log1p": np.log1p,
    "math.roundeven": np.round,
    "math.sin": np.sin,
    "math.sqrt": np.sqrt,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.trunc": np.trunc,
    "arith.negf": np.negative,
}
COMPARISONS = {
    "oeq": np.equal, "one": lambda a, b: (a < b) | (a > b), "ogt": np.greater, "oge": np.greater_equal,
    "olt": np.less, "ole": np.less_equal, "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b), "uge": lambda a, b: ~(a < b), "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b), "une": np.not_equal, "ord": lambda a, b: (a == a) & (b == b),
    "uno": lambda a, b: (a != a) | (b != b),
}  # fmt: skip


@pytest.mark.parametrize("type", ["f32", "f64", "f16", "bf16"])
def test_float_operations_compute_what_numpy_does(type: str) -> None:
    dtype = np.dtype({"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": BFLOAT16}[type])
    a: NDArray[Any] = np.array([1.5, -2.25, 0.5, -0.0, np.nan, np.inf, 3.0, 2.5], dtype)
    b = np.array([2.0, -2.25, np.nan, 0.0, 1.0, 2.0, -np.inf, 0.25], dtype)
    lines = [f"%x = loop.load %A[%i] : memref<8x{type}>", f"%y = loop.load %B[%i] : memref<8x{type}>"]
    names = [*FLOAT_OPS, *UNARY_OPS]
    for number, name in enumerate(names):
        operands = "%x, %y" if name in FLOAT_OPS else "%x"
        lines += [f"%v{number} = {name} {operands} : {type}", f"%n{number} = arith.constant {number} : index"]
        lines.append(f"loop.store %v{number}, %C[%n{number}, %i] : memref<{len(names)}x8x{type}>")
    for number, name in enumerate(COMPARISONS):
        lines += [f"%p{number} = arith.cmpf {name}, %x, %y : {type}", f"%m{number} = arith.constant {number} : index"]
        lines.append(f"loop.store %p{number}, %D[%m{number}, %i] : memref<{len(COMPARISONS)}x8xi1>")
    body = "scf.for %i = %c0 to %c8 step %c1 {\n" + "\n".join(lines) + "\n}"
    arguments = f"%A : memref<8x{type}>, %B : memref<8x{type}>, %C : memref<{len(names)}x8x{type}>"
    arguments += f", %D : memref<{len(COMPARISONS)}x8xi1>"
    shapes = [((len(names), 8), dtype), ((len(COMPARISONS), 8), np.dtype(np.bool_))]
    values, booleans = run(kernel(body, arguments), [a, b], shapes)
    with np.errstate(all="ignore"):
        expected = np.stack([f(a, b) for f in FLOAT_OPS.values()] + [f(a) for f in UNARY_OPS.values()])
        relations = np.stack([f(a, b) for f in COMPARISONS.values()])
    tolerance = {"f32": 1e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 8e-3}[type]
    np.testing.assert_allclose(values.astype(np.float64), expected.astype(np.float64), rtol=tolerance)
    np.testing.assert_array_equal(booleans, relations)


def test_integer_operations() -> None:
    a = np.array([7, -7, 7, -7, 6, 0, -1, 5], np.int64)
    b = np.array([2, 2, -2, -2, 3, 5, 4, 5], np.int64)
    names = ["floordivsi", "ceildivsi", "divsi", "remsi", "minsi", "maxsi", "xori", "shrui"]
    lines = ["%x = loop.load %A[%i] : memref<8xi64>", "%y = loop.load %B[%i] : memref<8xi64>"]
    for number, name in enumerate(names):
        lines += [f"%v{number} = arith.{name} %x, %{'c60' if name == 'shrui' else 'y'} : i64"]
        lines += [f"%n{number} = arith.constant {number} : index"]
        lines.append(f"loop.store %v{number}, %C[%n{number}, %i] : memref<8x8xi64>")
    body = "%c60 = arith.constant 60 : i64\nscf.for %i = %c0 to %c8 step %c1 {\n" + "\n".join(lines) + "\n}"
    arguments = "%A : memref<8xi64>, %B : memref<8xi64>, %C : memref<8x8xi64>"
    (c,) = run(kernel(body, arguments), [a, b], [((8, 8), a.dtype)])
    towards_zero = np.trunc(a / b).astype(np.int64)
    expected = [a // b, -(-a // b), towards_zero, a - towards_zero * b, np.minimum(a, b), np.maximum(a, b), a ^ b]
    np.testing.assert_array_equal(c, [*expected, (a.view(np.uint64) >> np.uint64(60)).astype(np.int64)])


def test_casts() -> None:
    body = """
  scf.for %i = %c0 to %c8 step %c1 {
    %x = loop.load %A[%i] : memref<8xf32>
    %n = arith.fptosi %x : f32 to i32
    %w = arith.extsi %n : i32 to i64
    %k = arith.index_cast %w : i64 to index
    %l = arith.addi %k, %i : index
    %m = arith.index_cast %l : index to i64
    %y = arith.sitofp %m : i64 to f64
    %z = arith.truncf %y : f64 to f32
    %p = arith.cmpi sgt, %n, %n0 : i32
    %q = arith.uitofp %p : i1 to f32
    %bits = arith.bitcast %z : f32 to i32
    %same = arith.bitcast %bits : i32 to f32
    %h = arith.truncf %same : f32 to f16
    %g = arith.extf %h : f16 to f32
    %s = arith.addf %g, %q : f32
    loop.store %s, %C[%i] : memref<8xf32>
  }"""
    body = "%n0 = arith.constant 0 : i32\n" + body
    a = np.array([1.7, -1.7, 0, 2, -3.2, 9, 4.5, -0.1], F32)
    (c,) = run(kernel(body, "%A : memref<8xf32>, %C : memref<8xf32>"), [a], [((8,), F32)])
    np.testing.assert_array_equal(c, np.trunc(a) + np.arange(8) + (np.trunc(a) > 0))


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    body = """
  scf.for %i = %c0 to %c8 step %c1 {
    %x = loop.load %A[%i] : memref<8xf32>
    %h = arith.truncf %x : f32 to bf16
    loop.store %h, %C[%i] : memref<8xbf16>
  }"""
    ties = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x00008001, 0x80000000])
    a = ties.astype(np.uint32).view(F32)
    (c,) = run(kernel(body, "%A : memref<8xf32>, %C : memref<8xbf16>"), [a], [((8,), np.dtype(BFLOAT16))])
    assert np.isnan(c[5])
    with np.errstate(invalid="ignore"):
        expected = a.astype(BFLOAT16)
    np.testing.assert_array_equal(np.delete(c, 5).view(np.uint16), np.delete(expected, 5).view(np.uint16))


def test_large_local_arrays_leave_the_stack() -> None:
    text = printed("""
  %panel = loop.alloc : memref<768x32xf32, #loop.space<shared>>
  %small = loop.alloc : memref<4xf32, #loop.space<register>>
  loop.barrier
  %x = loop.load %A[%b] : memref<64xf32>
  loop.store %x, %panel[%c1, %c2] : memref<768x32xf32, #loop.space<shared>>
  loop.store %x, %small[%c1] : memref<4xf32, #loop.space<register>>""")
    assert (
        text
        == """static _Thread_local float panel[768][32] __attribute__((aligned(64)));
float small[4];
const float x = A[b];
panel[1][2] = x;
small[1] = x;"""
    )


def test_memory_that_is_zero_between_launches_is_the_callers() -> None:
    module = lowered("func.func @main() {\n  %n = host.buffer zeroed 0 : memref<4xi32>\n  host.return\n}")
    assert "    static _Thread_local char zeroed[16] __attribute__((aligned(64)));" in print_host(module).text


def test_the_host_program_launches_in_order() -> None:
    module = lowered(
        kernel("").replace("in 2", "in 1").replace("@k(", "@small(")
        + kernel("")
        + """
func.func @main() {
  %w = host.buffer constant #graph.inline<"1.0"> : memref<64xf32>
  %v = host.buffer constant #graph.inline<"2.0"> : memref<64xf32>
  %h = host.buffer arena 256 : memref<64xf32>
  %y = host.buffer output 0 : memref<64xf32>
  host.launch @small(%v, %h) : memref<64xf32>, memref<64xf32>
  host.launch @k(%h, %y) : memref<64xf32>, memref<64xf32>
  host.launch @k(%w, %y) : memref<64xf32>, memref<64xf32>
  host.return
}"""
    )
    assert print_host(module).text.endswith("""{
    treadle_pool_run(pool, small, (void *const[]){constants[1], arena + 256}, 1);
    treadle_pool_run(pool, k, (void *const[]){arena + 256, outputs[0]}, 2);
    treadle_pool_run(pool, k, (void *const[]){constants[0], outputs[0]}, 2);
}
""")


def test_an_index_that_the_compiler_is_not_to_know() -> None:
    text = printed("""
  %again = loop.opaque %c0
  %x = loop.load %A[%again] : memref<64xf32>
  %y = loop.load %A[%again] : memref<64xf32>
  %sum = arith.addf %x, %y : f32
  loop.store %sum, %C[%c0] : memref<64xf32>""")
    assert "const long again = TREADLE_AGAIN(0);" in text


def test_a_buffer_of_the_kernels_own_by_an_address_that_the_compiler_is_not_to_know() -> None:
    body = """
  %tiles = loop.alloc : memref<2x64xf32, #loop.space<register>>
  %flat = loop.opaque_buffer %tiles : memref<2x64xf32, #loop.space<register>> -> memref<128xf32, #loop.space<register>>
  %c65 = arith.constant 65 : index
  %given = loop.load %A[%c1] : memref<64xf32>
  loop.store %given, %tiles[%c1, %c1] : memref<2x64xf32, #loop.space<register>>
  %x = loop.load %flat[%c65] : memref<128xf32, #loop.space<register>>
  loop.store %x, %C[%c0] : memref<64xf32>
  %y = loop.load %flat[%c65] : memref<128xf32, #loop.space<register>>
  loop.store %y, %C[%c1] : memref<64xf32>"""
    assert printed(body).splitlines()[-4:] == [
        "const float *const flat = TREADLE_AGAIN_BUFFER(float, tiles);",
        "tiles[1][1] = A[1];",
        "C[0] = flat[65];",
        "C[1] = flat[65];",
    ]
    values = np.arange(64, dtype=np.float32)
    assert run(kernel(body), [values], [((64,), np.dtype(np.float32))])[0][0] == 1


def test_a_long_chain_is_cut_into_named_values() -> None:
    steps = ["%v0 = loop.load %A[%c0] : memref<64xf32>"]
    steps += [f"%v{n + 1} = math.absf %v{n} : f32" for n in range(300)]
    text = printed("\n".join([*steps, "loop.store %v300, %C[%c0] : memref<64xf32>"]))
    assert 10 < len(text.splitlines()) < 30


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%x = math.cbrt %f : f32\nloop.store %x, %C[%c0] : memref<64xf32>", "cannot print math.cbrt"),
        ("%v = vector.broadcast %f : f32 to vector<3xf32>\nvector.store %v, %C[%c0] : memref<64xf32>, vector<3xf32>",
         "a value of type vector<3xf32>"),
        ("%p = arith.cmpf olt, %f, %f : f32\n%q = arith.addi %p, %p : i1\nloop.store %q, %D[%c0] : memref<64xi1>",
         "arith.addi of i1"),
        ("%n = arith.fptosi %f : f32 to i32\n%m = arith.divui %n, %n : i32\nloop.store %m, %E[%c0] : memref<64xi32>",
         "arith.divui of i32"),
        ("%n = arith.fptosi %f : f32 to i32\n%m = arith.shli %n, %n : i32\nloop.store %m, %E[%c0] : memref<64xi32>",
         "arith.shli by n"),
    ],
)  # fmt: skip
def test_what_cannot_be_printed_is_named(body: str, message: str) -> None:
    arguments = "%A : memref<64xf32>, %C : memref<64xf32>, %D : memref<64xi1>, %E : memref<64xi32>"
    with pytest.raises(TreadleError) as caught:
        printed("%f = loop.load %A[%c0] : memref<64xf32>\n" + body, arguments=arguments)
    assert caught.value.message == message
    assert caught.value.accepted is not None


def test_symbolic_extents_are_rejected() -> None:
    body = "%f = loop.load %A[%c0, %c1] : memref<?x?xf32>\nloop.store %f, %C[%c0] : memref<64xf32>"
    with pytest.raises(TreadleError, match=r"a buffer of type memref<\?x\?xf32>"):
        printed(body, arguments="%A : memref<?x?xf32>, %C : memref<64xf32>")


def test_several_threads_are_rejected() -> None:
    with pytest.raises(TreadleError, match="kernel of 32 threads a block"):
        lowered(kernel("").replace("%t in 1", "%t in 32"))


def test_what_is_prefetched_may_lie_outside_of_its_buffer() -> None:
    body = """
  %far = arith.constant 100000000000 : index
  %before = arith.constant -4096 : index
  %panel = loop.alloc : memref<4x2xvector<16xf32>, #loop.space<register>>
  loop.prefetch %A at %far : memref<64xf32>
  loop.prefetch %A at %before : memref<64xf32>
  loop.prefetch %panel at %c16 : memref<4x2xvector<16xf32>, #loop.space<register>>
  %x = loop.load %A[%b] : memref<64xf32>
  loop.store %x, %C[%b] : memref<64xf32>"""
    assert printed(body).splitlines()[1:4] == [
        "TREADLE_PREFETCH(float, A, 100000000000L);",
        "TREADLE_PREFETCH(float, A, -4096);",
        "TREADLE_PREFETCH(v16f, panel, 16);",
    ]
    x = np.arange(64, dtype=np.float32) + 1
    (result,) = run(kernel(body), [x], [((64,), F32)])
    np.testing.assert_array_equal(result[:2], x[:2])


def test_a_mask_of_lanes_is_written_once_for_what_takes_it() -> None:
    """Accesses and selections take it as it is; everything else takes lanes of -1 and 0, and their masks become one. A
    bound that a condition makes 0 has no branch."""
    body = """
  %p = arith.cmpi slt, %b, %c1 : index
  %n = arith.select %p, %c3, %c0 : index
  %m = loop.lane_mask %c1, %n : vector<16xi1>
  %one = loop.lane_mask %c0, %c2 : vector<16xi1>
  %z = arith.constant dense<0.0> : vector<16xf32>
  %v = vector.maskedload %A[%c0], %m, %z : memref<64xf32>, vector<16xi1>, vector<16xf32> into vector<16xf32>
  %s = loop.lane_select %m, %v, %z : vector<16xf32>
  %both = arith.andi %m, %one : vector<16xi1>
  vector.maskedstore %C[%c16], %both, %s : memref<64xf32>, vector<16xi1>, vector<16xf32>
"""
    accessed = "treadle_select_where_v16f(m, treadle_load_where_v16f(&A[0], m, (v16f){0}), (v16f){0})"
    both = "treadle_mask_v16i(treadle_on_v16i(m) & treadle_on_v16i(treadle_lanes_v16m(0, 2)))"
    assert printed(body).splitlines() == [
        "const v16m m = treadle_lanes_v16m(1, treadle_if(b < 1, 3));",
        f"treadle_store_where_v16f(&C[16], {accessed}, {both});",
    ]
    x = np.arange(1, 65, dtype=np.float32)
    (y,) = run(kernel(body), [x], [((64,), F32)])
    assert y[17] == x[1]
