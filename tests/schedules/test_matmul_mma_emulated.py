"""Products on tensor cores through the whole pipeline, on the emulator with every check."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType, f16, f32
from xdsl.ir import SSAValue

from tests.backends.cuda.emulator.mutation.kernels import SharedKernel
from tests.backends.cuda.emulator.mutation.verdict import examine
from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import (
    GPU,
    TEMPLATE,
    Array,
    Shape,
    assert_product,
    in_one_group,
    sample,
    scheduled,
)
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.build import kernels
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.reference import evaluate_module
from treadle.dialects.graph import BinaryOp, CastOp, ConvOp, MatmulOp, PadOp, SliceOp, TransposeOp, UnaryOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.dialects.graph.linear import padded_at
from treadle.dialects.schedule import Choice
from treadle.environment import Environment

Build = Callable[[Graph], SSAValue]


def run_clean(program: EmulatedProgram, inputs: Sequence[Array]) -> Array:
    """The only output, after making sure that no check found anything."""
    (result,), reports = program.run(inputs)
    assert reports and not [str(report) for report in reports if report.findings]
    return result


def check(shapes: tuple[Shape, Shape], dtype: str, environment: Environment, **choices: Choice) -> None:
    """Compiles one product, and compares what the emulator computes with the product."""
    graph = Graph(*(sample(shape, dtype, seed) for seed, shape in enumerate(shapes)))
    module = scheduled(graph.module(graph.add(MatmulOp(graph[0], graph[1]))), TEMPLATE[dtype], choices, GPU)
    assert all("treadle_mma_" in unit.text for unit in print_kernels(module))
    assert_product(
        run_clean(EmulatedProgram(module, tuple(CHECKS), environment=environment), graph.inputs), *graph.inputs
    )


@pytest.mark.parametrize(
    "block",
    [((128, 128), (2, 2)), ((128, 256), (2, 4)), ((16, 128), (1, 4)), ((128, 32), (4, 2)), ((64, 32), (2, 2))],
)
def test_tiles(block: tuple[tuple[int, int], tuple[int, int]], emulator_environment: Environment):
    extents, warps = block
    check(
        ((130, 72), (72, 264 if extents[1] > 32 else 28)),
        "float16",
        emulator_environment,
        block=extents,
        warps=warps,
        block_k=64,
        stages=3,
    )


@pytest.mark.parametrize("terms", [8, 32, 40, 264])
@pytest.mark.parametrize(("block", "stages"), [(((128, 128), (2, 2)), 4), (((32, 64), (2, 2)), 2)])
def test_two_sets_of_fragments(
    block: tuple[tuple[int, int], tuple[int, int]], stages: int, terms: int, emulator_environment: Environment
):
    """Of one step to more than there are stages: every buffer that is loaded from has been filled."""
    extents, warps = block
    choices: dict[str, Choice] = {"block": extents, "warps": warps, "stages": stages, "fragments": 2}
    check(((130, terms), (terms, 136)), "float16", emulator_environment, **choices)


@pytest.mark.slow
def test_barriers_and_waits_around_two_sets_of_fragments_are_needed(emulator_environment: Environment):
    """Each of them removed or moved is found, but for the first barrier of the only slab that is stored."""
    graph = Graph(sample((40, 136), "float16", 0), sample((136, 72), "float16", 1))
    tile: dict[str, Choice] = {"block": (32, 64), "warps": (2, 2), "stages": 3, "fragments": 2, "split_k": 1}
    (unit,) = print_kernels(scheduled(graph.module(graph.add(MatmulOp(graph[0], graph[1]))), "matmul_mma", tile, GPU))
    (name,) = kernels(unit.text)
    buffers = tuple((size, "float16") for size in (40 * 136, 136 * 72, 40 * 72))
    examined = examine(SharedKernel("here", name, unit.text, (4, 1, 1), (128, 1, 1), 0, buffers), emulator_environment)
    assert examined.said == ""
    verdicts = [each for each in examined.verdicts if each.mutant.kind != "predicate dropped"]
    in_epilogue = max(each.mutant.line for each in verdicts if each.mutant.kind.startswith("wait"))
    found = [each for each in verdicts if each.outcome == "finding"]
    missed = [each for each in verdicts if each.outcome != "finding"]
    assert len(found) >= 10 and all(each.mutant.line > in_epilogue for each in missed) and len(missed) <= 2


def test_one_step_along_k_leaves_the_pipeline_s_loop_without_iterations(emulator_environment: Environment):
    """Half of the threads copy A's tile, in the loop, too."""
    check(((3, 1), (1, 200)), "float32", emulator_environment, block=(16, 128), warps=(1, 4), block_k=16, stages=4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_odd_size_of_several_thousand(dtype: str, emulator_environment: Environment):
    shape = (2039, 2039)
    graph = Graph(sample(shape, dtype, 0), sample(shape, dtype, 1))
    module = scheduled(graph.module(graph.add(MatmulOp(graph[0], graph[1]))), TEMPLATE[dtype], {}, GPU)
    result = run_clean(EmulatedProgram(module, (), environment=emulator_environment, limit=600), graph.inputs)
    assert_product(result, *graph.inputs)


def transposed(g: Graph, x: SSAValue) -> SSAValue:
    return g.add(TransposeOp(x, [1, 0]))


@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_aligned_products_waste_no_sector_and_meet_in_no_bank(
    dtype: str, order: str, emulator_environment: Environment
):
    shapes = [(128, 64) if order[0] == "n" else (64, 128), (64, 192) if order[1] == "n" else (192, 64)]
    graph = Graph(*(sample(shape, dtype, seed) for seed, shape in enumerate(shapes)))
    a, b = (graph[n] if turned == "n" else transposed(graph, graph[n]) for n, turned in enumerate(order))
    module = scheduled(graph.module(graph.add(MatmulOp(a, b))), TEMPLATE[dtype], {}, GPU)
    _, (report,) = EmulatedProgram(module, (), counters=True, environment=emulator_environment).run(graph.inputs)
    assert report.counters is not None
    total = report.counters.total
    assert total.bank_conflicts == 0 and total.shared_requests > 0
    assert total.global_sectors == total.global_ideal > 0


def _padded(g: Graph, value: float) -> SSAValue:
    filler = g.constant(np.full((), value, np.float16))
    return g.add(MatmulOp(g.add(PadOp("constant", g[0], filler, [5, 8, 3, 16])), g[1]))


def _im2col(g: Graph) -> SSAValue:
    """Windows of 3 x 3 of an image of 10 x 12 pixels, channels last, as rows."""

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        y, x = b.delinearize(index[0], [10, 12])
        dy, dx, channel = b.delinearize(index[1], [3, 3, 16])
        row, column = b.binary("sub", b.add(y, dy), 1), b.binary("sub", b.add(x, dx), 1)
        inside = [
            b.binary("ge", row, 0),
            b.binary("lt", row, 10),
            b.binary("ge", column, 0),
            b.binary("lt", column, 12),
        ]
        return padded_at(b, g[0], [row, column, channel], inside)

    return g.add(MatmulOp(g.add(compute_of(TensorType(f16, [120, 144]), element, "im2col")), g[1]))


def _block(g: Graph) -> SSAValue:
    biased = g.add(BinaryOp("add", g.add(MatmulOp(g[0], g[1])), g[2]))
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", biased, g[3]))))


def copied_asynchronously(text: str) -> set[str]:
    """The buffers that asynchronous copies fill."""
    return set(re.findall(r"treadle_cp_async_\d+\(&(\w+)", text))


HALF, SINGLE = np.float16, np.float32
A, B = (70, 64), (64, 72)
FUSED: dict[str, tuple[Build, tuple[Shape, ...], Sequence[Any], tuple[int, ...]]] = {
    "B transposed": (lambda g: g.add(MatmulOp(g[0], transposed(g, g[1]))), (A, (72, 64)), (HALF, HALF), (16,)),
    "A transposed": (lambda g: g.add(MatmulOp(transposed(g, g[0]), g[1])), ((64, 72), B), (HALF, HALF), (16,)),
    "both transposed": (
        lambda g: g.add(MatmulOp(transposed(g, g[0]), transposed(g, g[1]))),
        ((64, 72), (72, 64)),
        (HALF, HALF),
        (16,),
    ),
    "a slice of rows": (
        lambda g: g.add(MatmulOp(g.add(SliceOp(g[0], [3, 8], [70, 64], [1, 1])), g[1])),
        ((90, 80), B),
        (HALF, HALF),
        (16,),
    ),
    "a slice at 4 bytes": (
        lambda g: g.add(MatmulOp(g.add(SliceOp(g[0], [3, 2], [70, 64], [1, 1])), g[1])),
        ((90, 80), B),
        (HALF, HALF),
        (4, 16),
    ),
    "a pad of zeros": (lambda g: _padded(g, 0.0), ((62, 40), B), (HALF, HALF), (16,)),
    "windows of an image, channels last": (_im2col, ((10, 12, 16), (144, 72)), (HALF, HALF), (16,)),
    "bias, residual, relu": (_block, (A, B, (72,), (70, 72)), (HALF,) * 4, (16,)),
    "a cast of the result": (
        lambda g: g.add(CastOp(g.add(MatmulOp(g[0], g[1])), f32)),
        (A, B),
        (HALF, HALF),
        (16,),
    ),
    "a transpose of the result": (lambda g: transposed(g, g.add(MatmulOp(g[0], g[1]))), (A, B), (HALF, HALF), (16,)),
}
"""What is fused, the inputs' shapes and types, and the bytes of every asynchronous copy of which there is one."""


def check_group(
    build: Build, shapes: Sequence[Shape], dtypes: Sequence[Any], environment: Environment, template: str = "matmul_mma"
) -> str:
    """Runs one group, and gives the text of its kernel."""
    inputs = [
        random(*shape, seed=seed).astype(dtype) for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    graph = Graph(*inputs)
    module, expected = in_one_group(graph, build)
    (unit,) = print_kernels(scheduled(module, template, {}, GPU))
    result = run_clean(EmulatedProgram(module, tuple(CHECKS), environment=environment), graph.inputs)
    # Both round the sum of up to 144 terms to 11 bits, and each of the operations behind it.
    scale = float(np.abs(expected.astype(np.float64)).max())
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), rtol=0, atol=4 * 2.0**-11 * scale
    )
    return unit.text


@pytest.mark.parametrize("name", list(FUSED))
def test_what_only_moves_data_rides_the_asynchronous_copies(name: str, emulator_environment: Environment):
    build, shapes, dtypes, widths = FUSED[name]
    text = check_group(build, shapes, dtypes, emulator_environment)
    assert [n for n in (4, 8, 16) if f"treadle_cp_async_{n}(" in text] == list(widths)
    assert copied_asynchronously(text) == {"shared_a", "shared_b"}


CONVOLUTIONS: dict[str, tuple[tuple[Shape, Shape], list[int]]] = {
    "of one pixel": (((1, 24, 16, 16), (40, 24, 1, 1)), [0] * 4),
    "of 3 x 3 pixels": (((1, 16, 13, 11), (24, 16, 3, 3)), [1] * 4),
    "of 3 x 3 pixels of two images": (((2, 8, 9, 9), (17, 8, 3, 3)), [0] * 4),
}


@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_convolutions(name: str, emulator_environment: Environment):
    (image, filters), pads = CONVOLUTIONS[name]
    graph = Graph(sample(image, "float16", 0), sample(filters, "float16", 1))
    module = graph.module(graph.add(ConvOp(graph[0], graph[1], [1, 1], pads, [1, 1], 1)))
    (expected,) = evaluate_module(module, graph.inputs)
    lowered = scheduled(module, "matmul_mma", {}, GPU)
    assert "treadle_mma_" in "".join(unit.text for unit in print_kernels(lowered))
    result = run_clean(EmulatedProgram(lowered, tuple(CHECKS), environment=emulator_environment), graph.inputs)
    scale = float(np.abs(expected.astype(np.float64)).max())
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), rtol=0, atol=2 * 2.0**-11 * scale
    )


COMPUTED: dict[str, tuple[Build, tuple[Shape, ...], Sequence[Any]]] = {
    "a cast of A": (lambda g: g.add(MatmulOp(g.add(CastOp(g[0], f16)), g[1])), (A, B), (SINGLE, HALF)),
    "a cast of B": (lambda g: g.add(MatmulOp(g[0], g.add(CastOp(g[1], f16)))), (A, B), (HALF, SINGLE)),
    "a sum": (lambda g: g.add(MatmulOp(g.add(BinaryOp("add", g[0], g[2])), g[1])), (A, B, (64,)), (HALF,) * 3),
    "a pad of ones": (lambda g: _padded(g, 1.0), ((62, 40), B), (HALF, HALF)),
}


@pytest.mark.parametrize("name", list(COMPUTED))
def test_what_computes_is_copied_by_loads_and_stores(name: str, emulator_environment: Environment):
    build, shapes, dtypes = COMPUTED[name]
    text = check_group(build, shapes, dtypes, emulator_environment)
    assert copied_asynchronously(text) == {"shared_a" if name == "a cast of B" else "shared_b"}


def test_a_prologue_of_tf32_rides_the_copies_too(emulator_environment: Environment):
    text = check_group(
        lambda g: g.add(MatmulOp(g[0], transposed(g, g[1]))),
        (A, (72, 64)),
        (SINGLE, SINGLE),
        emulator_environment,
        "matmul_tf32",
    )
    assert copied_asynchronously(text) == {"shared_a", "shared_b"}
    assert "treadle_as_float(treadle_ldmatrix_x4(" in text and "treadle_round_tf32(" in text
