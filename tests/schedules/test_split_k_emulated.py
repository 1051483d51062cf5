"""Products whose terms are shared out to several blocks, printed and emulated with every check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, random
from tests.helpers.sampling import every
from tests.schedules.tensor_cores import DTYPES, GPU, assert_product, in_one_group, sample, scheduled
from treadle.backends.cuda.emulator import CHECKS, Emulator
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.graph import BinaryOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.schedule import Choice
from treadle.environment import Environment

Array = NDArray[Any]
Shape = tuple[int, ...]

SIMT: dict[str, Choice] = {"warps": (1, 2), "repeats": (1, 1), "thread": (2, 2), "min_blocks_per_sm": 1}
MMA: dict[str, Choice] = {"block": (32, 64), "warps": (2, 2), "stages": 3, "group": 1}
TEMPLATES = [
    ("matmul_simt", "float32", SIMT),
    ("matmul_simt", "float16", SIMT),
    ("matmul_mma", "float16", MMA),
    ("matmul_mma", "bfloat16", MMA),
    ("matmul_tf32", "float32", MMA),
]
SHAPES: list[tuple[Shape, Shape, int]] = [
    ((16, 256), (256, 64), 4),
    ((37, 300), (300, 45), 3),
    ((33, 200), (200, 10), 2),
    ((3, 20, 200), (3, 200, 24), 4),
    ((2, 35, 130), (130, 33), 2),
    ((9, 128), (2, 128, 16), 4),
]
"""Operands and slices: whole tiles, ragged ones, slices that do not divide the terms, batches of one or both."""


def run_clean(module: ModuleOp, inputs: Sequence[Array], environment: Environment) -> list[Array]:
    """The outputs, after making sure that no check found anything, and that another run gives the same bits."""
    program = EmulatedProgram(module, tuple(CHECKS), environment=environment)
    results, reports = program.run(inputs)
    assert reports and not [str(report) for report in reports if report.findings]
    again, _ = program.run(inputs)
    for first, second in zip(results, again, strict=True):
        assert first.tobytes() == second.tobytes()
    return results


@pytest.mark.parametrize(("template", "dtype", "tile"), TEMPLATES, ids=[f"{t} {d}" for t, d, _ in TEMPLATES])
def test_slices_add_up_to_the_product(
    template: str, dtype: str, tile: dict[str, Choice], emulator_environment: Environment
):
    for shapes in SHAPES:
        _add_up(shapes, template, dtype, tile, emulator_environment)


def test_slices_of_products_with_two_sets_of_fragments_add_up(emulator_environment: Environment):
    """The last slice of the second shape has fewer terms than the others."""
    for shapes in (((16, 256), (256, 64), 4), ((2, 36, 130), (130, 34), 2)):
        _add_up(shapes, "matmul_mma", "float16", MMA | {"fragments": 2}, emulator_environment)


def _add_up(
    shapes: tuple[Shape, Shape, int], template: str, dtype: str, tile: dict[str, Choice], environment: Environment
) -> None:
    """Compares a product in slices with the product."""
    a, b, slices = shapes
    graph = Graph(sample(a, dtype, 2), sample(b, dtype, 3))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lowered = scheduled(module, template, tile | {"split_k": slices}, GPU)
    assert all(f", {slices})" in _arrivals(unit.text) for unit in print_kernels(lowered))
    (result,) = run_clean(lowered, graph.inputs, environment)
    assert_product(result, *graph.inputs)


def _arrivals(text: str) -> str:
    (call,) = re.findall(r"treadle_arrive\(.*\)", text)
    return call


@pytest.mark.parametrize(("template", "tile"), [("matmul_simt", SIMT), ("matmul_tf32", MMA), ("matmul_mma", MMA)])
@pytest.mark.parametrize("order", ["nt", "tn", "tt"])
def test_operands_that_lie_transposed(
    order: str, template: str, tile: dict[str, Choice], emulator_environment: Environment
):
    dtype = "float16" if template == "matmul_mma" else "float32"
    shapes = [(36, 264) if order[0] == "n" else (264, 36), (264, 40) if order[1] == "n" else (40, 264)]
    graph = Graph(*(sample(shape, dtype, seed) for seed, shape in enumerate(shapes)))
    a, b = (graph[n] if turned == "n" else graph.add(TransposeOp(graph[n], [1, 0])) for n, turned in enumerate(order))
    module = scheduled(graph.module(graph.add(MatmulOp(a, b))), template, tile | {"split_k": 3}, GPU)
    (result,) = run_clean(module, graph.inputs, emulator_environment)
    a, b = (x if turned == "n" else x.T for x, turned in zip(graph.inputs, order, strict=True))
    assert_product(result, a, b)


def _layer(g: Graph) -> SSAValue:
    biased = g.add(BinaryOp("add", g.add(MatmulOp(g[0], g[1])), g[2]))
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", biased, g[3]))))


@pytest.mark.parametrize(
    ("template", "dtype", "tile"), every(2, TEMPLATES, names=3), ids=[f"{t} {d}" for t, d, _ in TEMPLATES]
)
def test_epilogues_follow_the_sum(
    template: str, dtype: str, tile: dict[str, Choice], emulator_environment: Environment
):
    shapes = ((37, 200), (200, 40), (40,), (37, 40))
    graph = Graph(*(random(*shape, seed=n).astype(DTYPES[dtype]) for n, shape in enumerate(shapes)))
    module, expected = in_one_group(graph, _layer)
    lowered = scheduled(module, template, tile | {"split_k": 3}, GPU)
    assert len(print_kernels(lowered)) == 1
    (result,) = run_clean(lowered, graph.inputs, emulator_environment)
    # Both round the sum of 200 terms to the type's or to tf32's bits, and each of the operations behind it.
    rounding = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    scale = float(np.abs(expected.astype(np.float64)).max())
    np.testing.assert_allclose(result.astype(float), expected.astype(float), rtol=0, atol=4 * rounding * scale)


def _module(template: str, tile: dict[str, Choice], a: Shape, b: Shape) -> tuple[ModuleOp, Graph]:
    graph = Graph(sample(a, "float32", 0), sample(b, "float32", 1))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    return scheduled(module, template, tile | {"split_k": 4}, GPU), graph


def test_the_result_does_not_depend_on_which_block_is_last(emulator_environment: Environment):
    """The blocks of a kernel whose number counts down compute the same bits."""
    module, graph = _module("matmul_simt", SIMT, (19, 600), (600, 37))
    (unit,) = print_kernels(module)
    turned = unit.text.replace("(int)blockIdx.x", "(int)(gridDim.x - 1 - blockIdx.x)")
    assert turned != unit.text
    results = [
        _launched(unit.name, text, module, graph.inputs, emulator_environment, workers=1)
        for text in (unit.text, turned)
    ]
    assert results[0][0].tobytes() == results[1][0].tobytes()
    assert results[0][1:] == results[1][1:] == (0, [])


def test_only_what_blocks_hand_on_may_change_behind_a_barrier():
    """A compiler may keep what a `__restrict__` pointer gave it across a barrier: nobody else writes there."""
    module, _ = _module("matmul_simt", SIMT, (16, 128), (128, 32))
    (unit,) = print_kernels(module)
    (head,) = [line for line in unit.text.splitlines() if "__global__" in line]
    assert "const float *__restrict__ A, const float *__restrict__ B, float *partial_sums, int *counters, " in head
    assert head.endswith("float *__restrict__ C) {")


FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    "no fence": (lambda text: _with_arrival(text, "{ return atomicInc((unsigned *)c, n - 1) == n - 1; }"), "race"),
    "a fence behind the counter alone": (
        lambda text: _with_arrival(
            text, "{ bool last = atomicInc((unsigned *)c, n - 1) == n - 1; __threadfence(); return last; }"
        ),
        "race",
    ),
    "no atomic": (
        lambda text: _with_arrival(
            text, "{ __threadfence(); bool last = *c == n - 1; *c = last ? 0 : *c + 1; __threadfence(); return last; }"
        ),
        "race",
    ),
    "no barrier before the arrival": (
        lambda text: re.sub(r"treadle_barrier\(\);(\n +if \(thread == 0\))", r"\1", text),
        "race",
    ),
    "every block adds up": (lambda text: re.sub(r"if \(last_flag\[0\] != 0\)", "if (true)", text), "race"),
    "the last but one adds up": (
        lambda text: re.sub(r"treadle_arrive\((.*), 4\)", r"treadle_arrive(\1, 3)", text),
        "race",
    ),
}  # fmt: skip
"""What is changed, and the kind of finding that says so."""


def _with_arrival(text: str, body: str) -> str:
    changed = text.replace("treadle_arrive(", "arrive(")
    return changed.replace('extern "C"', f'__device__ bool arrive(int *c, int n) {body}\nextern "C"', 1)


def _launched(
    name: str,
    text: str,
    module: ModuleOp,
    inputs: Sequence[Array],
    environment: Environment,
    workers: int | None = None,
) -> tuple[Array, int, list[str]]:
    """The product, what the counters hold behind the launch, and the kinds of what the checks found."""
    (kernel,) = [op for op in module.walk() if op.name == "cuda.kernel"]
    sizes = [np.prod(arg.type.get_shape()) for arg in kernel.regions[0].block.args]  # pyright: ignore
    sums, counters = np.full(sizes[2], np.nan, np.float32), np.zeros(sizes[3], np.int32)
    result = np.full((inputs[0].shape[0], inputs[1].shape[1]), np.nan, np.float32)
    emulator = Emulator(text, tuple(CHECKS), environment=environment, workers=workers)
    report = emulator.launch(name, kernel.grid_shape, kernel.block_shape, [*inputs, sums, counters, result])  # pyright: ignore
    return result, int(counters.sum()), [finding.kind for finding in report.findings]


@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_fault_of_the_arrival_is_found(fault: str, emulator_environment: Environment):
    module, graph = _module("matmul_simt", SIMT, (16, 128), (128, 32))
    (unit,) = print_kernels(module)
    edit, kind = FAULTS[fault]
    text = edit(unit.text)
    assert text != unit.text
    _, _, findings = _launched(unit.name, text, module, graph.inputs, emulator_environment)
    assert kind in findings


def test_counters_that_do_not_wrap_are_left_over(emulator_environment: Environment):
    module, graph = _module("matmul_simt", SIMT, (16, 128), (128, 32))
    (unit,) = print_kernels(module)
    body = "{ __threadfence(); bool last = atomicAdd(c, 1) == n - 1; __threadfence(); return last; }"
    result, left, findings = _launched(
        unit.name, _with_arrival(unit.text, body), module, graph.inputs, emulator_environment
    )
    assert_product(result, *graph.inputs)
    assert left == 4 * (16 // 8) and not findings
