"""window_cuda and window_cpu against the definition of their anchor, and which definitions have windows."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.parser import Parser

from tests.helpers.graphs import random
from tests.helpers.sampling import in_turn
from tests.schedules.test_templates import check, defined, product, reduction, tensor
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import ComputeOp, ConvOp, Operator, PoolOp
from treadle.dialects.graph.compute import only_reduce
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.graph.layout.blocked_channels import blocked
from treadle.passes.graph.layout.channels_last import last as channels_last
from treadle.passes.graph.layout.layout import Layout, definition_in
from treadle.passes.graph.rewriting import shape_of
from treadle.passes.graph.simplify_body import simplify_body
from treadle.schedules.access_analysis import windows_of
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target


def conv(shape: tuple[int, ...], weights: tuple[int, ...], step: int, groups: int, dilation: int = 1) -> ConvOp:
    rank = len(shape) - 2
    return ConvOp(tensor(*shape), tensor(*weights), [step] * rank, [1] * 2 * rank, [dilation] * rank, groups)


WINDOWS: list[Operator] = [
    PoolOp("max", tensor(1, 8, 32, 33), [3, 3], [2, 2], [1] * 4, [1, 1], ceil=True),
    PoolOp("avg", tensor(2, 4, 23, 46), [2, 2], [1, 1], [0] * 4, [1, 1]),
    conv((1, 8, 17, 19), (8, 1, 3, 3), 1, 8),
    conv((1, 8, 12, 24), (8, 2, 3, 3), 1, 4),
]


def last(operator: Operator) -> ComputeOp:
    """The definition with channels last."""
    layout, x = channels_last(len(operator.shape)), operator.operands[0]
    operands = {x: (tensor(*layout.shape(shape_of(x))), layout)}
    if isinstance(operator, ConvOp):
        weights = Layout((2, 3, 1, 0))
        operands[operator.w] = (tensor(*weights.shape(shape_of(operator.w))), weights)
    compute = definition_in(operator, layout, operands)
    simplify_body(compute)
    return compute


LAST = [
    conv((2, 16, 13, 11), (16, 1, 3, 3), 1, 16),
    conv((1, 16, 31, 23), (16, 1, 3, 3), 2, 16),
    PoolOp("max", tensor(1, 24, 21, 17), [3, 3], [2, 2], [1] * 4, [1, 1], ceil=True),
]


def in_blocks(operator: Operator) -> ComputeOp:
    """The definition with channels in blocks of 16."""
    rank = len(operator.shape)
    images, filters = blocked(rank, 16), blocked(rank, 16, 0)
    operands = {operator.operands[0]: (tensor(*images.shape(shape_of(operator.operands[0]))), images)}
    if isinstance(operator, ConvOp):
        operands[operator.w] = (tensor(*filters.shape(shape_of(operator.w))), filters)
    compute = definition_in(operator, images, operands)
    simplify_body(compute)
    return compute


BLOCKED = [
    *LAST,
    conv((1, 32, 9, 8), (32, 1, 5, 5), 1, 32),
    PoolOp("avg", tensor(2, 20, 9, 12), [3, 3], [1, 1], [1] * 4, [1, 1], count_pad=True),
    PoolOp("avg", tensor(1, 16, 7, 8), [2, 2], [1, 2], [0] * 4, [1, 1]),
]


@pytest.mark.parametrize(
    ("operator", "tile"),
    in_turn(BLOCKED, [(1, 1), (3, 2), (7, 4), (8, 64)], turns=2),
    ids=lambda each: f"{each.name} {each.type}" if isinstance(each, Operator) else str(each),
)
def test_tiles_of_a_cpu(operator: Operator, tile: tuple[int, int]) -> None:
    check("window_cpu", in_blocks(operator), {"windows": tile[0], "rows": tile[1]})


@pytest.mark.parametrize(("step", "target", "windows"), [(1, "avx512", 7), (2, "avx512", 7), (1, "avx2", 4)])
def test_registers_of_a_cpu_bound_the_default_tile(step: int, target: str, windows: int) -> None:
    anchor = in_blocks(conv((1, 16, 28 * step, 28 * step), (16, 1, 3, 3), step, 16))
    assert TEMPLATES["window_cpu"].default(anchor, Target.parse(target))["windows"] == windows


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize(
    ("target", "extent", "rolled"), [("avx512", 28, False), ("avx2", 28, True), ("avx2", 7, False)]
)
def test_rows_of_a_window_stay_a_loop_where_registers_lack_for_weights(
    step: int, target: str, extent: int, rolled: bool
) -> None:
    """That is, in loops over tiles, of which rows of 7 windows have none."""
    anchor = in_blocks(conv((1, 16, extent * step, extent * step), (16, 1, 3, 3), step, 16))
    template, chosen = TEMPLATES["window_cpu"], Target.parse(target)
    kernel = template.build(anchor, template.default(anchor, chosen), chosen, "kernel")
    assert any(op.attributes.get("loop.unroll") == IntegerAttr(1, i64) for op in kernel.walk()) == rolled


def test_a_cpu_needs_neighbours_along_the_last_dimension() -> None:
    template = TEMPLATES["window_cpu"]
    assert not template.fits(defined(conv((1, 16, 12, 12), (16, 1, 3, 3), 1, 16)))
    four = last(conv((1, 4, 9, 9), (4, 1, 3, 3), 1, 4))
    assert template.fits(four) and template.has_default(four, Target.parse("sse2"))
    assert not template.has_default(four, Target.parse("avx2"))


@pytest.mark.parametrize("operator", LAST, ids=lambda op: f"{op.name} {op.type}")
@pytest.mark.parametrize(("windows", "vector"), [(1, 1), (1, 4), (2, 4), (4, 2), (8, 4)])
def test_neighbouring_channels_of_a_thread(operator: Operator, windows: int, vector: int) -> None:
    check("window_cuda", last(operator), {"windows": windows, "vector": vector, "threads": 64})


@pytest.mark.parametrize(
    ("anchor", "vector", "message"),
    [
        (defined(conv((1, 8, 17, 16), (8, 1, 3, 3), 1, 8)), 2, "2 consecutive elements .* 1 too many"),
        (last(conv((1, 16, 28, 28), (16, 1, 3, 3), 1, 16)), 8, "8 consecutive elements .* 4 too many"),
    ],
    ids=["pixels", "more than 16 bytes"],
)
def test_a_vector_is_one_access(anchor: ComputeOp, vector: int, message: str) -> None:
    template, target = TEMPLATES["window_cuda"], Target.parse("sm_80")
    with pytest.raises(TreadleError, match=message):
        template.check(anchor, {"windows": 1, "vector": vector, "threads": 64}, target, "here")


def test_how_many_channels_a_thread_takes_by_default() -> None:
    """16 bytes where a GPU is busy anyway, one element where neighbours are not side by side or threads are few."""
    template, target = TEMPLATES["window_cuda"], Target.parse("sm_80")
    many, few = (conv((1, 16, extent, extent), (16, 1, 3, 3), 1, 16) for extent in (224, 28))
    assert template.default(last(many), target)["vector"] == 4
    assert template.default(last(few), target)["vector"] == 1
    assert template.default(defined(many), target)["vector"] == 1


@pytest.mark.parametrize("operator", WINDOWS, ids=lambda op: f"{op.name} {op.type}")
@pytest.mark.parametrize("windows", [1, 2, 4, 8])
def test_knobs_of_window_cuda(operator: Operator, windows: int) -> None:
    check("window_cuda", defined(operator), {"windows": windows, "threads": 64})


def test_how_windows_slide() -> None:
    anchor = defined(conv((1, 8, 40, 40), (8, 1, 5, 5), 2, 8))
    reduce = only_reduce(anchor)
    assert reduce is not None
    windows = windows_of(anchor, reduce)
    assert windows is not None
    assert (windows.dim, windows.step, windows.width, windows.extent) == (2, 2, 5, 18 + 1)
    assert (len(windows.sliding), len(windows.shared)) == (1, 1)


DISTANCE = """
func.func @main(%x: tensor<130x256xf32>, %w: tensor<128x3xf32>) -> tensor<128x256xf32>
    attributes {input_names = ["x", "w"], output_names = ["y"]} {
  %y = graph.compute (%i, %j) {
    %c31 = arith.constant 31 : index
    %below = arith.subi %c31, %i : index
    %above = arith.subi %i, %c31 : index
    %distance = arith.maxsi %below, %above : index
    %s = graph.reduce add (%k in 3) {
      %row = arith.addi %i, %k : index
      %v = graph.at %x[%row, %j] : tensor<130x256xf32>
      %u = graph.at %w[%distance, %k] : tensor<128x3xf32>
      %t = arith.mulf %v, %u : f32
      graph.yield %t : f32
    }
    graph.yield %s : f32
  } : tensor<128x256xf32>
  func.return %y : tensor<128x256xf32>
}"""


def test_weights_that_differ_by_the_distance_are_read_for_each_window() -> None:
    """The distance depends on the window, though the differences that it is the larger of add up to 0."""
    module = Parser(treadle_context(), DISTANCE).parse_module()
    lower(treadle_context(), module, Target.parse("sm_80"), after="define")
    x, w = random(130, 256), random(128, 3)
    (y,), _ = EmulatedProgram(module, ()).run([x, w])
    weights = w[np.abs(np.arange(128) - 31)]
    expected = sum(x[k : k + 128] * weights[:, k : k + 1] for k in range(3))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5)


def test_what_has_no_windows_is_left_to_others() -> None:
    others = [
        reduction(("add", (64, 100, 40), (1,), "float32")),
        defined(product(((64, 16), (16, 64)))),
        # With a dilation of 2, neighbouring windows share no place.
        defined(conv((1, 8, 24, 24), (8, 1, 3, 3), 1, 8, dilation=2)),
        # Too few elements.
        defined(conv((1, 8, 7, 7), (8, 1, 3, 3), 1, 8)),
    ]
    assert not any(TEMPLATES["window_cuda"].fits(anchor) for anchor in others)
