"""graph-recognize and attention: every way of writing it, and what must stay as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, assert_same_values, operators, random
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    BroadcastOp,
    MaskOp,
    MatmulOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.passes.graph.graph_decompose_attention import GraphDecomposeAttentionPass
from treadle.passes.graph.graph_recognize import GraphRecognizePass
from treadle.passes.graph.graph_simplify import GraphSimplifyPass
from treadle.passes.graph.rewriting import shape_of

LOWEST = float(np.finfo(np.float32).min)
CAUSAL = np.tri(5, 6, 1, dtype=np.bool_)
NO_ROOM = "cpu{l2_bytes=64}"
"""A target on which the scores of no template's block stay in the cache."""


def recognized(graph: Graph, *results: SSAValue) -> ModuleOp:
    """The module after recognition, whose values survive it and the decomposition after it."""
    module = assert_same_values(graph, results, [GraphSimplifyPass(), GraphRecognizePass()])
    names = operators(module.clone())
    after = module.clone()
    GraphDecomposeAttentionPass(NO_ROOM).apply(None, after)  # pyright: ignore[reportArgumentType]
    after.verify()
    assert names.count("attention") == 0 or "attention" not in operators(after)
    return module


def the_attention(module: ModuleOp) -> AttentionOp:
    (found,) = (op for op in module.walk() if isinstance(op, AttentionOp))
    return found


def inputs(*, groups: int = 4) -> Graph:
    """Queries, keys, values, and a mask."""
    shapes = [(2, 4, 5, 8), (2, groups, 6, 8), (2, groups, 6, 3), (2, 1, 1, 6)]
    return Graph(*(random(*shape, seed=n) for n, shape in enumerate(shapes)))


def scores(graph: Graph, q: SSAValue | None = None, k: SSAValue | None = None) -> SSAValue:
    keys = graph[1] if k is None else k
    rank = len(shape_of(keys))
    turned = graph.add(TransposeOp(keys, [*range(rank - 2), rank - 1, rank - 2]))
    return graph.add(MatmulOp(graph[0] if q is None else q, turned))


def scaled(graph: Graph, x: SSAValue, by: Any = 0.25, kind: str = "mul") -> SSAValue:
    return graph.add(BinaryOp(kind, x, graph.constant(np.float32(by))))


def weighted(graph: Graph, x: SSAValue) -> SSAValue:
    shares = graph.add(SoftmaxOp(x, len(shape_of(x)) - 1))
    return graph.add(MatmulOp(shares, graph[2]))


def test_scale_and_added_mask() -> None:
    graph = inputs()
    masked = graph.add(BinaryOp("add", graph[3], scaled(graph, scores(graph), 3.0, "div")))
    op = the_attention(recognized(graph, weighted(graph, masked)))
    assert op.scale.value.data == pytest.approx(1 / 3) and op.mask is graph[3]
    assert (op.causal.value.data, op.guard.value.data) == (0, 0)


def test_scales_of_queries_and_keys_before_transposes() -> None:
    graph = inputs()
    q = graph.add(ReshapeOp(scaled(graph, graph.add(ReshapeOp(graph[0], [2, 20, 8]))), [2, 4, 5, 8]))
    op = the_attention(recognized(graph, weighted(graph, scores(graph, q, scaled(graph, graph[1], 0.5)))))
    assert op.scale.value.data == 0.125 and op.mask is None


def test_guard_against_nan() -> None:
    graph = inputs()
    shares = graph.add(SoftmaxOp(graph.add(BinaryOp("add", scores(graph), graph[3])), 3))
    zero = graph.constant(np.float32(0))
    guarded = graph.add(WhereOp(graph.add(UnaryOp("isnan", shares)), zero, shares))
    assert the_attention(recognized(graph, graph.add(MatmulOp(guarded, graph[2])))).guard.value.data == 1


def test_batches_joined_around_the_mask() -> None:
    """Products over [batch * heads], a mask over [batch, heads]."""
    graph = inputs()
    q, k, v = (graph.add(ReshapeOp(graph[n], [8, *shape_of(graph[n])[2:]])) for n in range(3))
    apart = graph.add(ReshapeOp(scores(graph, q, k), [2, 4, 5, 6]))
    masked = graph.add(ReshapeOp(graph.add(BinaryOp("add", apart, graph[3])), [8, 5, 6]))
    y = graph.add(MatmulOp(graph.add(SoftmaxOp(masked, 2)), v))
    assert the_attention(recognized(graph, y)).shape == (2, 4, 5, 3)


@pytest.mark.parametrize("low", [LOWEST, -np.inf])
@pytest.mark.parametrize("form", ["added", "chosen", "hidden", "where"])
def test_causal_masks(form: str, low: float) -> None:
    graph = inputs()
    s = scaled(graph, scores(graph))
    if form == "added":
        masked = graph.add(BinaryOp("add", s, graph.constant(np.where(CAUSAL, 0, low).astype(np.float32)[None, None])))
    elif form == "where":
        condition, zero, lowest = graph.constant(CAUSAL), graph.constant(np.float32(0)), graph.constant(np.float32(low))
        masked = graph.add(BinaryOp("add", s, graph.add(WhereOp(condition, zero, lowest))))
    elif form == "chosen":
        masked = graph.add(WhereOp(graph.constant(CAUSAL), s, graph.constant(np.float32(low))))
    else:
        masked = graph.add(WhereOp(graph.constant(~CAUSAL), graph.constant(np.float32(low)), s))
    op = the_attention(recognized(graph, weighted(graph, masked)))
    assert op.causal.value.data == 1 and op.mask is None


def test_a_chosen_mask_that_is_an_input() -> None:
    graph = Graph(*inputs().inputs, np.random.default_rng(0).random((5, 6)) < 0.7)
    masked = graph.add(WhereOp(graph[4], scores(graph), graph.constant(np.float32(LOWEST))))
    op = the_attention(recognized(graph, weighted(graph, masked)))
    assert op.causal.value.data == 0 and op.mask is not None


@pytest.mark.parametrize("shift", [0, 2])
def test_other_triangles_are_ordinary_masks(shift: int) -> None:
    graph = inputs()
    mask = np.where(np.tri(5, 6, shift, dtype=np.bool_), 0, LOWEST).astype(np.float32)
    masked = graph.add(BinaryOp("add", scores(graph), graph.constant(mask)))
    op = the_attention(recognized(graph, weighted(graph, masked)))
    assert op.causal.value.data == 0 and op.mask is not None


def repeated(graph: Graph, x: SSAValue) -> SSAValue:
    """Every head twice."""
    b, g, n, d = shape_of(x)
    apart = graph.add(BroadcastOp(graph.add(ReshapeOp(x, [b, g, 1, n, d])), [b, g, 2, n, d]))
    return graph.add(ReshapeOp(apart, [b, 2 * g, n, d]))


def test_repeated_keys_and_values_are_groups() -> None:
    graph = inputs(groups=2)
    shares = graph.add(SoftmaxOp(scores(graph, k=repeated(graph, graph[1])), 3))
    op = the_attention(recognized(graph, graph.add(MatmulOp(shares, repeated(graph, graph[2])))))
    assert op.group_size == 2 and op.k is graph[1] and op.v is graph[2]


def _other_dimension(graph: Graph) -> list[SSAValue]:
    return [graph.add(MatmulOp(graph.add(SoftmaxOp(scores(graph), 2)), graph[2]))]


def _scores_used(graph: Graph) -> list[SSAValue]:
    s = scores(graph)
    return [weighted(graph, s), s]


def _shares_used(graph: Graph) -> list[SSAValue]:
    shares = graph.add(SoftmaxOp(scores(graph), 3))
    return [graph.add(MatmulOp(shares, graph[2])), shares]


def _scale_after_mask(graph: Graph) -> list[SSAValue]:
    return [weighted(graph, scaled(graph, graph.add(BinaryOp("add", scores(graph), graph[3]))))]


def _small_replacement(graph: Graph) -> list[SSAValue]:
    """A replacement of -10 does not hide a score."""
    return [weighted(graph, graph.add(WhereOp(graph.constant(CAUSAL), scores(graph), graph.constant(np.float32(-10)))))]


def _enlarging_mask(graph: Graph) -> list[SSAValue]:
    q, k = graph.add(ReshapeOp(graph[0], [8, 5, 8])), graph.add(ReshapeOp(graph[1], [8, 6, 8]))
    masked = graph.add(BinaryOp("add", scores(graph, q, k), graph.constant(random(2, 1, 5, 6))))
    v = graph.add(BroadcastOp(graph.add(ReshapeOp(graph[2], [8, 6, 3])), [2, 8, 6, 3]))
    return [graph.add(MatmulOp(graph.add(SoftmaxOp(masked, 3)), v))]


@pytest.mark.parametrize(
    "write",
    [_other_dimension, _scores_used, _shares_used, _scale_after_mask, _small_replacement, _enlarging_mask],
)
def test_what_is_no_attention(write: Any) -> None:
    graph = inputs()
    assert "attention" not in operators(recognized(graph, *write(graph)))


def masked(graph: Graph, x: SSAValue, back: int, fill: float, n: int = 4) -> SSAValue:
    """A value, a number in it beyond the extent that input `n` is, along a dimension counted from the end."""
    return graph.add(MaskOp(x, graph[n], len(shape_of(x)) - back, fill))


def shortened(*, groups: int = 4, length: int = 4) -> Graph:
    """The inputs, and how many keys exist; the others hold no numbers."""
    arrays = [x.copy() for x in inputs(groups=groups).inputs]
    arrays[1][:, :, length:], arrays[2][:, :, length:] = np.nan, np.inf
    return Graph(*arrays, np.array(length), np.array(3))


def shortened_product(graph: Graph, s: SSAValue, v: SSAValue | None = None) -> SSAValue:
    shares = masked(graph, graph.add(SoftmaxOp(s, len(shape_of(s)) - 1)), 1, 0.0)
    return graph.add(MatmulOp(shares, masked(graph, graph[2] if v is None else v, 2, 0.0)))


@pytest.mark.parametrize("length", [1, 5, 6])
@pytest.mark.parametrize("order", ["mask first", "mask last", "mask before the scale"])
def test_a_length_of_keys(order: str, length: int) -> None:
    graph = shortened(length=length)
    s = scores(graph)
    if order == "mask before the scale":
        s = scaled(graph, masked(graph, s, 1, -np.inf))
    else:
        s = scaled(graph, masked(graph, s, 1, -np.inf) if order == "mask first" else s)
        s = graph.add(BinaryOp("add", s, graph[3]))
        s = masked(graph, s, 1, -np.inf) if order == "mask last" else s
    op = the_attention(recognized(graph, shortened_product(graph, s)))
    assert op.length is graph[4] and op.scale.value.data == 0.25
    assert op.v is graph[2] and op.k is graph[1]
    assert op.mask is (None if order == "mask before the scale" else graph[3])


def test_a_length_of_causal_attention_with_a_guard() -> None:
    graph = shortened()
    s = graph.add(WhereOp(graph.constant(CAUSAL), scores(graph), graph.constant(np.float32(LOWEST))))
    shares = graph.add(SoftmaxOp(masked(graph, s, 1, -np.inf), 3))
    guarded = graph.add(WhereOp(graph.add(UnaryOp("isnan", shares)), graph.constant(np.float32(0)), shares))
    y = graph.add(MatmulOp(masked(graph, guarded, 1, 0.0), masked(graph, graph[2], 2, 0.0)))
    op = the_attention(recognized(graph, y))
    assert op.length is graph[4] and op.causal.value.data == op.guard.value.data == 1


def test_a_length_between_batches_that_are_joined() -> None:
    """Products over [batch * heads], masks over [batch, heads]."""
    graph = shortened()
    q, k = (graph.add(ReshapeOp(graph[n], [8, *shape_of(graph[n])[2:]])) for n in range(2))
    apart = graph.add(ReshapeOp(scores(graph, q, k), [2, 4, 5, 6]))
    s = masked(graph, graph.add(BinaryOp("add", apart, graph[3])), 1, -np.inf)
    shares = masked(graph, graph.add(SoftmaxOp(s, 3)), 1, 0.0)
    v = graph.add(ReshapeOp(masked(graph, graph[2], 2, 0.0), [8, 6, 3]))
    y = graph.add(MatmulOp(graph.add(ReshapeOp(shares, [8, 5, 6])), v))
    op = the_attention(recognized(graph, y))
    assert op.length is graph[4] and op.shape == (2, 4, 5, 3) and op.v is graph[2]


def test_a_length_of_repeated_keys_and_values() -> None:
    graph = shortened(groups=2)
    s = masked(graph, scores(graph, k=repeated(graph, graph[1])), 1, -np.inf)
    op = the_attention(recognized(graph, shortened_product(graph, s, repeated(graph, graph[2]))))
    assert op.group_size == 2 and op.v is graph[2] and op.length is graph[4]


def _other_extent(graph: Graph) -> list[SSAValue]:
    return [shortened_product(graph, masked(graph, scores(graph), 1, -np.inf, n=5))]


def _rows_masked(graph: Graph) -> list[SSAValue]:
    return [shortened_product(graph, masked(graph, scores(graph), 2, -np.inf))]


def _scores_unmasked(graph: Graph) -> list[SSAValue]:
    return [shortened_product(graph, scores(graph))]


def _finite_fill(graph: Graph) -> list[SSAValue]:
    return [shortened_product(graph, masked(graph, scores(graph), 1, -10.0))]


def _negative_scale(graph: Graph) -> list[SSAValue]:
    return [shortened_product(graph, scaled(graph, masked(graph, scores(graph), 1, -np.inf), -1.0))]


def _shares_unmasked(graph: Graph) -> list[SSAValue]:
    shares = graph.add(SoftmaxOp(masked(graph, scores(graph), 1, -np.inf), 3))
    return [graph.add(MatmulOp(shares, masked(graph, graph[2], 2, 0.0)))]


def _values_unmasked(graph: Graph) -> list[SSAValue]:
    shares = graph.add(SoftmaxOp(masked(graph, scores(graph), 1, -np.inf), 3))
    return [graph.add(MatmulOp(masked(graph, shares, 1, 0.0), graph[2]))]


def _width_of_values_masked(graph: Graph) -> list[SSAValue]:
    shares = graph.add(SoftmaxOp(masked(graph, scores(graph), 1, -np.inf), 3))
    return [graph.add(MatmulOp(masked(graph, shares, 1, 0.0), masked(graph, graph[2], 1, 0.0)))]


def _masked_shares_used(graph: Graph) -> list[SSAValue]:
    shares = masked(graph, graph.add(SoftmaxOp(masked(graph, scores(graph), 1, -np.inf), 3)), 1, 0.0)
    return [graph.add(MatmulOp(shares, masked(graph, graph[2], 2, 0.0))), shares]


@pytest.mark.parametrize(
    "write",
    [
        _other_extent, _rows_masked, _scores_unmasked, _finite_fill, _negative_scale, _shares_unmasked,
        _values_unmasked, _width_of_values_masked, _masked_shares_used,
    ],
)  # fmt: skip
def test_what_is_no_length(write: Any) -> None:
    graph = Graph(*inputs().inputs, np.array(4), np.array(3))
    with np.errstate(invalid="ignore"):
        assert "attention" not in operators(recognized(graph, *write(graph)))


@pytest.mark.parametrize("length", [0, 1, 5, 6])
@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_decomposition_with_a_length(causal: bool, groups: int, length: int) -> None:
    graph = shortened(groups=groups, length=length)
    y = graph.add(AttentionOp(*(graph[n] for n in range(5)), scale=0.25, causal=causal))
    module = assert_same_values(graph, [y], [GraphDecomposeAttentionPass(NO_ROOM)])
    assert operators(module).count("mask") == 3 and "attention" not in operators(module)


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_decomposition(groups: int, causal: bool, dtype: Any) -> None:
    arrays = [x.astype(dtype) for x in inputs(groups=groups).inputs]
    graph = Graph(*arrays)
    y = graph.add(AttentionOp(*(graph[n] for n in range(4)), scale=0.25, causal=causal, guard=True))
    # Probabilities are rounded to the values' type before the second product.
    tolerance = 4 * float(np.finfo(dtype).eps) * np.sqrt(6)
    module = assert_same_values(graph, [y], [GraphDecomposeAttentionPass(NO_ROOM)], tolerance=tolerance)
    assert "attention" not in operators(module)


def test_attention_is_kept_where_a_template_takes_it() -> None:
    graph = inputs()
    y = graph.add(AttentionOp(graph[0], graph[1], graph[2]))
    assert operators(assert_same_values(graph, [y], [GraphDecomposeAttentionPass("sm_80")])) == ["attention"]


def test_attention_without_a_template_is_written_out_for_a_gpu_too() -> None:
    graph = Graph(*(array.astype(np.float64) for array in inputs().inputs))
    y = graph.add(AttentionOp(graph[0], graph[1], graph[2]))
    found = operators(assert_same_values(graph, [y], [GraphDecomposeAttentionPass("sm_80")]))
    assert "attention" not in found and found.count("matmul") == 2
