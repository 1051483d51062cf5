"""The templates of row computations: shapes, types, knobs, special values, and what they reject."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.limits import assert_within, limits
from tests.helpers.sampling import in_turn
from tests.schedules.row_cases import (
    CASES,
    Array,
    Case,
    Shape,
    build,
    inputs_of,
    layer_norm,
    softmax,
    tensor,
)
from treadle.backends.reference.kernels import Kernel
from treadle.dialects.graph import ArgReductionOp, ComputeOp, definition
from treadle.dialects.graph.evaluate import evaluate
from treadle.dialects.loop import AllocOp, BarrierOp, KernelOp, LoadOp, Space, SpaceAttr, WarpReduceOp
from treadle.dialects.schedule import Choice
from treadle.errors import TreadleError
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

CPU, GPU = Target.parse("cpu"), Target.parse("sm_80")
BOTH = ("row_cpu", "row_cuda")
SMALL: Case = ("softmax", (5, 31), 1)
ACROSS: Case = ("softmax", (2, 31, 21), 1)


def target_of(name: str) -> Target:
    return GPU if name == "row_cuda" else CPU


def kernel_of(name: str, compute: ComputeOp, choices: Mapping[str, Choice]) -> KernelOp:
    template, target = TEMPLATES[name], target_of(name)
    assert template.fits(compute)
    knobs = template.default(compute, target) | dict(choices)
    template.check(compute, knobs, target, "here")
    kernel = template.build(compute, knobs, target, "kernel")
    kernel.verify()
    return kernel


def results(name: str, compute: ComputeOp, env: Mapping[SSAValue, Array], **choices: Choice) -> list[Array]:
    """What the kernel computes with blocks and threads in both orders."""
    kernel = kernel_of(name, compute, choices)
    runner = Kernel(kernel)
    return [runner.run([env[operand] for operand in kernel.inputs], reverse=reverse) for reverse in (False, True)]


def check(name: str, case: Case, dtype: str = "float32", **choices: Choice) -> None:
    compute = build(case, dtype)
    env = inputs_of(compute)
    expected = limits(compute, env)
    for actual in results(name, compute, env, **choices):
        assert_within(actual, expected, dtype, case)


@pytest.mark.parametrize(("case", "dtype"), in_turn(CASES, ["float32", "float16"], step=3), ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_rows_of_any_shape(name: str, case: Case, dtype: str):
    check(name, case, dtype)


@pytest.mark.parametrize("name", BOTH)
def test_rows_of_other_types(name: str):
    check(name, SMALL, "float64")
    check(name, ("layer_norm", (3, 70), 1), "float64")


@pytest.mark.parametrize(
    ("tile", "way"),
    in_turn(
        [(1, 32), (2, 16), (4, 32), (8, 4), (16, 8), (32, 1), (64, 2), (128, 1)],
        [("columns", True), ("columns", False), ("rows", False), ("rows", True)],
        turns=2,
    ),
    ids=str,
)
def test_knobs_of_row_cuda(tile: tuple[int, int], way: tuple[str, bool]):
    (parts, rows), (lanes, cache_row) = tile, way
    for case in (SMALL, ("layer_norm", (3, 61), 1)):
        check("row_cuda", case, lanes=lanes, parts=parts, rows=rows, cache_row=cache_row)
    check("row_cuda", ACROSS, lanes=lanes, parts=parts, rows=rows, cache_row=cache_row)


@pytest.mark.parametrize("cache_row", [True, False])
@pytest.mark.parametrize("vector", [2, 4, 8])
def test_vectors_of_row_cuda(vector: int, cache_row: bool):
    for parts, rows in ((1, 32), (4, 8), (32, 2)):
        for case in (("softmax", (3, 24), 1), ("layer_norm", (2, 40), 1), ("variance", (3, 16), 1)):
            check("row_cuda", case, lanes="columns", parts=parts, rows=rows, vector=vector, cache_row=cache_row)


@pytest.mark.parametrize(
    ("tile", "cache_row"), in_turn([(16, 1), (16, 4), (32, 4), (32, 1), (64, 1), (64, 4)], [True, False]), ids=str
)
def test_knobs_of_row_cpu(tile: tuple[int, int], cache_row: bool):
    lanes, rows = tile
    for case in (SMALL, ("layer_norm", (3, 111), 1), ("variance", (3, 50), 1)):
        check("row_cpu", case, lanes=lanes, rows=rows, cache_row=cache_row)
    check("row_cpu", ACROSS, lanes=lanes, rows=rows, cache_row=cache_row)
    check("row_cpu", ("softmax", (3, 1), 1), lanes=lanes, rows=rows, cache_row=cache_row, across="columns")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    in_turn([(3, 41), (2, 70), (5, 1), (1, 300), (4, 9, 20)], ["float32", "float16", "int64"]),
    ids=str,
)
@pytest.mark.parametrize("name", BOTH)
def test_positions_of_the_largest_and_the_smallest(name: str, shape: Shape, dtype: str):
    for kind, keep, last in (("max", False, False), ("min", True, True)):
        compute = definition(ArgReductionOp(kind, tensor(*shape, dtype=dtype), 1, keep, last))
        values = np.random.default_rng(2).integers(-9, 9, shape).astype(dtype)
        env = {compute.tensors()[0]: values}
        for actual in results(name, compute, env):
            np.testing.assert_array_equal(actual, evaluate(compute, env))


def special(shape: Shape) -> Array:
    """Rows with -inf entries as a mask makes them, a row of nothing else, one with nan, one with inf."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    x[0, ::3] = -np.inf
    x[1] = -np.inf
    x[2, -1] = np.nan
    x[3, 0] = np.inf
    x[4] = 200.0
    return x


@pytest.mark.parametrize("columns", [3, 40, 70])
@pytest.mark.parametrize("name", BOTH)
def test_masks_and_nan_are_as_the_definition_says(name: str, columns: int):
    compute = softmax((5, columns), 1, "float32")
    env = {compute.tensors()[0]: special((5, columns))}
    expected = evaluate(compute, env)
    assert np.isnan(expected[1:4]).any(axis=1).all() and np.isfinite(expected[[0, 4]]).all()
    for actual in results(name, compute, env):
        assert_within(actual, limits(compute, env), np.float32, "softmax")


@pytest.mark.parametrize("case", [SMALL, ("layer_norm", (4, 48), 1), ACROSS], ids=str)
def test_a_cached_row_is_read_once(case: Case):
    compute = build(case)
    x = compute.tensors()[0]
    kernel = kernel_of("row_cuda", compute, {})
    buffer = kernel.input_buffers[list(kernel.inputs).index(x)]
    assert len([op for op in kernel.walk() if isinstance(op, LoadOp) and op.buffer is buffer]) == 1


def test_exponentials_are_computed_once():
    for name in BOTH:
        kernel = kernel_of(name, softmax((4, 64), 1, "float32"), {})
        assert sum(op.name == "math.exp" for op in kernel.walk()) == 1
    again = kernel_of("row_cuda", softmax((4, 64), 1, "float32"), {"cache_row": False})
    assert sum(op.name == "math.exp" for op in again.walk()) == 2


def test_a_row_that_a_warp_computes_needs_no_shared_memory():
    choices: dict[str, Choice] = {"parts": 32, "rows": 4, "lanes": "columns", "vector": 1, "cache_row": True}
    kernel = kernel_of("row_cuda", softmax((64, 128), 1, "float32"), choices)
    assert not [op for op in kernel.walk() if isinstance(op, BarrierOp)]
    shared = SpaceAttr(Space.SHARED)
    assert not [op for op in kernel.walk() if isinstance(op, AllocOp) and op.buffer.type.memory_space == shared]
    assert [op.lanes for op in kernel.walk() if isinstance(op, WarpReduceOp)] == [32, 32]


def test_no_barrier_can_be_left_out():
    compute = softmax((3, 128), 1, "float32")
    env = inputs_of(compute)
    choices: dict[str, Choice] = {"parts": 64, "rows": 2, "lanes": "columns", "vector": 1, "cache_row": True}
    for left_out in range(2):
        kernel = kernel_of("row_cuda", compute, choices)
        barriers = [op for op in kernel.walk() if isinstance(op, BarrierOp)]
        assert len(barriers) == 2
        barriers[left_out].detach()
        with pytest.raises(TreadleError, match="reads what nobody has stored"):
            for reverse in (False, True):
                Kernel(kernel).run([env[operand] for operand in kernel.inputs], reverse=reverse)


def test_a_long_row_is_not_cached():
    compute = layer_norm((2, 40000), 1, "float32")
    for name in BOTH:
        assert TEMPLATES[name].default(compute, target_of(name))["cache_row"] is False


@pytest.mark.parametrize(("dtype", "cached"), [("float16", True), ("float32", True), ("float64", False)])
def test_the_default_caches_what_its_registers_hold(dtype: str, cached: bool) -> None:
    """16 columns a thread, two values of each, by 1024 threads: 32 registers of the 64 of each, or twice as many."""
    compute = softmax((64, 16384), 1, dtype)
    choices = TEMPLATES["row_cuda"].default(compute, target_of("row_cuda"))
    assert (choices["parts"], choices["cache_row"]) == (1024, cached)


def rejection(name: str, compute: ComputeOp, **choices: Choice) -> str:
    template, target = TEMPLATES[name], target_of(name)
    with pytest.raises(TreadleError) as caught:
        template.check(compute, template.default(compute, target) | choices, target, "group 'g'")
    return str(caught.value)


def test_too_many_threads_are_rejected():
    message = rejection("row_cuda", build(SMALL), parts=64, rows=32)
    assert "row_cuda with 64 threads a row and 32 rows takes 2048 threads, 1024 too many" in message
    assert "accepted: at most 1024 on sm_80" in message


def test_too_many_cached_columns_are_rejected():
    message = rejection("row_cuda", softmax((2, 4000), 1, "float32"), parts=32, rows=1, vector=1, cache_row=True)
    assert "takes 250 registers a thread to cache columns in, 186 too many; accepted: at most 64" in message
    # Of 1024 threads each has 64 registers, half of them for columns.
    message = rejection("row_cuda", softmax((64, 320), 1, "float32"), parts=16, rows=64, vector=1, cache_row=True)
    assert "takes 40 registers a thread to cache columns in, 8 too many; accepted: at most 32" in message
    message = rejection("row_cuda", softmax((64, 320), 1, "float64"), parts=16, rows=32, vector=1, cache_row=True)
    assert "takes 80 registers a thread to cache columns in, 16 too many; accepted: at most 64" in message
    message = rejection("row_cpu", softmax((2, 40000), 1, "float32"), cache_row=True)
    assert "row_cpu caches 40000 elements of each value, 23552 too many; accepted: at most 16448" in message


def test_part_of_a_vector_is_rejected():
    message = rejection("row_cuda", build(SMALL), vector=4)
    assert "row_cuda: vectors of 4 overrun a row of 31 by 1; accepted: a vector that divides" in message


def test_part_of_a_warp_is_rejected():
    message = rejection("row_cuda", build(SMALL), parts=8, rows=2)
    assert "row_cuda: 8 threads a row and 2 rows are 16 threads, 16 short of whole warps" in message
    assert "accepted: a multiple of 32" in message
