"""Products of few rows, whose weights go from global memory to registers: emulated with all checks, planted faults,
what they read, and which products have them by default."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import DTYPES, GPU, Shape, assert_product, in_one_group, product, sample, scheduled
from treadle.backends.cuda.emulator import Emulator, Report
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernel, print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.cuda import KernelOp
from treadle.dialects.graph import BinaryOp, FusedOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.environment import Environment
from treadle.errors import TreadleError
from treadle.ir import parse
from treadle.schedules.default_template import default_template, obstacles
from treadle.schedules.templates import TEMPLATES
from treadle.schedules.templates.matmul_rows_mma import MatmulRowsMma, RowsTile
from treadle.target import Target

NAME = MatmulRowsMma.name
Pair = tuple[int, int]
OVERHANGING: list[tuple[Shape, Shape, Pair, int, int]] = [
    ((1, 8), (8, 8), (1, 8), 1, 1),
    ((1, 72), (72, 40), (1, 4), 2, 1),
    ((1, 2056), (2056, 72), (1, 8), 4, 2),
    ((2, 1000), (1000, 24), (2, 4), 4, 2),
    ((3, 520), (520, 200), (1, 4), 1, 3),
    ((5, 96), (96, 136), (8, 1), 2, 1),
    ((7, 33), (33, 50), (1, 4), 4, 1),
    ((8, 1100), (1100, 72), (4, 2), 1, 3),
    ((8, 264), (264, 7), (4, 2), 4, 2),
    ((9, 200), (200, 88), (1, 8), 2, 1),
    ((16, 712), (712, 104), (1, 4), 4, 2),
    ((37, 136), (136, 72), (2, 4), 1, 1),
    ((64, 328), (328, 80), (1, 8), 1, 1),
    ((2, 4, 296), (2, 296, 72), (1, 4), 2, 2),
    ((3, 2, 136), (136, 40), (1, 4), 1, 1),
]
"""Shapes, warps, steps ahead and slices."""


def graph_of(a: Shape, b: Shape, dtype: str, *, by_rows: bool) -> tuple[Graph, SSAValue, np.ndarray, np.ndarray]:
    """A product whose right operand lies along the terms, or across; and its operands."""
    left, right = sample(a, dtype, 1), sample(b, dtype, 2)
    graph = Graph(left, np.ascontiguousarray(np.swapaxes(right, -1, -2)) if by_rows else right)
    order = [*range(len(b) - 2), len(b) - 1, len(b) - 2]
    turned = graph.add(TransposeOp(graph[1], order)) if by_rows else graph[1]
    return graph, graph.add(MatmulOp(graph[0], turned)), left, right


@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("number", range(len(OVERHANGING)), ids=lambda n: str(OVERHANGING[n]))
def test_tiles_that_overhang(number: int, dtype: str, by_rows: bool, emulator_environment: Environment) -> None:
    a, b, warps, ahead, slices = OVERHANGING[number]
    graph, result, left, right = graph_of(a, b, dtype, by_rows=by_rows)
    choices: dict[str, Choice] = {"warps": warps, "ahead": ahead, "split_k": slices}
    module = scheduled(graph.module(result), NAME, choices, GPU)
    (found,), (report,) = EmulatedProgram(module, environment=emulator_environment).run(graph.inputs)
    assert not report.findings, str(report)
    assert_product(found, left, right)


ROWS: list[tuple[Shape, Shape, Pair, int, int, int]] = [
    ((3, 2056), (2056, 72), (1, 8), 4, 2, 1),
    ((20, 264), (264, 72), (1, 4), 2, 1, 8),
    ((24, 264), (264, 72), (1, 4), 2, 2, 8),
    ((70, 136), (136, 40), (2, 4), 1, 1, 32),
    ((8, 136), (136, 40), (2, 4), 1, 1, 16),
    ((5, 264), (264, 7), (4, 2), 1, 2, 8),
    ((2, 20, 264), (2, 264, 72), (1, 4), 2, 2, 8),
]
"""The same, and rows of a block: fewer than there are, and more."""


@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
@pytest.mark.parametrize("number", range(len(ROWS)), ids=lambda n: str(ROWS[n]))
def test_blocks_that_take_rows_in_turn(number: int, by_rows: bool, emulator_environment: Environment) -> None:
    a, b, warps, ahead, slices, rows = ROWS[number]
    graph, result, left, right = graph_of(a, b, "float16", by_rows=by_rows)
    choices: dict[str, Choice] = {"warps": warps, "ahead": ahead, "split_k": slices, "rows": rows}
    module = scheduled(graph.module(result), NAME, choices, GPU)
    (found,), (report,) = EmulatedProgram(module, environment=emulator_environment).run(graph.inputs)
    assert not report.findings, str(report)
    assert_product(found, left, right)


@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
def test_results_do_not_depend_on_the_order_in_which_blocks_arrive(by_rows: bool) -> None:
    """Emulated blocks run in another order for each tile: equal columns give equal bits."""
    row, column = sample((1, 2048), "float16", 1), sample((2048, 1), "float16", 2)
    right = np.repeat(column, 512, axis=1)
    graph = Graph(row, np.ascontiguousarray(right.T) if by_rows else right)
    turned = graph.add(TransposeOp(graph[1], [1, 0])) if by_rows else graph[1]
    choices: dict[str, Choice] = {"warps": (1, 4), "ahead": 2, "split_k": 4}
    module = scheduled(graph.module(graph.add(MatmulOp(graph[0], turned))), NAME, choices, GPU)
    (result,), (report,) = EmulatedProgram(module).run(graph.inputs)
    assert not report.findings and (result.view(np.uint16) == result[:, :1].view(np.uint16)).all()


def layer(g: Graph) -> SSAValue:
    """A bias, a residual and a function."""
    biased = g.add(BinaryOp("add", g.add(MatmulOp(g[0], g[1])), g[2]))
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", biased, g[3]))))


def by_rows_of(g: Graph) -> SSAValue:
    """The same of weights that lie along the terms, with another function."""
    product_ = g.add(MatmulOp(g[0], g.add(TransposeOp(g[1], [1, 0]))))
    return g.add(UnaryOp("tanh", g.add(BinaryOp("add", product_, g[2]))))


EPILOGUES: dict[str, tuple[Callable[[Graph], SSAValue], tuple[Shape, ...]]] = {
    "bias, residual, relu": (layer, ((5, 264), (264, 72), (72,), (5, 72))),
    "bias, tanh": (by_rows_of, ((1, 264), (40, 264), (40,))),
    "rows that are transposed": (
        lambda g: g.add(MatmulOp(g.add(TransposeOp(g[0], [1, 0])), g[1])),
        ((264, 3), (264, 72)),
    ),
    "rows that are computed": (
        lambda g: g.add(MatmulOp(g.add(UnaryOp("neg", g[0])), g[1])),
        ((4, 264), (264, 72)),
    ),
    "weights that are computed": (
        lambda g: g.add(MatmulOp(g[0], g.add(UnaryOp("neg", g[1])))),
        ((4, 264), (264, 72)),
    ),
}
"""What is fused before and behind a product, and the inputs' shapes."""


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("name", EPILOGUES)
def test_what_is_fused(name: str, slices: int) -> None:
    build, shapes = EPILOGUES[name]
    graph = Graph(*(random(*shape, seed=seed).astype(np.float16) for seed, shape in enumerate(shapes)))
    module, expected = in_one_group(graph, build)
    lowered = scheduled(module, NAME, {"warps": (1, 4), "ahead": 2, "split_k": slices}, GPU)
    assert len(print_kernels(lowered)) == 1
    (result,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings
    # Both round the sum of 264 terms to 11 bits, and each of the operations behind it.
    scale = float(np.abs(expected.astype(np.float64)).max())
    np.testing.assert_allclose(result.astype(float), expected.astype(float), rtol=0, atol=4 * 2.0**-11 * scale)


RANGED = """
func.func @main(%x: tensor<3x1100xf16>, %w: tensor<1100x72xf16>, %n: tensor<i64>) -> tensor<3x72xf16>
    attributes {input_names = ["x", "w", "n"], output_names = ["y"], extents = ["n"]} {
  %a = graph.mask %x below %n {dim = 1 : i64, fill = 0.0 : f16}
      : (tensor<3x1100xf16>, tensor<i64>) -> tensor<3x1100xf16>
  %b = graph.mask %w below %n {dim = 0 : i64, fill = 0.0 : f16}
      : (tensor<1100x72xf16>, tensor<i64>) -> tensor<1100x72xf16>
  %y = graph.matmul %a, %b : (tensor<3x1100xf16>, tensor<1100x72xf16>) -> tensor<3x72xf16>
  func.return %y : tensor<3x72xf16>
}
"""


@pytest.mark.parametrize("slices", [1, 3])
def test_terms_that_a_call_has(slices: int, emulator_environment: Environment) -> None:
    """Whole numbers, whose products and sums are exact; NaN beyond the call's terms, of which nothing is read."""
    module = parse(RANGED)
    lower(treadle_context(), module, GPU, to="schedule")
    fused = [op for op in module.walk() if isinstance(op, FusedOp)][-1]
    choices: dict[str, Choice] = {"warps": (1, 4), "ahead": 2, "split_k": slices}
    fused.schedule = UseAttr.get(NAME, choices)
    lower(treadle_context(), module, GPU, after="schedule")
    emulator = EmulatedProgram(module, environment=emulator_environment)
    choose = np.random.default_rng(1)
    for n in (0, 1, 127, 128, 129, 640, 1099, 1100):
        x, w = (choose.integers(-3, 4, shape).astype(np.float16) for shape in ((3, 1100), (1100, 72)))
        x[:, n:], w[n:] = np.nan, np.nan
        (found,), reports = emulator.run([x, w, np.array(n, np.int64)])
        assert not [str(report) for report in reports if report.findings], n
        exact = x[:, :n].astype(np.float64) @ w[:n].astype(np.float64)
        np.testing.assert_array_equal(found.astype(np.float64), exact, err_msg=str(n))


# What is read.


@pytest.mark.parametrize("by_rows", [True, False], ids=["along the terms", "across"])
@pytest.mark.parametrize("rows", [1, 5, 8])
def test_each_weight_is_read_once_in_whole_sectors(rows: int, by_rows: bool, emulator_environment: Environment) -> None:
    k, n = 1024, 256
    graph, result, *_ = graph_of((rows, k), (k, n), "float16", by_rows=by_rows)
    module = scheduled(graph.module(result), NAME, {"split_k": 1}, GPU)
    (unit,) = print_kernels(module)
    weights = "X2" if by_rows else "B"
    assert f"treadle_load<treadle_vec<unsigned, 4>>(&{weights}[" in unit.text
    _, (report,) = EmulatedProgram(module, (), counters=True, environment=emulator_environment).run(graph.inputs)
    assert report.counters is not None
    lines = report.counters.source.splitlines()
    loads = [each for each in report.counters.lines if f"(&{weights}[" in lines[each.line - 1]]
    assert sum(each.global_read for each in loads) == k * n * 2
    assert sum(each.global_sectors for each in loads) == sum(each.global_ideal for each in loads) == k * n * 2 // 32
    assert report.counters.total.global_sectors <= 1.05 * report.counters.total.global_ideal


# Faults of a kernel, planted in its text.

SIZE = ((3, 1032), (1032, 72))
WAIT, BARRIER, BOUND = "treadle_cp_async_wait<0>();", "treadle_barrier();", " < 1032 && p"
FAULTS: dict[str, tuple[str, str, int, str]] = {
    "rows are not waited for": (WAIT, "", 0, "copy"),
    "no barrier behind the copies of rows": (BARRIER, "", 0, "no barrier orders"),
    "no barrier between sums and those who add them": (BARRIER, "", 1, "no barrier orders"),
    "loads beyond the terms": (BOUND, " < 1096 && p", 1, "outside"),
    "a row of sums too many": ("< 3) {", "< 4) {", 0, "outside"),
    "blocks keep their sums in one place": ("partial_sums[", "partial_sums[0 * ", 0, "no barrier orders"),
}
"""What is replaced in the text, by what, at which occurrence, and what the finding says."""


@pytest.fixture(scope="module")
def kernel() -> KernelOp:
    """That of a product in two slices, the last one of which has fewer terms."""
    graph, result, *_ = graph_of(*SIZE, "float16", by_rows=False)
    module = scheduled(graph.module(result), NAME, {"warps": (1, 4), "ahead": 2, "split_k": 2}, GPU)
    (found,) = (op for op in module.walk() if isinstance(op, KernelOp))
    return found


def launched(kernel: KernelOp, text: str, environment: Environment) -> Report:
    """What is found where the kernel has this text."""
    (m, k), (_, n) = SIZE
    a, b, c = (sample(shape, "float16", 1) for shape in ((m, k), (k, n), (m, n)))
    slices, threads, each = 2, 128, 2
    sums = np.zeros((2 * slices * threads * each,), np.float32)
    emulator = Emulator(text, limit=60, workers=1, environment=environment)
    arrays = [a, b, sums, np.zeros(2, np.int32), c]
    return emulator.launch(kernel.sym_name.data, kernel.grid_shape, kernel.block_shape, arrays)


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name: str, kernel: KernelOp, emulator_environment: Environment) -> None:
    old, new, occurrence, says = FAULTS[name]
    text = print_kernel(kernel)
    parts = text.split(old)
    assert occurrence < len(parts) - 1, text
    changed = old.join(parts[: occurrence + 1]) + new + old.join(parts[occurrence + 1 :])
    report = launched(kernel, changed, emulator_environment)
    assert any(says in finding.message for finding in report.findings), str(report)


def test_the_kernel_itself_has_none(kernel: KernelOp, emulator_environment: Environment) -> None:
    assert not launched(kernel, print_kernel(kernel), emulator_environment).findings


# The default.


def anchor_of(m: int, k: int, n: int, *, by_rows: bool, dtype: str = "float16") -> MatmulOp:
    """A product whose transposed operand is part of its program."""
    graph = Graph(
        *(np.broadcast_to(np.zeros((), DTYPES[dtype]), each) for each in ((m, k), (n, k) if by_rows else (k, n)))
    )
    turned = graph.add(TransposeOp(graph[1], [1, 0])) if by_rows else graph[1]
    module = graph.module(graph.add(MatmulOp(graph[0], turned)))
    lower(treadle_context(), module, GPU, to="define")
    (found,) = (op for op in module.walk() if isinstance(op, MatmulOp))
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("size", "by_rows"),
    [
        ((1, 4096, 4096), True),
        ((1, 4096, 4096), False),
        ((1, 14336, 4096), True),
        ((8, 14336, 4096), True),
        ((8, 4096, 14336), False),
        ((4, 768, 768), False),
        ((1, 4096, 128256), True),
    ],
)
def test_the_default_fills_the_gpu(size: tuple[int, int, int], by_rows: bool, arch: str) -> None:
    anchor, target, template = anchor_of(*size, by_rows=by_rows), Target.parse(arch), TEMPLATES[NAME]
    assert default_template(anchor, target) is template and NAME not in obstacles(anchor, target)
    choices = template.default(anchor, target)
    template.check(anchor, choices, target, "default")
    tile = RowsTile.of(anchor, choices)
    blocks = -(-size[2] // tile.columns) * tile.slices.number
    assert blocks >= 1.5 * target.multiprocessors or size == (4, 768, 768)
    assert 2 * tile.shared_bytes <= target.shared_per_multiprocessor


def test_other_products_are_left_to_others() -> None:
    for size, by_rows, name, why in (
        ((64, 4096, 4096), False, "matmul_mma", None),
        ((1, 256, 256), True, "reduce_cuda", "too few weights"),
        ((4, 128, 4096), False, "matmul_mma", "too few weights"),
        ((1, 4100, 4096), True, "reduce_cuda", "do not lie together"),
    ):
        anchor = anchor_of(*size, by_rows=by_rows)
        found, said = default_template(anchor, GPU), obstacles(anchor, GPU).get(NAME)
        assert found is not None and found.name == name, size
        assert said is why is None or (said is not None and why is not None and why in said)
    assert not TEMPLATES[NAME].fits(product(((1, 4096), (4096, 4096)), "float32"))
    assert TEMPLATES[NAME].fits(wide := product(((65, 4096), (4096, 4096))))
    assert not TEMPLATES[NAME].has_default(wide, GPU)


def test_what_does_not_fit_is_refused() -> None:
    template, anchor = TEMPLATES[NAME], product(((8, 14336), (14336, 64)))
    choices: dict[str, Choice] = {"warps": (1, 8), "ahead": 2, "split_k": 1}
    with pytest.raises(TreadleError, match=r"bytes of shared memory, \d+ too many"):
        template.check(anchor, choices, GPU, "here")
    with pytest.raises(TreadleError, match="80 sums a thread, 16 too many, leave no registers for 2 steps"):
        template.check(product(((40, 512), (512, 64))), choices, GPU, "here")
    with pytest.raises(TreadleError, match="takes 65 rows of a block, 1 too many; accepted: rows = 8"):
        template.check(product(((65, 512), (512, 64))), choices, GPU, "here")
    with pytest.raises(TreadleError, match="slices"):
        template.check(product(((1, 512), (512, 64))), choices | {"split_k": 3}, GPU, "here")
