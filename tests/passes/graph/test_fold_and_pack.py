"""graph-fold-constants and graph-pack-weights keep values; what they may fold."""

from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import f32

from tests.helpers.graphs import Graph, assert_same_values, operators, random, run_passes
from treadle.dialects.graph import BinaryOp, BroadcastOp, CastOp, ConstantOp, GatherOp, MatmulOp, TransposeOp, UnaryOp
from treadle.passes.graph import graph_fold_constants
from treadle.passes.graph.graph_fold_constants import GraphFoldConstantsPass
from treadle.passes.graph.graph_pack_weights import GraphPackWeightsPass, packed
from treadle.passes.graph.graph_simplify import GraphSimplifyPass


def test_folding_keeps_values() -> None:
    graph = Graph(random(5, 4))
    turned = graph.add(TransposeOp(graph.constant(random(6, 4)), [1, 0]))
    weights = graph.add(BinaryOp("mul", turned, graph.constant(random(6))))
    product = graph.add(MatmulOp(graph[0], weights))
    module = assert_same_values(graph, [product], [GraphFoldConstantsPass()], tolerance=0)
    assert operators(module) == ["constant", "matmul"]


@pytest.mark.parametrize(("tied", "large", "moves"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_a_large_weight_that_is_read_as_it_is_stays_one_copy(
    tied: bool, large: bool, moves: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding table, transposed for the head of a language model."""
    monkeypatch.setattr(graph_fold_constants, "LARGE", 6 * 4 * 4 if large else 6 * 4 * 4 + 1)
    graph = Graph(np.array([1, 4], np.int64))
    table = graph.constant(random(6, 4))
    rows = graph.add(GatherOp(table, graph[0], 0))
    y = graph.add(MatmulOp(rows, graph.add(TransposeOp(table, [1, 0]))))
    module = assert_same_values(graph, [y], [GraphFoldConstantsPass(keep_tied=tied)], tolerance=0)
    assert operators(module).count("transpose") == moves


def test_a_constant_that_is_only_moved_is_folded() -> None:
    graph = Graph(random(2, 4))
    table = graph.constant(random(6, 4))
    one, two = (graph.add(TransposeOp(table, [1, 0])) for _ in range(2))
    y = graph.add(BinaryOp("add", *(graph.add(MatmulOp(graph[0], w)) for w in (one, two))))
    module = assert_same_values(graph, [y], [GraphFoldConstantsPass(keep_tied=True)], tolerance=0)
    assert "transpose" not in operators(module)


def test_intermediate_constants_are_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    graph = Graph(random(5, 4))
    value = graph.constant(random(5, 4))
    for _ in range(3):
        value = graph.add(UnaryOp("sin", value))
    module = graph.module(graph.add(BinaryOp("add", graph[0], value)))
    run_passes(module, [GraphFoldConstantsPass()])
    assert len(list((tmp_path / "blobs").iterdir())) == 2


@pytest.mark.parametrize(("last", "left"), [(0, []), (1, ["cast", "binary"])])
def test_one_repeated_element_is_a_number(last: int, left: list[str]) -> None:
    """Zero points of symmetric weights: widened, they would be four times as large a constant."""
    zeros = np.zeros((256, 512), np.int8)
    zeros[-1, -1] = last
    graph = Graph(random(256, 512))
    wide = graph.add(CastOp(graph.constant(zeros), f32))
    y = graph.add(BinaryOp("sub", graph[0], wide))
    passes = [GraphFoldConstantsPass(), GraphSimplifyPass()]
    module = assert_same_values(graph, [graph.add(UnaryOp("neg", y))], passes, tolerance=0)
    assert [name for name in operators(module) if name != "constant"] == [*left, "unary"]


def test_a_large_broadcast_stays() -> None:
    graph = Graph(random(2, 2))
    large = graph.add(BroadcastOp(graph.constant(np.float32(1)), [1000, 1000]))
    small = graph.add(BroadcastOp(graph.constant(np.float32(1)), [100, 100]))
    module = run_passes(graph.module(large, small), [GraphFoldConstantsPass()])
    assert operators(module).count("broadcast") == 1


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 100])
def test_packing_keeps_values(columns: int) -> None:
    graph = Graph(random(5, 7))
    product = graph.add(MatmulOp(graph[0], graph.constant(random(7, columns))))
    passes = [GraphPackWeightsPass(), GraphFoldConstantsPass()]
    module = assert_same_values(graph, [product], passes, tolerance=0)
    assert operators(module) == ["constant", "compute", "matmul"]


def test_packing_shares_panels() -> None:
    graph = Graph(random(5, 7), random(6, 7))
    w = graph.constant(random(7, 40))
    products = [graph.add(MatmulOp(graph[n], w)) for n in (0, 1)]
    module = assert_same_values(graph, products, [GraphPackWeightsPass(width=16)], tolerance=0)
    assert operators(module) == ["constant", "compute", "matmul", "matmul"]


def test_only_constant_matrices_are_packed() -> None:
    graph = Graph(random(2, 5, 7), random(7, 4))
    product = graph.add(MatmulOp(graph[0], graph[1]))
    module = assert_same_values(graph, [product], [GraphPackWeightsPass()], tolerance=0)
    assert "compute" not in operators(module)


def test_batches_of_matrices_are_packed() -> None:
    graph = Graph(random(2, 5, 7))
    product = graph.add(MatmulOp(graph[0], graph.constant(random(2, 7, 3))))
    module = assert_same_values(graph, [product], [GraphPackWeightsPass(width=2)], tolerance=0)
    assert operators(module) == ["constant", "compute", "matmul"]
    panels = next(op for op in module.walk() if isinstance(op, ConstantOp))
    assert panels.type.get_shape() == (2, 2, 7, 2)


def test_panels() -> None:
    panels = packed(np.arange(6, dtype=np.float32).reshape(2, 3), 2)
    np.testing.assert_array_equal(panels, [[[0, 1], [3, 4]], [[2, 0], [5, 0]]])
