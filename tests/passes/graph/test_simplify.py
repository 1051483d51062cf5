"""graph-simplify keeps values, folds what it should, and leaves what is not exact."""

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects.builtin import bf16, f16, f32, f64, i16, i32, i64
from xdsl.ir import SSAValue

from tests.helpers.compiled import run_as_c
from tests.helpers.graphs import Array, Graph, assert_same_values, operators, random
from treadle.dialects.graph import (
    BatchNormOp,
    BinaryOp,
    CastOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    MatmulOp,
    ReductionOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    WhereOp,
)
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.passes.graph.graph_simplify import GraphSimplifyPass

SIMPLIFY = [GraphSimplifyPass()]


def conv(graph: Graph, channels: int = 4, groups: int = 1) -> SSAValue:
    weights = graph.constant(random(channels, 4 // groups, 3, 3))
    return graph.add(ConvOp(graph[0], weights, [1, 1], [1, 1, 1, 1], [1, 1], groups))


@pytest.mark.parametrize("groups", [1, 4])
def test_everything_after_a_convolution_becomes_one_bias(groups: int) -> None:
    graph = Graph(random(1, 4, 6, 6))
    y = graph.add(BinaryOp("add", conv(graph, groups=groups), graph.constant(random(4, 1, 1))))
    scale, bias, mean = (graph.constant(random(4, seed=n)) for n in range(3))
    y = graph.add(BatchNormOp(y, scale, bias, mean, graph.constant(np.abs(random(4, seed=3))), 1e-5))
    y = graph.add(BinaryOp("div", y, graph.constant(np.float32(3))))
    y = graph.add(BinaryOp("sub", y, graph.constant(random(1, 4, 1, 1))))
    module = assert_same_values(graph, [y], SIMPLIFY)
    assert sorted(operators(module)) == ["binary", "constant", "constant", "conv"]


def test_a_convolution_with_two_users_keeps_its_weights() -> None:
    graph = Graph(random(1, 4, 6, 6))
    y = conv(graph)
    scaled = graph.add(BinaryOp("mul", y, graph.constant(random(4, 1, 1))))
    module = assert_same_values(graph, [y, scaled], SIMPLIFY, tolerance=0)
    assert operators(module).count("binary") == 1


def test_a_scale_per_pixel_does_not_fold() -> None:
    graph = Graph(random(1, 4, 6, 6))
    scaled = graph.add(BinaryOp("mul", conv(graph), graph.constant(random(6))))
    assert "binary" in operators(assert_same_values(graph, [scaled], SIMPLIFY, tolerance=0))


MATMULS: list[tuple[str, Callable[[Graph], SSAValue], list[Array], int]] = [
    ("columns", lambda g: g.add(MatmulOp(g[0], g.constant(random(7, 9)))), [random(9)], 0),
    (
        "scalars",
        lambda g: g.add(MatmulOp(g[0], g.constant(random(7, 9)))),
        [random(1), random(1, 1, seed=1)],
        0,
    ),
    ("rows", lambda g: g.add(MatmulOp(g[0], g.constant(random(7, 9)))), [random(5, 1)], 1),
    ("rows of A", lambda g: g.add(MatmulOp(g.constant(random(3, 5)), g[0])), [random(3, 1)], 0),
    ("columns of A", lambda g: g.add(MatmulOp(g.constant(random(3, 5)), g[0])), [random(7)], 1),
]


@pytest.mark.parametrize(("make", "scales", "left"), [m[1:] for m in MATMULS], ids=[m[0] for m in MATMULS])
def test_scales_of_a_matmul(make: Callable[[Graph], SSAValue], scales: list[Array], left: int) -> None:
    graph = Graph(random(5, 7))
    y = make(graph)
    for scale in scales:
        y = graph.add(BinaryOp("mul", graph.constant(scale), y))
    assert operators(assert_same_values(graph, [y], SIMPLIFY)).count("binary") == left


@pytest.mark.parametrize(("groups", "left"), [(1, 0), (2, 1)])
def test_scales_of_a_transposed_convolution(groups: int, left: int) -> None:
    graph = Graph(random(1, 4, 6, 6))
    weights = graph.constant(random(4, 3, 2, 2))
    y = graph.add(ConvTransposeOp(graph[0], weights, [2, 2], [0] * 4, [1, 1], groups, [0, 0]))
    y = graph.add(BinaryOp("mul", y, graph.constant(random(3 * groups, 1, 1))))
    assert operators(assert_same_values(graph, [y], SIMPLIFY)).count("binary") == left


def test_a_scale_that_overflows_the_weights_stays() -> None:
    graph = Graph(np.zeros((2, 2), np.float16))
    y = graph.add(MatmulOp(graph[0], graph.constant(np.full((2, 2), 6e4, np.float16))))
    y = graph.add(BinaryOp("mul", y, graph.constant(np.float16(4))))
    assert "binary" in operators(assert_same_values(graph, [y], SIMPLIFY))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_scale_that_makes_all_weights_of_an_output_subnormal_stays(dtype: type[np.floating]) -> None:
    """Of 0.4 times the smallest number nothing is left; a normal number beside it keeps what the sum needs."""
    smallest = np.finfo(dtype).smallest_subnormal
    x, weights = np.full((1, 64), 7, dtype), np.full((64, 2), 0.4, dtype)
    graph = Graph(x)
    y = graph.add(MatmulOp(graph[0], graph.constant(weights)))
    scaled = graph.add(BinaryOp("mul", y, graph.constant(np.array([smallest, 1.5], dtype))))
    (result,) = run_as_c(graph.module(scaled), [x])
    total = 64 * 7 * float(weights[0, 0])
    np.testing.assert_allclose(result[0, 0] / smallest, total, rtol=2e-3, atol=1)
    np.testing.assert_allclose(result[0, 1], total * 1.5, rtol=2e-3)


def test_a_scale_that_makes_some_weights_subnormal_folds() -> None:
    graph = Graph(random(2, 3).astype(np.float16))
    y = graph.add(MatmulOp(graph[0], graph.constant(np.array([[1, 0], [1e-5, 0], [0.5, 0]], np.float16))))
    y = graph.add(BinaryOp("mul", y, graph.constant(np.array([1e-3, 2], np.float16))))
    assert "binary" not in operators(assert_same_values(graph, [y], SIMPLIFY))


def test_a_batch_norm_whose_scale_is_subnormal_stays() -> None:
    """Half the smallest number would be 0."""
    smallest = np.finfo(np.float16).smallest_subnormal
    x, one = np.array([[1000.0]], np.float16), np.ones(1, np.float16)
    graph = Graph(x)
    scale, bias, mean, variance = (graph.constant((v * one).astype(np.float16)) for v in (smallest, 0, 0, 16))
    (y,) = run_as_c(graph.module(graph.add(BatchNormOp(graph[0], scale, bias, mean, variance, 0))), [x])
    np.testing.assert_array_equal(y / smallest, [[250]])


def test_a_batch_norm_of_bfloat16_is_a_scale_and_a_bias() -> None:
    one = np.ones(1, numpy_dtype(bf16))
    graph = Graph(one.reshape(1, 1))
    scale, bias, mean, variance = (graph.constant(one) for _ in range(4))
    y = graph.add(BatchNormOp(graph[0], scale, bias, mean, variance, 1e-5))
    assert "batch_norm" not in operators(assert_same_values(graph, [y], SIMPLIFY))


def test_a_batch_norm_whose_scale_overflows_stays() -> None:
    x, one = np.array([[0.5, 2]], np.float16), np.ones(2, np.float16)
    graph = Graph(x)
    scale, mean = (graph.constant(np.array(v, np.float16)) for v in ([6e4, 6e4], [0.5, 2.125]))
    bias, variance = graph.constant(one), graph.constant(one / 16)
    module = graph.module(graph.add(BatchNormOp(graph[0], scale, bias, mean, variance, 0)))
    (y,) = run_as_c(module, [x])
    np.testing.assert_array_equal(y, np.array([[1, -3e4]], np.float16))


def test_chains_of_movements() -> None:
    graph = Graph(random(2, 6, 4))
    x = graph[0]
    turned = graph.add(TransposeOp(graph.add(TransposeOp(x, [2, 0, 1])), [1, 2, 0]))
    flat = graph.add(ReshapeOp(graph.add(ReshapeOp(turned, [48])), [2, 6, 4]))
    back = graph.add(SliceOp(x, [0, 5, 0], [2, 6, 4], [1, -1, 1]))
    part = graph.add(SliceOp(back, [0, 4, 1], [2, 2, 3], [1, -2, 1]))
    units = graph.add(TransposeOp(graph.add(ReshapeOp(x, [2, 1, 6, 4])), [1, 0, 2, 3]))
    same = graph.add(ReductionOp("max", graph.add(ReshapeOp(x, [1, 2, 24])), [0], False))
    module = assert_same_values(graph, [flat, part, back, units, same], SIMPLIFY, tolerance=0)
    assert sorted(operators(module)) == ["reshape", "reshape", "slice", "slice"]


@pytest.mark.parametrize(
    ("indices", "left"), [(-2, "slice"), ([5, 3, 1], "slice"), ([0, 0], "gather"), ([0, 9], "slice")]
)
def test_gathers_at_known_indices(indices: int | list[int], left: str) -> None:
    graph = Graph(random(2, 6, 4))
    y = graph.add(GatherOp(graph[0], graph.constant(np.array(indices)), 1))
    assert left in operators(assert_same_values(graph, [y], SIMPLIFY, tolerance=0))


def test_arithmetic_identities() -> None:
    graph = Graph(random(2, 3))
    x = graph[0]
    power = graph.add(BinaryOp("pow", x, graph.constant(np.float32(1))))
    wide = graph.add(CastOp(graph.add(CastOp(x, f64)), f32))
    chosen = graph.add(WhereOp(graph.constant(np.array([True])), x, graph.add(BinaryOp("mul", x, x))))
    module = assert_same_values(graph, [power, wide, chosen], SIMPLIFY, tolerance=0)
    assert operators(module) == []


def test_what_is_not_exact_stays() -> None:
    graph = Graph(np.array([np.nan, np.inf, -1, 2], np.float32), np.array([3, -7], np.int32))
    x, n = graph[0], graph[1]
    zero = graph.add(BinaryOp("mul", x, graph.constant(np.float32(0))))
    third = graph.add(BinaryOp("div", x, graph.constant(np.float32(3))))
    narrow = graph.add(CastOp(graph.add(CastOp(x, f16)), f32))
    half = graph.add(BinaryOp("div", n, graph.constant(np.int32(2))))
    module = graph.module(zero, third, narrow, half)
    before = str(module)
    SIMPLIFY[0].apply(None, module)  # pyright: ignore[reportArgumentType]
    assert str(module) == before


def test_casts_that_do_not_come_back_stay() -> None:
    """2^53 + 1 is no double, 2^24 + 1 no float, 2049 no half: compiled, the ways back give other numbers."""
    ways = [(np.int64, f64, i64, 2**53 + 1), (np.int32, f32, i32, 2**24 + 1), (np.int16, f16, i16, 2049)]
    inputs = [np.array([value, -value, 7], dtype) for dtype, _, _, value in ways]
    graph = Graph(*inputs)
    back = [graph.add(CastOp(graph.add(CastOp(graph[n], through)), own)) for n, (_, through, own, _) in enumerate(ways)]
    results = run_as_c(graph.module(*back), inputs)
    for result, (_, _, _, value) in zip(results, ways, strict=True):
        assert result.tolist() == [value - 1, -(value - 1), 7]


def test_a_division_by_a_power_of_two_is_a_product() -> None:
    graph = Graph(random(2, 3))
    y = graph.add(BinaryOp("div", graph[0], graph.constant(np.array([8, -0.5, 1], np.float32))))
    module = assert_same_values(graph, [y], SIMPLIFY, tolerance=0)
    assert 'graph.binary "mul"' in str(module)


def test_a_neutral_operand_may_still_broadcast() -> None:
    graph = Graph(random(2, 3))
    y = graph.add(BinaryOp("sub", graph[0], graph.constant(np.zeros((4, 1, 1), np.float32))))
    assert operators(assert_same_values(graph, [y], SIMPLIFY, tolerance=0)) == ["broadcast"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_zero_that_is_added_or_subtracted_may_change_the_sign_of_another(dtype: type[np.floating]) -> None:
    """`-0 + 0` is 0, `-0 + -0` is -0."""
    x = np.array([-0.0, 0, -1, 1], dtype)
    graph = Graph(x)
    zeros = [(kind, graph.constant(dtype(zero))) for kind, zero in (("add", 0.0), ("sub", -0.0))]
    changed = [graph.add(BinaryOp(kind, graph[0], zero)) for kind, zero in zeros]
    neutral = [(kind, graph.constant(dtype(zero))) for kind, zero in (("add", -0.0), ("sub", 0.0))]
    kept = [graph.add(BinaryOp(kind, graph[0], zero)) for kind, zero in neutral]
    results = run_as_c(graph.module(*changed, *kept), [x])
    signs = [np.signbit(y).tolist() for y in results]
    assert signs == [[False, False, True, False]] * 2 + [[True, False, True, False]] * 2


def test_only_zeros_that_change_nothing_vanish() -> None:
    graph = Graph(random(2, 3), np.arange(6, dtype=np.int32), random(2, 3).astype(numpy_dtype(bf16)))
    wide, whole, narrow = (graph[n] for n in range(3))
    y = graph.add(BinaryOp("add", wide, graph.constant(np.float32(-0.0))))
    n = graph.add(BinaryOp("sub", whole, graph.constant(np.int32(0))))
    z = graph.add(BinaryOp("add", narrow, graph.constant(np.zeros((), numpy_dtype(bf16)))))
    assert operators(assert_same_values(graph, [y, n, z], SIMPLIFY, tolerance=0)) == ["constant", "binary"]
