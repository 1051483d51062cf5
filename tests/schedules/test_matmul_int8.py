"""Products of bytes on tensor cores: exact in every sign, shape and layout, on the interpreter and on the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from tests.helpers.sampling import every, in_turn
from tests.schedules.tensor_cores import GPU, SHAPES, Array, Shape, in_one_group, scheduled
from tests.schedules.test_matmul_mma_emulated import run_clean
from treadle.backends.cuda.emulator import CHECKS
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.backends.cuda.printer import print_kernels
from treadle.backends.reference.kernels import evaluate_kernel
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, CastOp, MatmulOp, PadOp, TransposeOp, UnaryOp
from treadle.dialects.graph.dtypes import ui8
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice
from treadle.environment import Environment
from treadle.errors import TreadleError
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

TEMPLATE = TEMPLATES["matmul_int8"]
SIGNS = [(np.int8, np.int8), (np.int8, np.uint8), (np.uint8, np.int8), (np.uint8, np.uint8)]


def sample(shape: Shape, dtype: type[np.int8 | np.uint8], seed: int) -> Array:
    """Any bytes, the extreme ones often."""
    ends, choose = np.iinfo(dtype), np.random.default_rng([seed, *shape])
    drawn = choose.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    extreme = choose.choice(np.array([ends.min, ends.max], dtype), shape)
    return np.where(choose.random(shape) < 0.5, drawn, extreme)


def exact(a: Array, b: Array) -> Array:
    """The product as i32 holds it."""
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)


def transposed(g: Graph, x: SSAValue) -> SSAValue:
    rank = len(x.type.get_shape())  # pyright: ignore[reportAttributeAccessIssue]
    return g.add(TransposeOp(x, [*range(rank - 2), rank - 1, rank - 2]))


def by_transpose(g: Graph) -> SSAValue:
    """The first input times the second one's transpose."""
    return g.add(MatmulOp(g[0], transposed(g, g[1]), sums=i32))


def swapped(x: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


def interpret(a: Array, b: Array, reverse: bool = False, **choices: Choice) -> Array:
    """What the kernel of a product computes; B lies as it is, so that its bytes are gathered."""
    graph = Graph(a, b)
    anchor = MatmulOp(graph[0], graph[1], sums=i32)
    knobs = TEMPLATE.default(anchor, GPU) | choices
    TEMPLATE.check(anchor, knobs, GPU, "here")
    kernel = TEMPLATE.build(anchor, knobs, GPU, "kernel")
    kernel.verify()
    return evaluate_kernel(kernel, [a, b], reverse=reverse)


@pytest.mark.parametrize(("n", "shapes"), every(3, list(enumerate(SHAPES)), names=2), ids=str)
def test_products_of_any_size(n: int, shapes: tuple[Shape, Shape]):
    left, right = SIGNS[n % 4]
    a, b = sample(shapes[0], left, 0), sample(shapes[1], right, 1)
    np.testing.assert_array_equal(interpret(a, b), exact(a, b))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_pipelines_shorter_and_longer_than_their_stages(stages: int, steps: int):
    a, b = sample((16, 64 * steps - 8), np.uint8, 0), sample((64 * steps - 8, 24), np.int8, 1)
    reverse = (stages + steps // 2) % 2 > 0
    np.testing.assert_array_equal(interpret(a, b, reverse, stages=stages), exact(a, b))


@pytest.mark.parametrize(
    ("block", "warps"),
    [((16, 128), (1, 4)), ((32, 64), (2, 2)), ((64, 128), (2, 2)), ((128, 64), (4, 2)), ((128, 128), (2, 4))],
)
def test_tiles(block: tuple[int, int], warps: tuple[int, int]):
    a, b = sample((50, 140), np.int8, 0), sample((140, 70), np.uint8, 1)
    for block_k in (64, 128):
        result = interpret(a, b, block=block, warps=warps, block_k=block_k, stages=3)
        np.testing.assert_array_equal(result, exact(a, b))


def test_sums_beyond_32_bits_wrap():
    """Of as few terms as a sum of more than 31 bits takes, in whole tiles."""
    terms = 517 * 64
    a, b = np.full((16, terms), 255, np.uint8), np.full((terms, 8), 255, np.uint8)
    wrapped = exact(a, b)
    assert wrapped[0, 0] == terms * 255**2 - 2**32
    np.testing.assert_array_equal(interpret(a, b, split_k=1), wrapped)


def emulated(
    inputs: list[Array], build: Callable[[Graph], SSAValue], environment: Environment, **choices: Choice
) -> tuple[Array, str]:
    """What the emulator computes with every check, and the kernel's text."""
    graph = Graph(*inputs)
    module = scheduled(in_one_group(graph, build)[0], "matmul_int8", choices, GPU)
    (unit,) = print_kernels(module)
    return run_clean(EmulatedProgram(module, tuple(CHECKS), environment=environment), graph.inputs), unit.text


def copies(text: str) -> set[tuple[str, str]]:
    """The buffers that asynchronous copies fill, and the bytes that one moves."""
    return {(name, size) for size, name in re.findall(r"treadle_cp_async_(\d+)\(&(\w+)", text)}


WIDE = {("shared_a", "16"), ("shared_b", "16")}


@pytest.mark.parametrize("signs", SIGNS, ids=lambda each: "_".join(x.__name__ for x in each))
def test_bytes_along_k_come_in_asynchronous_copies(signs: Any, emulator_environment: Environment):
    a, b = sample((70, 96), signs[0], 0), sample((72, 96), signs[1], 1)
    result, text = emulated([a, b], by_transpose, emulator_environment)
    np.testing.assert_array_equal(result, exact(a, b.T))
    names = ["s8" if sign is np.int8 else "u8" for sign in signs]
    assert f"treadle_mma_m16n8k32_{'_'.join(names)}(" in text
    assert copies(text) == WIDE


@pytest.mark.parametrize("terms", [32, 96, 320])
@pytest.mark.parametrize("stages", [2, 4])
def test_two_sets_of_fragments(terms: int, stages: int, emulator_environment: Environment):
    a, b = sample((70, terms), np.uint8, 0), sample((72, terms), np.int8, 1)
    result, text = emulated([a, b], by_transpose, emulator_environment, stages=stages, fragments=2)
    np.testing.assert_array_equal(result, exact(a, b.T))
    assert copies(text) == WIDE and "regs_a[2]" in text


@pytest.mark.parametrize(
    ("order", "found"), [("nn", {("shared_a", "16")}), ("tn", set()), ("tt", {("shared_b", "16")})]
)
def test_bytes_that_lie_across_k_are_gathered(
    order: str, found: set[tuple[str, str]], emulator_environment: Environment
):
    a, b = sample((70, 96), np.int8, 0), sample((96, 72), np.uint8, 1)
    inputs = [x if turned == "n" else swapped(x) for x, turned in zip((a, b), order, strict=True)]

    def build(g: Graph) -> SSAValue:
        x, y = (g[n] if turned == "n" else transposed(g, g[n]) for n, turned in enumerate(order))
        return g.add(MatmulOp(x, y, sums=i32))

    result, text = emulated(inputs, build, emulator_environment)
    np.testing.assert_array_equal(result, exact(a, b))
    assert copies(text) == found


@pytest.mark.parametrize(("terms", "size"), [(100, "4"), (104, "8"), (97, None)])
def test_rows_that_begin_anywhere(terms: int, size: str | None, emulator_environment: Environment):
    a, b = sample((33, terms), np.uint8, 0), sample((40, terms), np.int8, 1)
    result, text = emulated([a, b], by_transpose, emulator_environment)
    np.testing.assert_array_equal(result, exact(a, b.T))
    assert copies(text) == ({("shared_a", size), ("shared_b", size)} if size else set())


def test_slices_of_the_terms_are_added_up(emulator_environment: Environment):
    a, b = sample((33, 1040), np.uint8, 0), sample((41, 1040), np.uint8, 1)
    result, text = emulated([a, b], by_transpose, emulator_environment, split_k=3)
    np.testing.assert_array_equal(result, exact(a, b.T))
    assert "treadle_arrive(" in text


def test_batches(emulator_environment: Environment):
    a, b = sample((3, 20, 64), np.int8, 0), sample((3, 24, 64), np.int8, 1)
    result, text = emulated([a, b], by_transpose, emulator_environment)
    np.testing.assert_array_equal(result, exact(a, swapped(b)))
    assert copies(text) == WIDE


def test_what_follows_is_computed_on_the_sums(emulator_environment: Environment):
    """A scale, a shift, relu, and bytes again."""
    a, b = sample((70, 64), np.uint8, 0), sample((72, 64), np.int8, 1)
    shift = np.linspace(-5, 5, 72).astype(np.float32)
    scale = np.float32(2.0**-12)

    def build(g: Graph) -> SSAValue:
        total = g.add(CastOp(g.add(MatmulOp(g[0], transposed(g, g[1]), sums=i32)), g[2].type.get_element_type()))  # pyright: ignore
        scaled = g.add(BinaryOp("add", g.add(BinaryOp("mul", total, g.constant(scale.reshape(())))), g[2]))
        rounded = g.add(UnaryOp("round", g.add(UnaryOp("relu", scaled))))
        most = g.constant(np.full((), 255, np.float32))
        return g.add(CastOp(g.add(BinaryOp("min", rounded, most)), ui8))

    result, text = emulated([a, b, shift], build, emulator_environment)
    total = exact(a, b.T).astype(np.float32) * scale + shift
    np.testing.assert_array_equal(result, np.clip(np.rint(total), 0, 255).astype(np.uint8))
    assert copies(text) == WIDE and "unsigned char *__restrict__" in text


def test_a_border_of_zeros_rides_the_copies(emulator_environment: Environment):
    a, b = sample((62, 48), np.uint8, 0), sample((72, 64), np.int8, 1)

    def build(g: Graph) -> SSAValue:
        padded = g.add(PadOp("constant", g[0], g.constant(np.zeros((), np.uint8)), [5, 0, 3, 16]))
        return g.add(MatmulOp(padded, transposed(g, g[1]), sums=i32))

    result, text = emulated([a, b], build, emulator_environment)
    np.testing.assert_array_equal(result, exact(np.pad(a, ((5, 3), (0, 16))), b.T))
    assert copies(text) == WIDE


def test_aligned_products_waste_no_sector_and_meet_in_no_bank(emulator_environment: Environment):
    a, b = sample((128, 128), np.uint8, 0), sample((192, 128), np.int8, 1)
    graph = Graph(a, b)
    product = graph.add(MatmulOp(graph[0], transposed(graph, graph[1]), sums=i32))
    module = scheduled(graph.module(product), "matmul_int8", {}, GPU)
    _, (report,) = EmulatedProgram(module, (), counters=True, environment=emulator_environment).run(graph.inputs)
    assert report.counters is not None
    total = report.counters.total
    assert total.bank_conflicts == 0 and total.shared_requests > 0
    assert total.global_sectors == total.global_ideal > 0


def anchor_of_bytes(size: int) -> MatmulOp:
    shape = (size, size)
    graph = Graph(np.broadcast_to(np.zeros((), np.uint8), shape), np.broadcast_to(np.zeros((), np.int8), shape))
    return MatmulOp(graph[0], graph[1], sums=i32)


@pytest.mark.parametrize(("size", "target"), in_turn([1, 100, 2039, 8192], ["sm_80", "sm_86", "sm_90", "sm_120"]))
def test_the_space_is_small_and_holds_the_default(size: int, target: str):
    anchor, gpu = anchor_of_bytes(size), Target.parse(target)
    TEMPLATE.check(anchor, TEMPLATE.default(anchor, gpu), gpu, "here")
    space = TEMPLATE.space(anchor, gpu)
    assert TEMPLATE.default(anchor, gpu) in space
    assert all(error.accepted for _, error in space.excluded())
    assert 100 < len(space) < 200


def test_more_tiles_than_are_worth_it_are_rejected():
    anchor = anchor_of_bytes(512)
    choices = TEMPLATE.default(anchor, GPU) | {"block_k": 128, "stages": 4}
    with pytest.raises(TreadleError, match="512 bytes along K in all stages, 128 too many; accepted: at most 384"):
        TEMPLATE.check(anchor, choices, GPU, "here")


@pytest.mark.parametrize(("terms", "along_k"), [(512, False), (101, True)])
def test_large_tiles_of_single_bytes_are_rejected(terms: int, along_k: bool):
    """Those of rows across K, and those of rows that begin anywhere."""
    shape = (8192, terms) if along_k else (terms, 8192)
    graph = Graph(np.zeros((8192, terms), np.uint8), np.zeros(shape, np.int8))
    b = transposed(graph, graph[1]) if along_k else graph[1]
    module = graph.module(graph.add(MatmulOp(graph[0], b, sums=i32)))
    lower(treadle_context(), module, GPU, after="graph", to="fuse")
    anchor = next(op for op in module.walk() if isinstance(op, MatmulOp))
    default = TEMPLATE.default(anchor, GPU)
    assert default["block"] == (64, 128)
    with pytest.raises(TreadleError, match="128 accumulators a thread, 64 too many, leave no registers for copies of"):
        TEMPLATE.check(anchor, default | {"block": (128, 128), "warps": (2, 2)}, GPU, "here")


def test_other_types_are_left_to_other_templates():
    graph = Graph(np.zeros((64, 64), np.int8), np.zeros((64, 64), np.int8), np.zeros((64, 64), np.float16))
    assert not TEMPLATE.fits(MatmulOp(graph[0], graph[1]))
    assert not TEMPLATE.fits(MatmulOp(graph[2], graph[2]))
    of_bytes = MatmulOp(graph[0], graph[1], sums=i32)
    others = [name for name, each in TEMPLATES.items() if each.kind == "cuda" and each.fits(of_bytes)]
    assert others == ["reduce_cuda", "matmul_int8", "generic_cuda"]
