"""The interpreter of kernels: what it computes, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import arith, func, math, memref, scf, vector
from xdsl.dialects.builtin import Builtin, ModuleOp, f16, f32, i1, i8
from xdsl.parser import Parser

from treadle.backends.reference.kernel_operations import round_tf32
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.backends.reference.run_module import run_module
from treadle.dialects.graph import GRAPH
from treadle.dialects.graph.dtypes import element_type, numpy_dtype
from treadle.dialects.loop import LOOP, KernelOp, Space, SpaceAttr
from treadle.dialects.task import Task
from treadle.errors import TreadleError
from treadle.passes.lower.memory_plan import MemoryPlanPass
from treadle.passes.lower.task_lower import TaskLowerPass

CONTEXT = Context()
for dialect in (
    Builtin, arith.Arith, func.Func, math.Math, memref.MemRef, scf.Scf, vector.Vector, GRAPH, LOOP, Task,
):  # fmt: skip
    CONTEXT.load_dialect(dialect)

RANDOM = np.random.default_rng(7)


def parse(text: str) -> ModuleOp:
    """Parses a module in which `#register` and `#shared` stand for the memory spaces."""
    for space in Space:
        text = text.replace(f"#{space}", str(SpaceAttr(space)))
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return module


def vector_kernel(body: str, grid: int = 1, threads: int = 1, inputs: str = "4xf32", output: str = "4xf32") -> KernelOp:
    """A kernel of one input %x and one output %y, with the constants that the bodies below use."""
    module = parse(f"""
func.func @main(%a : tensor<{inputs}>) -> tensor<{output}> {{
  %r = loop.kernel @k ins(%x = %a : tensor<{inputs}>) outs(%y : tensor<{output}>)
      grid(%b in {grid}) threads(%t in {threads}) {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %zero = arith.constant 0.0 : f32
    {body}
  }}
  func.return %r : tensor<{output}>
}}""")
    return next(op for op in module.walk() if isinstance(op, KernelOp))


def normal(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape, np.float32)


MATMUL = """
func.func @main(%x : tensor<8x12xf32>, %w : tensor<12x8xf32>) -> tensor<8x8xf32> {
  %r = loop.kernel @matmul ins(%A = %x : tensor<8x12xf32>, %B = %w : tensor<12x8xf32>)
      outs(%C : tensor<8x8xf32>) grid(%b in 4) threads(%t in 16) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c12 = arith.constant 12 : index
    %zero = arith.constant 0.0 : f32
    %bi = arith.divui %b, %c2 : index
    %bj = arith.remui %b, %c2 : index
    %i0 = arith.muli %bi, %c4 : index
    %j0 = arith.muli %bj, %c4 : index
    %sa = loop.alloc : memref<4x4xf32, #shared>
    %sb = loop.alloc : memref<4x4xf32, #shared>
    %acc = loop.alloc : memref<1xf32, #register>
    memref.store %zero, %acc[%c0] : memref<1xf32, #register>
    scf.for %k0 = %c0 to %c12 step %c4 {
      task.for (%i, %j) in #task.map<spatial(4, 4)>(%t) {
        %ai = arith.addi %i0, %i : index
        %ak = arith.addi %k0, %j : index
        %a = loop.load %A[%ai, %ak] : memref<8x12xf32>
        memref.store %a, %sa[%i, %j] : memref<4x4xf32, #shared>
        %bk = arith.addi %k0, %i : index
        %bc = arith.addi %j0, %j : index
        %v = loop.load %B[%bk, %bc] : memref<12x8xf32>
        memref.store %v, %sb[%i, %j] : memref<4x4xf32, #shared>
      }
      loop.barrier {first}
      task.for (%i, %j) in #task.map<spatial(4, 4)>(%t) {
        %old = memref.load %acc[%c0] : memref<1xf32, #register>
        %new = scf.for %k = %c0 to %c4 step %c1 iter_args(%s = %old) -> (f32) {
          %a = memref.load %sa[%i, %k] : memref<4x4xf32, #shared>
          %v = memref.load %sb[%k, %j] : memref<4x4xf32, #shared>
          %p = arith.mulf %a, %v : f32
          %q = arith.addf %s, %p : f32
          scf.yield %q : f32
        }
        memref.store %new, %acc[%c0] : memref<1xf32, #register>
      }
      loop.barrier {second}
    }
    task.for (%i, %j) in #task.map<spatial(4, 4)>(%t) {
      %ci = arith.addi %i0, %i : index
      %cj = arith.addi %j0, %j : index
      %v = memref.load %acc[%c0] : memref<1xf32, #register>
      loop.store %v, %C[%ci, %cj] : memref<8x8xf32>
    }
  }
  func.return %r : tensor<8x8xf32>
}
"""


@pytest.mark.parametrize("stage", ["tasks", "loops", "planned"])
def test_matmul_through_shared_tiles(stage: str) -> None:
    module, x, w = parse(MATMUL), normal(8, 12), normal(12, 8)
    if stage != "tasks":
        TaskLowerPass().apply(CONTEXT, module)
    if stage == "planned":
        MemoryPlanPass().apply(CONTEXT, module)
    (result,) = run_module(module, [x, w])
    expected = np.zeros((8, 8), np.float32)
    for k in range(12):
        expected += x[:, k : k + 1] * w[k : k + 1, :]
    np.testing.assert_array_equal(result, expected, "the same roundings in the same order")


def test_a_missing_barrier_before_a_read_is_found() -> None:
    kernel = parse(MATMUL.replace("loop.barrier {first}", "")).body.block.first_op
    assert kernel is not None
    matmul = next(op for op in kernel.walk() if isinstance(op, KernelOp))
    with pytest.raises(TreadleError, match=r"memref.load of %sa: .* reads what nobody has stored.*a barrier"):
        evaluate_kernel(matmul, [normal(8, 12), normal(12, 8)])


def test_the_reverse_order_shows_a_race() -> None:
    """Without the second barrier a thread overwrites tiles that others still read."""
    module = parse(MATMUL.replace("loop.barrier {second}", ""))
    matmul = next(op for op in module.walk() if isinstance(op, KernelOp))
    inputs = [normal(8, 12), normal(12, 8)]
    assert not np.array_equal(evaluate_kernel(matmul, inputs), evaluate_kernel(matmul, inputs, reverse=True))


def test_predicated_accesses_touch_no_memory() -> None:
    """A shift by one with zero padding; the fifth thread has no element to store."""
    kernel = vector_kernel(
        """
    %i = arith.subi %t, %c1 : index
    %inside = arith.cmpi sge, %i, %c0 : index
    %short = arith.cmpi slt, %t, %c4 : index
    %both = arith.andi %inside, %short : i1
    %v = loop.load %x[%i] where %both else %zero : memref<4xf32>
    loop.store %v, %y[%t] where %short : memref<4xf32>""",
        threads=5,
    )
    np.testing.assert_array_equal(evaluate_kernel(kernel, [np.arange(1, 5, dtype=np.float32)]), [0, 1, 2, 3])


def test_a_sum_rounds_each_addition_to_float32() -> None:
    kernel = vector_kernel(
        """
    %n = arith.constant 1000 : index
    %s = scf.for %i = %c0 to %n step %c1 iter_args(%old = %zero) -> (f32) {
      %v = loop.load %x[%b, %i] : memref<2x1000xf32>
      %new = arith.addf %old, %v : f32
      scf.yield %new : f32
    }
    loop.store %s, %y[%b] : memref<2xf32>""",
        grid=2,
        inputs="2x1000xf32",
        output="2xf32",
    )
    x = normal(2, 1000)
    np.testing.assert_array_equal(evaluate_kernel(kernel, [x]), np.cumsum(x, axis=1, dtype=np.float32)[:, -1])


def test_vectors_with_a_masked_tail() -> None:
    """y = exp(x) + 1 over six elements, four lanes a step."""
    kernel = vector_kernel(
        """
    %one = arith.constant dense<1.0> : vector<4xf32>
    %none = vector.broadcast %zero : f32 to vector<4xf32>
    %first = vector.load %x[%c0] : memref<6xf32>, vector<4xf32>
    %e = math.exp %first : vector<4xf32>
    %s = arith.addf %e, %one : vector<4xf32>
    vector.store %s, %y[%c0] : memref<6xf32>, vector<4xf32>
    %mask = vector.create_mask %c2 : vector<4xi1>
    %rest = vector.maskedload %x[%c4], %mask, %none
        : memref<6xf32>, vector<4xi1>, vector<4xf32> into vector<4xf32>
    %f = math.exp %rest : vector<4xf32>
    %u = arith.addf %f, %one : vector<4xf32>
    vector.maskedstore %y[%c4], %mask, %u : memref<6xf32>, vector<4xi1>, vector<4xf32>""",
        inputs="6xf32",
        output="6xf32",
    )
    x = normal(6)
    np.testing.assert_allclose(evaluate_kernel(kernel, [x]), np.exp(x) + 1, rtol=1e-6)


def test_branches_casts_and_comparisons() -> None:
    """y = x < 0 ? -1 : trunc(x), for NaN 0."""
    kernel = vector_kernel(
        """
    %v = memref.load %x[%b] : memref<4xf32>
    %number = arith.cmpf ord, %v, %v : f32
    %r = scf.if %number -> (i32) {
      %negative = arith.cmpf olt, %v, %zero : f32
      %whole = arith.fptosi %v : f32 to i32
      %sign = arith.extsi %negative : i1 to i32
      %chosen = arith.select %negative, %sign, %whole : i32
      scf.yield %chosen : i32
    } else {
      %none = arith.constant 0 : i32
      scf.yield %none : i32
    }
    memref.store %r, %y[%b] : memref<4xi32>""",
        grid=4,
        output="4xi32",
    )
    result = evaluate_kernel(kernel, [np.array([-3.5, 2.75, np.nan, 0], np.float32)])
    assert result.dtype == np.int32
    np.testing.assert_array_equal(result, [-1, 2, 0, 0])


@pytest.mark.parametrize(
    ("element", "x", "body", "expected"),
    [
        ("i8", [127, -128], "%r = arith.addi %v, %v : i8", np.array([-2, 0], np.int8)),
        ("i8", [-1, 5], "%r = arith.extui %v : i8 to i32", np.array([255, 5], np.int32)),
        ("i8", [-1, 5], "%r = arith.extsi %v : i8 to i32", np.array([-1, 5], np.int32)),
        ("i1", [0, 1], "%r = arith.uitofp %v : i1 to f32", np.array([0, 1], np.float32)),
        ("i1", [0, 1], "%r = arith.sitofp %v : i1 to f32", np.array([0, -1], np.float32)),
        ("i1", [0, 1], "%r = arith.addi %v, %v : i1", np.array([False, False])),
        ("f32", [np.nan, 2], "%r = arith.maximumf %v, %zero : f32", np.array([np.nan, 2], np.float32)),
        ("f32", [np.nan, 2], "%r = arith.minimumf %zero, %v : f32", np.array([np.nan, 0], np.float32)),
        ("f32", [np.nan, 2], "%r = arith.maxnumf %v, %zero : f32", np.array([0, 2], np.float32)),
        ("f32", [np.nan, 2], "%r = arith.cmpf ult, %v, %zero : f32", np.array([True, False])),
        ("f32", [1e9, 0.1], "%r = arith.truncf %v : f32 to f16", np.array([np.inf, 0.1], np.float16)),
        ("f16", [0.1, 3], "%r = arith.mulf %v, %v : f16", np.array([0.1, 3], np.float16) ** 2),
        ("f32", [0, 4], "%r = arith.divf %v, %zero : f32", np.array([np.nan, np.inf], np.float32)),
        ("f32", [0, 4], "%r = math.rsqrt %v : f32", np.array([np.inf, 0.5], np.float32)),
    ],
)
def test_scalars_round_wrap_and_propagate(
    element: str, x: list[float], body: str, expected: NDArray[np.generic]
) -> None:
    result = element_type(expected.dtype)
    text = f"%v = memref.load %x[%b] : memref<2x{element}>\n{body}\nmemref.store %r, %y[%b] : memref<2x{result}>"
    kernel = vector_kernel(text, grid=2, inputs=f"2x{element}", output=f"2x{result}")
    dtype = numpy_dtype({"f32": f32, "f16": f16, "i8": i8, "i1": i1}[element])
    np.testing.assert_array_equal(evaluate_kernel(kernel, [np.array(x, dtype)]), expected, strict=True)


def test_index_arithmetic_below_zero() -> None:
    """floordivsi rounds down; the unsigned operations take an index below zero as a huge number."""
    kernel = vector_kernel(
        """
    %m = arith.subi %c0, %c1 : index
    %down = arith.floordivsi %m, %c4 : index
    %rest = arith.remui %m, %c4 : index
    %huge = arith.divui %m, %c4 : index
    %least = arith.minsi %down, %rest : index
    %r0 = arith.index_cast %down : index to i64
    memref.store %r0, %y[%c0] : memref<4xi64>
    %r1 = arith.index_cast %rest : index to i64
    memref.store %r1, %y[%c1] : memref<4xi64>
    %r2 = arith.index_cast %huge : index to i64
    memref.store %r2, %y[%c2] : memref<4xi64>
    %c3 = arith.addi %c1, %c2 : index
    %r3 = arith.index_cast %least : index to i64
    memref.store %r3, %y[%c3] : memref<4xi64>""",
        output="4xi64",
    )
    np.testing.assert_array_equal(evaluate_kernel(kernel, [normal(4)]), [-1, 3, 2**62 - 1, -1])


FOLD = """%v = loop.load %x[%t] : memref<32xf32>
    %r = loop.warp_reduce {kind} %v over {width} : f32
    loop.store %r, %y[%t] : memref<32xf32>"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("width", [2, 4, 8, 16, 32])
def test_lanes_fold_in_groups(kind: str, width: int, reverse: bool) -> None:
    x = normal(32)
    kernel = vector_kernel(FOLD.format(kind=kind, width=width), threads=32, inputs="32xf32", output="32xf32")
    fold = {"add": np.sum, "mul": np.prod, "max": np.max, "min": np.min}[kind]
    expected = np.repeat(fold(x.reshape(-1, width).astype(np.float64), axis=1), width)
    actual = evaluate_kernel(kernel, [x], reverse=reverse)
    np.testing.assert_allclose(actual, expected, rtol=32 * float(np.finfo(np.float32).eps), atol=width * 1e-7)
    groups = actual.reshape(-1, width)
    assert (groups == groups[:, :1]).all(), "all lanes of a group get the same bits"


@pytest.mark.parametrize("reverse", [False, True])
def test_lanes_get_the_value_of_another_one(reverse: bool) -> None:
    """Neighbouring lanes the one that is a quarter of theirs, of their own warp."""
    kernel = vector_kernel(
        """%c8 = arith.constant 8 : index
    %v = loop.load %x[%t] : memref<64xf32>
    %q = arith.divui %t, %c4 : index
    %l = arith.remui %q, %c8 : index
    %r = loop.shuffle %v from %l : f32
    loop.store %r, %y[%t] : memref<64xf32>""",
        threads=64,
        inputs="64xf32",
        output="64xf32",
    )
    x, t = normal(64), np.arange(64)
    np.testing.assert_array_equal(evaluate_kernel(kernel, [x], reverse=reverse), x[t // 32 * 32 + t // 4 % 8])


def test_warps_fold_between_barriers() -> None:
    """Two warps leave their folds in shared memory, and every thread adds them up."""
    kernel = vector_kernel(
        """%c32 = arith.constant 32 : index
    %s = loop.alloc : memref<2xf32, #shared>
    %v = loop.load %x[%t] : memref<64xf32>
    %r = loop.warp_reduce add %v over 32 : f32
    %w = arith.divui %t, %c32 : index
    loop.store %r, %s[%w] : memref<2xf32, #shared>
    loop.barrier
    %p = loop.load %s[%c0] : memref<2xf32, #shared>
    %q = loop.load %s[%c1] : memref<2xf32, #shared>
    %sum = arith.addf %p, %q : f32
    loop.store %sum, %y[%t] : memref<64xf32>""",
        threads=64,
        inputs="64xf32",
        output="64xf32",
    )
    x = normal(64)
    for reverse in (False, True):
        actual = evaluate_kernel(kernel, [x], reverse=reverse)
        np.testing.assert_allclose(actual, np.full(64, x.sum(dtype=np.float64)), rtol=1e-5)


COPY = "%v = loop.load %x[%t] : memref<4xf32>\n loop.store %v, %y[%t] : memref<4xf32>"


@pytest.mark.parametrize(
    ("body", "threads", "reason"),
    [
        (COPY, 5, r"kernel 'k': loop.load of %x: memref<4xf32> at \[4\]; accepted: indices inside"),
        (COPY, 3, r"kernel 'k': element \[3\] of the result is never stored"),
        ("%v = memref.load %y[%c1] : memref<4xf32>", 1, r"memref.load of %y: .* at \[1\] reads what nobody"),
        (
            "%r = loop.alloc : memref<2xf32, #register>\n%v = memref.load %r[%c1] : memref<2xf32, #register>",
            1,
            r"memref.load of %r: .* reads what nobody has stored",
        ),
        ("loop.store %zero, %x[%t] : memref<4xf32>", 1, "kernel 'k': loop.store to %x, an input"),
        ("%i = arith.divui %t, %c0 : index", 1, "kernel 'k': a division of indices by zero"),
        (
            "%v = vector.load %x[%c1] : memref<4xf32>, vector<4xf32>",
            1,
            r"vector.load of %x: memref<4xf32> at \[1\]",
        ),
        (
            "%half = arith.cmpi ult, %t, %c2 : index\n scf.if %half {\n loop.barrier\n }",
            4,
            r"block 0 diverges: thread 0 waits at loop.barrier \(operation 0\), thread 2 has ended",
        ),
        (
            "%r = loop.warp_reduce add %zero over 2 : f32",
            4,
            "kernel 'k': block 0 diverges: thread 0 waits at loop.warp_reduce .*accepted: all 32 lanes of a warp",
        ),
        (
            "%half = arith.cmpi ult, %t, %c2 : index\n scf.if %half {\n"
            "%r = loop.warp_reduce add %zero over 2 : f32\n }",
            32,
            r"block 0 diverges: thread 0 waits at loop.warp_reduce \(operation 0\), thread 2 has ended",
        ),
        (
            "task.for (%i) in #task.map<spatial(4)>(%t) {\n}",
            5,
            r"task.for at \[4\]; accepted: a worker of spatial\(4\): 0 to 3",
        ),
    ],
)
def test_what_is_undefined_is_refused(body: str, threads: int, reason: str) -> None:
    with pytest.raises(TreadleError, match=reason):
        evaluate_kernel(vector_kernel(body, threads=threads), [normal(4)])


def test_an_operation_without_a_meaning_is_named() -> None:
    kernel = vector_kernel('"memref.dealloc"(%x) : (memref<4xf32>) -> ()')
    with pytest.raises(TreadleError, match=r"memref.dealloc has no meaning in a kernel; accepted: task.for"):
        evaluate_kernel(kernel, [normal(4)])


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TreadleError, match=r"inputs float32\[3\]; accepted: float32\[4\]"):
        evaluate_kernel(vector_kernel(COPY, threads=4), [normal(3)])


def test_kernels_beside_graph_operators() -> None:
    module = parse("""
func.func @main(%x : tensor<4xf32>) -> tensor<4xf32> {
  %two = graph.constant #graph.inline<"2.0"> : tensor<1xf32>
  %r = loop.kernel @scale ins(%X = %x : tensor<4xf32>, %S = %two : tensor<1xf32>) outs(%Y : tensor<4xf32>)
      grid(%b in 1) threads(%t in 4) {
    %c0 = arith.constant 0 : index
    %v = loop.load %X[%t] : memref<4xf32>
    %s = loop.load %S[%c0] : memref<1xf32>
    %p = arith.mulf %v, %s : f32
    loop.store %p, %Y[%t] : memref<4xf32>
  }
  %y = graph.compute (%i) {
    %v = graph.at %r[%i] : tensor<4xf32>
    %n = arith.negf %v : f32
    graph.yield %n : f32
  } : tensor<4xf32>
  func.return %y : tensor<4xf32>
}""")
    x = normal(4)
    np.testing.assert_array_equal(run_module(module, [x])[0], -2 * x)
    with pytest.raises(TreadleError, match=r"input 'x': float64\[4\] given; accepted: x: float32\[4\]"):
        run_module(module, [x.astype(np.float64)])


TILES = """
func.func @main(%x : tensor<16x16xf16>, %w : tensor<16x8xf16>) -> tensor<16x8xf32> {
  %r = loop.kernel @tile ins(%A = %x : tensor<16x16xf16>, %B = %w : tensor<16x8xf16>)
      outs(%C : tensor<16x8xf32>) grid(%b in 1) threads(%t in 32) {
    %c0 = arith.constant 0 : index
    %c2 = arith.constant 2 : index
    %c4 = arith.constant 4 : index
    %c8 = arith.constant 8 : index
    %c16 = arith.constant 16 : index
    %nothing = arith.constant dense<0.0> : vector<2x2xf32>
    %sa = loop.alloc : memref<16x16xf16, #loop.swizzle<8, 4, 2>, #shared>
    %sb = loop.alloc : memref<16x8xf16, #shared>
    %row = arith.remui %t, %c16 : index
    %half = arith.divui %t, %c16 : index
    %k = arith.muli %half, %c8 : index
    loop.copy async (%e in 8) to %sa[%row, %k] {
      %column = arith.addi %k, %e : index
      %v = loop.load %A[%row, %column] : memref<16x16xf16>
      loop.yield %v : f16
    } : memref<16x16xf16, #loop.swizzle<8, 4, 2>, #shared>
    loop.copy (%e in 8) to %sb[%row, %c0] {
      %v = loop.load %B[%row, %e] : memref<16x8xf16>
      loop.yield %v : f16
    } : memref<16x8xf16, #shared>
    loop.commit
    loop.wait 0
    loop.barrier
    %a = loop.load_matrix %sa[%row, %k] : memref<16x16xf16, #loop.swizzle<8, 4, 2>, #shared> -> vector<4x2xf16>
    %right = loop.load_matrix transpose %sb[%row, %c0] : memref<16x8xf16, #shared> -> vector<2x2xf16>
    %d = loop.mma %a, %right, %nothing : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
    task.for (%i, %j) in #task.map<repeat(2, 1) * spatial(8, 4) * repeat(1, 2)>(%t) {
      %h = arith.divui %i, %c8 : index
      %c = arith.remui %j, %c2 : index
      %v = vector.extract %d[%h, %c] : f32 from vector<2x2xf32>
      loop.store %v, %C[%i, %j] : memref<16x8xf32>
    }
  }
  func.return %r : tensor<16x8xf32>
}
"""


def tile_kernel(text: str) -> KernelOp:
    return next(op for op in parse(text).walk() if isinstance(op, KernelOp))


@pytest.mark.parametrize("reverse", [False, True])
def test_a_tile_product_of_a_warp(reverse: bool):
    a, b = normal(16, 16).astype(np.float16), normal(16, 8).astype(np.float16)
    result = evaluate_kernel(tile_kernel(TILES), [a, b], reverse=reverse)
    np.testing.assert_allclose(result, a.astype(np.float32) @ b.astype(np.float32), rtol=0, atol=1e-5)


BYTE_TILES = """
func.func @main(%x : tensor<16x32xui8>, %w : tensor<8x32xi8>) -> tensor<16x8xi32> {
  %r = loop.kernel @tile ins(%A = %x : tensor<16x32xui8>, %B = %w : tensor<8x32xi8>)
      outs(%C : tensor<16x8xi32>) grid(%b in 1) threads(%t in 32) {
    %c0 = arith.constant 0 : index
    %c2 = arith.constant 2 : index
    %c8 = arith.constant 8 : index
    %c16 = arith.constant 16 : index
    %start = arith.constant dense<2147483647> : vector<2x2xi32>
    %sa = loop.alloc : memref<16x32xui8, #shared>
    %sb = loop.alloc : memref<16x32xi8, #shared>
    %row = arith.remui %t, %c16 : index
    %half = arith.divui %t, %c16 : index
    %k = arith.muli %half, %c16 : index
    %column = arith.remui %row, %c8 : index
    loop.copy (%e in 16) to %sa[%row, %k] {
      %i = arith.addi %k, %e : index
      %v = loop.load %A[%row, %i] : memref<16x32xui8>
      loop.yield %v : ui8
    } : memref<16x32xui8, #shared>
    loop.copy (%e in 16) to %sb[%row, %k] {
      %i = arith.addi %k, %e : index
      %v = loop.load %B[%column, %i] : memref<8x32xi8>
      loop.yield %v : i8
    } : memref<16x32xi8, #shared>
    loop.barrier
    %upper = arith.divui %row, %c8 : index
    %k_b = arith.muli %upper, %c16 : index
    %a = loop.load_matrix %sa[%row, %k] : memref<16x32xui8, #shared> -> vector<4x4xui8>
    %right = loop.load_matrix %sb[%column, %k_b] : memref<16x32xi8, #shared> -> vector<2x4xi8>
    %d = loop.mma %a, %right, %start : vector<4x4xui8>, vector<2x4xi8>, vector<2x2xi32>
    task.for (%i, %j) in #task.map<repeat(2, 1) * spatial(8, 4) * repeat(1, 2)>(%t) {
      %h = arith.divui %i, %c8 : index
      %c = arith.remui %j, %c2 : index
      %v = vector.extract %d[%h, %c] : i32 from vector<2x2xi32>
      loop.store %v, %C[%i, %j] : memref<16x8xi32>
    }
  }
  func.return %r : tensor<16x8xi32>
}
"""


def test_a_tile_product_of_bytes_is_exact_and_wraps():
    a = np.arange(16 * 32, dtype=np.uint8).reshape(16, 32)
    b = (np.arange(8 * 32, dtype=np.int64).reshape(8, 32) * 77 % 256 - 128).astype(np.int8)
    total = a.astype(np.int64) @ b.astype(np.int64).T + (2**31 - 1)
    assert total.max() >= 2**31
    np.testing.assert_array_equal(evaluate_kernel(tile_kernel(BYTE_TILES), [a, b]), total.astype(np.int32))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("loop.wait 0\n", "loop.wait 1\n", "loop.load_matrix of %sa: .* reads what nobody has stored"),
        ("loop.commit\n    loop.wait 0\n", "loop.wait 0\n", "loop.load_matrix of %sa: .* reads what nobody has stored"),
        ("load_matrix %sa[%row, %k]", "load_matrix %sa[%t, %k]", r"loop.load_matrix of %sa: .* at \[16, 8\]"),
        ("(%e in 8) to %sb[%row, %c0]", "(%e in 8) to %sb[%row, %c2]", r"loop.copy of %sb: .* at \[0, 2\]"),
        ("threads(%t in 32)", "threads(%t in 16)", "diverges: thread 0 waits at loop.load_matrix of %sa"),
    ],
)
def test_what_tiles_leave_undefined_is_an_error(old: str, new: str, message: str):
    a, b = normal(16, 16).astype(np.float16), normal(16, 8).astype(np.float16)
    assert old in TILES
    text = TILES.replace(old, new)
    if new.startswith("threads"):
        text = text[: text.index("    task.for")] + text[text.index("  }\n  func.return") :]
    with pytest.raises(TreadleError, match=message):
        evaluate_kernel(tile_kernel(text), [a, b])


def test_lanes_that_do_not_take_part_are_an_error():
    start = "    %d = loop.mma"
    guarded = TILES.replace(start, "    %some = arith.cmpi slt, %t, %c4 : index\n    scf.if %some {\n" + start)
    end = guarded.index("    task.for")
    text = guarded[:end] + "}\n" + guarded[guarded.index("  }\n  func.return") :]
    with pytest.raises(TreadleError, match=r"thread 0 waits at loop.mma .*, thread 4 has ended"):
        evaluate_kernel(tile_kernel(text), [normal(16, 16).astype(np.float16), normal(16, 8).astype(np.float16)])


def test_rounding_to_tf32():
    values = np.array([1.0, 1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, np.inf], np.float32)
    expected = np.array([1.0, 1 + 2.0**-10, -1 - 2.0**-10, 1.0, np.inf], np.float32)
    np.testing.assert_array_equal(round_tf32(values), expected)
    assert np.isnan(round_tf32(np.array([np.nan], np.float32))).all()


ARRIVALS = """
    %zero_i = arith.constant 0 : i32
    %sums = loop.alloc : memref<2x3x4xf32, #device>
    %n = loop.alloc : memref<2xi32, #zeroed>
    %tile = arith.remui %b, %c2 : index
    %slice = arith.divui %b, %c2 : index
    %at = arith.addi %t, %tile : index
    %v = loop.load %x[%at] : memref<5xf32>
    loop.store %v, %sums[%tile, %slice, %t] : memref<2x3x4xf32, #device>
    %last = loop.arrive %n[%tile] of 3 : memref<2xi32, #zeroed>
    scf.if %last {
      %c3 = arith.constant 3 : index
      %other = arith.subi %c3, %t : index
      %p = loop.load %sums[%tile, %c0, %other] : memref<2x3x4xf32, #device>
      %q = loop.load %sums[%tile, %c1, %other] : memref<2x3x4xf32, #device>
      %r = loop.load %sums[%tile, %c2, %other] : memref<2x3x4xf32, #device>
      %pq = arith.addf %p, %q : f32
      %pqr = arith.addf %pq, %r : f32
      loop.store %pqr, %y[%tile, %t] : memref<2x4xf32>
    }"""
"""Three blocks for each of two rows; the last one reads what all have stored, in the other order of threads."""


def arrivals(old: str = "", new: str = "") -> KernelOp:
    return vector_kernel(ARRIVALS.replace(old, new), grid=6, threads=4, inputs="5xf32", output="2x4xf32")


@pytest.mark.parametrize("reverse", [False, True])
def test_the_last_block_to_arrive_sees_what_all_have_stored(reverse: bool):
    x = normal(5)
    result = evaluate_kernel(arrivals(), [x], reverse=reverse)
    summed = (x + x) + x
    np.testing.assert_array_equal(result, [summed[3::-1], summed[:0:-1]])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("of 3 :", "of 2 :", "reads what nobody has stored"),
        ("of 3 :", "of 4 :", r"element 0 of memref<2xi32, #loop.space<zeroed>> is 3 after the launch.*; accepted: 0"),
        ("%n[%tile]", "%n[%slice]", "loop.arrive of %n: .* at .2."),
        (
            "%last = loop.arrive %n[%tile]",
            "%own = arith.remui %t, %c2 : index\n%last = loop.arrive %n[%own]",
            "loop.arrive: threads of a block arrive at counters 0 and 1; accepted: one counter",
        ),
    ],
)
def test_what_arrivals_leave_undefined_is_an_error(old: str, new: str, message: str):
    with pytest.raises(TreadleError, match=message):
        evaluate_kernel(arrivals(old, new), [normal(5)])


@pytest.mark.parametrize("reverse", [False, True])
def test_the_memory_of_a_launch_is_planned(reverse: bool):
    """In the program, the scratch memory is a part of the arena, and the counters are zero for every launch."""
    kernel = arrivals()
    x = normal(5)
    (module,) = [op for op in [kernel.parent_op() and kernel.parent_op().parent_op()] if isinstance(op, ModuleOp)]  # pyright: ignore
    expected = evaluate_kernel(kernel, [x])
    MemoryPlanPass().apply(CONTEXT, module)
    for _ in range(2):
        (result,) = run_module(module, [x], reverse=reverse)
        np.testing.assert_array_equal(result, expected)
