"""The plan of fusion: every pair has a decision with a reason, and no group waits for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from tests.helpers.graphs import Graph, random
from tests.helpers.random_graphs import sharing_graph
from tests.models.catalog import require_model
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    BinaryOp,
    FusedOp,
    MatmulOp,
    ReductionOp,
    ReshapeOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.registry import treadle_context
from treadle.frontends.onnx import import_model
from treadle.passes.graph.definition_analysis import users_of
from treadle.passes.graph.fusion_plan import Decision, Plan, nodes_of, plan_fusion
from treadle.passes.instruments import undominated_use
from treadle.target import Target

TARGETS = ("cpu", "sm_80")


def operators(module: ModuleOp, target: str) -> list[Operation]:
    """The operations of @main just before fusion."""
    lower(treadle_context(), module, Target.parse(target), to="define")
    (main,) = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    return list(main.body.block.ops)


def planned(module: ModuleOp, target: str) -> tuple[Plan, list[Operation]]:
    """The plan, and the operators that it is of."""
    ops = operators(module, target)
    return plan_fusion(ops, Target.parse(target)), nodes_of(ops)


def drawn(seed: int) -> ModuleOp:
    graph, results = sharing_graph(seed)
    return graph.module(*results)


def assert_every_pair_has_a_reason(plan: Plan, nodes: Sequence[Operation]) -> None:
    wanted = Counter((op, user) for op in nodes for user in users_of(op.results[0]))
    decisions = plan.decisions(nodes)
    beside = [each for each in decisions if (each.producer, each.consumer) not in wanted]
    found = Counter((each.producer, each.consumer) for each in decisions if each not in beside)
    assert found == wanted
    assert all(each.fused and each.reason.startswith("side by side") for each in beside)
    silent = [str(each) for each in decisions if each.reason in ("", "no rule takes it")]
    assert not silent


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["ppocr_cls", "minilm", "light_squeezenet"])
def test_every_pair_of_a_model_has_a_reason(name: str, target: str):
    model = require_model(name)
    assert_every_pair_has_a_reason(*planned(import_model(model.path(), model.input_shapes), target))


@pytest.mark.parametrize("target", TARGETS)
def test_plans_of_random_graphs(target: str):
    """Every pair has a reason, and each operator is computed by one group, or repeated where it is read."""
    for seed in range(15):
        plan, nodes = planned(drawn(seed), target)
        assert_every_pair_has_a_reason(plan, nodes)
        chains = Counter(op for group in plan.groups for op in group.chain)
        assert set(chains.values()) <= {1}
        repeated = {op for group in plan.groups for op in group.prologues}
        assert set(nodes) == repeated | set(chains) and not repeated & set(chains)


def tangled(seed: int) -> ModuleOp:
    """Products and elementwise functions of one shape, many of them returned: everything could be joined."""
    choose = Random(seed)
    graph = Graph(random(16, 16), random(16, 16))
    values = [graph[0], graph[1]]
    for _ in range(14):
        x, y = choose.choice(values[-4:]), choose.choice(values)
        kind = choose.choice(["unary", "binary", "binary", "product"])
        if kind == "unary":
            values.append(graph.add(UnaryOp("tanh", x)))
        else:
            values.append(graph.add(BinaryOp("add", x, y) if kind == "binary" else MatmulOp(x, y)))
    unread = [value for value in values if not list(value.uses)]
    return graph.module(*dict.fromkeys([*unread, *choose.sample(values[2:], 4)]))


@pytest.mark.parametrize("target", TARGETS)
def test_no_group_waits_for_itself(target: str):
    """If one did, no order of the groups would let each stand behind all that it reads."""
    refused = 0
    for seed in range(13):
        module = tangled(seed)
        plan, nodes = planned(module.clone(), target)
        refused += sum("fusing would make a cycle" in each.reason for each in plan.decisions(nodes))
        lower(treadle_context(), module, Target.parse(target), to="fuse")
        assert undominated_use(module) is None
    assert refused, "none of the graphs was in danger"


def reasons(graph: Graph, *results: object, target: str = "cpu") -> list[Decision]:
    module = graph.module(*results)  # pyright: ignore[reportArgumentType]
    plan, nodes = planned(module, target)
    return plan.decisions(nodes)


def labels(graph: Graph, *results: object, target: str = "cpu") -> list[tuple[str, int]]:
    """The groups, each with the number of its results."""
    module = graph.module(*results)  # pyright: ignore[reportArgumentType]
    lower(treadle_context(), module, Target.parse(target), to="fuse")
    return [(op.label.data, len(op.outputs)) for op in module.walk() if isinstance(op, FusedOp)]


@pytest.mark.parametrize("target", TARGETS)
def test_functions_of_a_stored_product_join_its_kernel(target: str):
    """The sum has three readers; two of them are computed where it is, the third needs whole rows."""
    graph = Graph(random(20, 30), random(30, 40), random(20, 40))
    total = graph.add(BinaryOp("add", graph.add(MatmulOp(graph[0], graph[1])), graph[2]))
    clamped, bent = (graph.add(UnaryOp(kind, total)) for kind in ("relu", "tanh"))
    product = graph.add(BinaryOp("mul", clamped, bent))
    rows = graph.add(SoftmaxOp(total, 1))
    found = labels(graph, total, clamped, product, rows, target=target)
    assert found == [("matmul_add_relu_tanh_mul", 3), ("softmax", 1)]


@pytest.mark.parametrize("target", TARGETS)
def test_a_gate_does_not_join_what_its_mean_waits_for(target: str):
    """Squeeze and excitation: the product of %x and its own mean cannot be computed where %x is."""
    graph = Graph(random(8, 90), random(90, 70), random(70, 70))
    x = graph.add(UnaryOp("relu", graph.add(MatmulOp(graph[0], graph[1]))))
    mean = graph.add(ReductionOp("mean", x, [0], keep=True))
    gate = graph.add(UnaryOp("sigmoid", graph.add(MatmulOp(mean, graph[2]))))
    gated = graph.add(BinaryOp("mul", x, gate))
    found = reasons(graph, gated, target=target)
    assert any("fusing would make a cycle through" in each.reason for each in found if not each.fused)


def test_elementwise_definitions_of_one_tensor_stand_side_by_side():
    graph = Graph(random(40, 50), random(40, 50))
    results = [graph.add(UnaryOp(kind, graph[0])) for kind in ("tanh", "exp")]
    results.append(graph.add(BinaryOp("add", graph[1], graph[1])))
    assert labels(graph, *results) == [("tanh_exp", 2), ("add", 1)]


def test_elements_in_another_order_are_stored_by_another_kernel():
    graph = Graph(random(40, 50))
    x = graph.add(UnaryOp("tanh", graph[0]))
    turned = graph.add(UnaryOp("exp", graph.add(TransposeOp(x, [1, 0]))))
    flat = graph.add(UnaryOp("exp", graph.add(ReshapeOp(x, [2000]))))
    found = labels(graph, x, turned, flat)
    assert [number for _, number in found] == [2, 1]
    graph = Graph(random(40, 50))
    x = graph.add(UnaryOp("tanh", graph[0]))
    turned = graph.add(UnaryOp("exp", graph.add(TransposeOp(x, [1, 0]))))
    assert any("store its elements in another order" in each.reason for each in reasons(graph, x, turned))


def test_integers_do_not_join_floats():
    graph = Graph(random(40, 50))
    x = graph.add(UnaryOp("tanh", graph[0]))
    positive = graph.add(BinaryOp("gt", x, graph.constant(np.float32(0))))
    assert any("would not be stored in vectors" in each.reason for each in reasons(graph, x, positive))


def test_prologues_are_judged_by_their_cost():
    """A clamp is repeated in two kernels, an exponential is not; a tile of 64 columns repeats nothing on a GPU."""
    for kind, fused in (("relu", True), ("gelu", False)):
        graph = Graph(random(64, 64))
        x = graph.add(UnaryOp(kind, graph.add(TransposeOp(graph[0], [1, 0]))))
        sums = [graph.add(ReductionOp("add", x, [dim], keep=False)) for dim in (0, 1)]
        decisions = [each for each in reasons(graph, *sums) if each.reason != "the result leaves the function"]
        assert [each.fused for each in decisions] == [fused, fused]
        assert fused or all("2 times in 2 kernels, which costs more" in each.reason for each in decisions)


def test_tensor_cores_take_only_moved_data():
    graph = Graph(random(128, 128).astype(np.float16), random(128, 128).astype(np.float16))
    x = graph.add(UnaryOp("relu", graph[0]))
    product = graph.add(MatmulOp(x, graph.add(TransposeOp(graph[1], [1, 0]))))
    found = {each.reason: each.fused for each in reasons(graph, product, target="sm_80")}
    assert found["a prologue that computes would make asynchronous copies wait"] is False
    assert found["as a prologue"] is True
