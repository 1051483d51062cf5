"""loop-flatten, loop-delinearize, loop-hoist-invariants, loop-unroll: kernels compute the same before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import arith, math, scf
from xdsl.dialects.builtin import Builtin, ModuleOp, NameLoc, StringAttr, UnknownLoc
from xdsl.parser import Parser
from xdsl.passes import ModulePass

from treadle.backends.reference.kernels import evaluate_kernel
from treadle.dialects.loop import LOOP, FuncOp, LoadOp
from treadle.errors import TreadleError
from treadle.passes.loop.kernels import constant_index
from treadle.passes.loop.loop_delinearize import LoopDelinearizePass
from treadle.passes.loop.loop_flatten import LoopFlattenPass
from treadle.passes.loop.loop_hoist_invariants import LoopHoistInvariantsPass
from treadle.passes.loop.loop_simplify_index import LoopSimplifyIndexPass
from treadle.passes.loop.loop_unroll import LoopUnrollPass

CONTEXT = Context()
for dialect in (Builtin, arith.Arith, math.Math, scf.Scf, LOOP):
    CONTEXT.load_dialect(dialect)

IN_ORDER: tuple[type[ModulePass], ...] = (
    LoopFlattenPass, LoopDelinearizePass, LoopSimplifyIndexPass, LoopHoistInvariantsPass, LoopUnrollPass,
)  # fmt: skip

# A 3x3 convolution of 4 channels of 6x6 pixels, padded by 1: 9 pixels a block, one loop for the reduction.
CONVOLUTION = """
loop.func @conv(%x: memref<4x6x6xf32>, %w: memref<36x2xf32>, %y: memref<2x6x6xf32>) grid(%b in 4) threads(%t in 2) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %c6 = arith.constant 6 : index
  %c9 = arith.constant 9 : index
  %c36 = arith.constant 36 : index
  %zero = arith.constant 0.0 : f32
  %acc = loop.alloc : memref<9xf32, #loop.space<register>>
  scf.for %r = %c0 to %c9 step %c1 {
    loop.store %zero, %acc[%r] : memref<9xf32, #loop.space<register>>
  }
  scf.for %k = %c0 to %c36 step %c1 {
    scf.for %r = %c0 to %c9 step %c1 {
      %m0 = arith.muli %b, %c9 : index
      %m = arith.addi %m0, %r : index
      %ic = arith.divui %k, %c9 : index
      %tap = arith.remui %k, %c9 : index
      %kh = arith.divui %tap, %c3 : index
      %kw = arith.remui %tap, %c3 : index
      %oh = arith.divui %m, %c6 : index
      %ow = arith.remui %m, %c6 : index
      %ih1 = arith.addi %oh, %kh : index
      %ih = arith.subi %ih1, %c1 : index
      %iw1 = arith.addi %ow, %kw : index
      %iw = arith.subi %iw1, %c1 : index
      %p0 = arith.cmpi sge, %ih, %c0 : index
      %p1 = arith.cmpi slt, %ih, %c6 : index
      %p2 = arith.cmpi sge, %iw, %c0 : index
      %p3 = arith.cmpi slt, %iw, %c6 : index
      %p01 = arith.andi %p0, %p1 : i1
      %p23 = arith.andi %p2, %p3 : i1
      %p = arith.andi %p01, %p23 : i1
      %a = loop.load %x[%ic, %ih, %iw] where %p else %zero : memref<4x6x6xf32>
      %v = loop.load %w[%k, %t] : memref<36x2xf32>
      %c = loop.load %acc[%r] : memref<9xf32, #loop.space<register>>
      %av = arith.mulf %a, %v : f32
      %n = arith.addf %c, %av : f32
      loop.store %n, %acc[%r] : memref<9xf32, #loop.space<register>>
    }
  }
  scf.for %r = %c0 to %c9 step %c1 {
    %m0 = arith.muli %b, %c9 : index
    %m = arith.addi %m0, %r : index
    %oh = arith.divui %m, %c6 : index
    %ow = arith.remui %m, %c6 : index
    %c = loop.load %acc[%r] : memref<9xf32, #loop.space<register>>
    loop.store %c, %y[%t, %oh, %ow] : memref<2x6x6xf32>
  }
}
"""


def parse(text: str) -> ModuleOp:
    module = Parser(CONTEXT, text).parse_module()
    module.verify()
    return module


def kernel_of(module: ModuleOp) -> FuncOp:
    return next(op for op in module.walk() if isinstance(op, FuncOp))


def run(module: ModuleOp, inputs: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The result of the module's kernel, flat: its buffers may or may not have been flattened."""
    kernel = kernel_of(module)
    shapes = [buffer.type.get_shape() for buffer in kernel.buffers]  # pyright: ignore
    return evaluate_kernel(kernel, [a.reshape(s) for a, s in zip(inputs, shapes, strict=False)]).reshape(-1)


def apply(module: ModuleOp, *passes: type[ModulePass]) -> None:
    for each in passes:
        each().apply(CONTEXT, module)
        module.verify()


def test_convolution_is_the_same_after_every_pass() -> None:
    module = parse(CONVOLUTION)
    random = np.random.default_rng(3)
    inputs = [random.standard_normal(n, np.float32) for n in (144, 72)]
    expected = run(module, inputs)
    for each in IN_ORDER:
        apply(module, each)
        np.testing.assert_array_equal(run(module, inputs), expected, each.name)
    divisors = {constant_index(op.rhs) for op in module.walk() if isinstance(op, arith.DivUIOp | arith.RemUIOp)}
    assert divisors == {6}, "only pixels are still divided into rows and columns"


@pytest.mark.parametrize("each", IN_ORDER)
def test_applying_a_pass_again_changes_nothing(each: type[ModulePass]) -> None:
    module = parse(CONVOLUTION)
    apply(module, *IN_ORDER)
    before = str(module)
    apply(module, each)
    assert str(module) == before


digits = st.lists(
    st.tuples(st.sampled_from(["divui", "remui"]), st.integers(1, 12), st.booleans()), min_size=1, max_size=5
)


def _kernel_over_digits(trips: int, lo: int, uses: Sequence[tuple[str, int, bool]]) -> str:
    """A kernel that folds digits of %k, and digits of those, into a sum whose value depends on the order."""
    numbers = {0, 1, lo, lo + trips, *(d for _, d, _ in uses)}
    constants = [f"%c{n} = arith.constant {n} : index" for n in sorted(numbers)]
    lines: list[str] = []
    previous, total = "%k", "%s"
    for n, (kind, divisor, nested) in enumerate(uses):
        lines.append(f"%d{n} = arith.{kind} {previous if nested else '%k'}, %c{divisor} : index")
        lines.append(f"%i{n} = arith.index_cast %d{n} : index to i64")
        lines.append(f"%f{n} = arith.sitofp %i{n} : i64 to f32")
        lines.append(f"%h{n} = arith.mulf {total}, %half : f32")
        lines.append(f"%t{n} = arith.addf %h{n}, %f{n} : f32")
        previous, total = f"%d{n}", f"%t{n}"
    return "\n".join([
        "loop.func @digits(%y: memref<1xf32>) grid(%b in 1) threads(%t in 1) {", *constants,
        "%half = arith.constant 0.5 : f32", "%zero = arith.constant 0.0 : f32",
        f"%sum = scf.for %k = %c{lo} to %c{lo + trips} step %c1 iter_args(%s = %zero) -> (f32) {{",
        *lines, f"scf.yield {total} : f32", "}", "loop.store %sum, %y[%c0] : memref<1xf32>", "}",
    ])  # fmt: skip


@settings(max_examples=60)
@given(trips=st.sampled_from([1, 2, 6, 9, 12, 16, 36]), lo=st.sampled_from([0, 0, 0, 3]), uses=digits)
def test_split_loops_run_in_the_same_order(trips: int, lo: int, uses: list[tuple[str, int, bool]]) -> None:
    module = parse(_kernel_over_digits(trips, lo, uses))
    expected = run(module, [])
    for each in IN_ORDER:
        apply(module, each)
        assert run(module, []) == expected, each.name


def test_flatten_keeps_locations() -> None:
    module = parse(CONVOLUTION)
    here = NameLoc(StringAttr("layer"), UnknownLoc())
    for op in module.walk():
        op.location = here
    apply(module, LoopFlattenPass, LoopDelinearizePass, LoopHoistInvariantsPass)
    assert all(op.location == here for op in module.walk())


REFUSED: dict[str, tuple[str, str]] = {
    "another access": (
        """loop.func @odd(%A: memref<2x2xf32>) grid(%b in 1) threads(%t in 1) {
  %0 = builtin.unrealized_conversion_cast %A : memref<2x2xf32> to i64
}""",
        "builtin.unrealized_conversion_cast uses an argument of @odd",
    ),
    "symbolic extents": (
        "loop.func @odd(%A: memref<?x2xf32>) grid(%b in 1) threads(%t in 1) {\n}",
        "memref<?x2xf32>",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_flatten_refuses(case: tuple[str, str]) -> None:
    text, message = case
    with pytest.raises(TreadleError, match=message.replace("?", r"\?")):
        apply(parse(text), LoopFlattenPass)


def load_names(module: ModuleOp) -> list[str | None]:
    return [op.result.name_hint for op in module.walk() if isinstance(op, LoadOp)]


def test_flatten_keeps_names() -> None:
    module = parse(CONVOLUTION)
    before = load_names(module)
    apply(module, LoopFlattenPass)
    assert load_names(module) == before
