"""Groups as programs of their own: they compute what the group does, and equal groups have equal names."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, StringAttr

from tests.helpers.graphs import Graph
from treadle.backends.reference.run_module import run_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, FusedOp, MatmulOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import group_of, group_program
from treadle.target import Target

CPU = Target.parse("cpu")


def fused(graph: Graph, module: ModuleOp) -> list[FusedOp]:
    """The groups of a program, in order."""
    del graph
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    return [op for op in module.walk() if isinstance(op, FusedOp)]


def layers(rows: int, *, swapped: bool = False, activation: str = "relu", constant: bool = True) -> list[FusedOp]:
    """relu(relu(x w + b) v + c), whose two layers are equal groups; `swapped` adds the bias from the other side."""
    generator = np.random.default_rng(0)
    x, *others = (generator.standard_normal(s).astype(np.float32) for s in ((rows, 8), (8, 8), (8,), (8, 8), (8,)))
    graph = Graph(x) if constant else Graph(x, *others)
    value = graph[0]
    for n in range(2):
        w, b = (graph.constant(others[2 * n + k]) if constant else graph[1 + 2 * n + k] for k in range(2))
        product = graph.add(MatmulOp(value, w))
        biased = BinaryOp("add", b, product) if swapped else BinaryOp("add", product, b)
        value = graph.add(UnaryOp(activation, graph.add(biased)))
    return fused(graph, graph.module(value))


def test_equal_groups_have_one_digest() -> None:
    first, second = (group_program(group) for group in layers(4))
    assert first.label != second.label
    assert first.digest() == second.digest()


@pytest.mark.parametrize("other", [{"rows": 5}, {"swapped": True}, {"activation": "tanh"}, {"constant": False}])
def test_other_groups_have_other_digests(other: dict[str, object]) -> None:
    usual = group_program(layers(4)[0]).digest()
    assert group_program(layers(**{"rows": 4, **other})[0]).digest() != usual  # pyright: ignore[reportArgumentType]


def test_names_and_decisions_do_not_count() -> None:
    group = layers(4)[0]
    usual = group_program(group).digest()
    group.label = StringAttr("another")
    for op in group.body.walk():
        for result in op.results:
            result.name_hint = "renamed"
    assert group_program(group).digest() == usual


def test_constants_are_marked() -> None:
    program = group_program(layers(4)[0])
    types = [arg.type for arg in program.module.body.block.first_op.regions[0].block.args]  # pyright: ignore
    assert [str(types[n]) for n in program.constants] == ["tensor<8x8xf32>", "tensor<8xf32>"] or len(types) == 3
    assert len(program.constants) == 2
    assert group_program(layers(4, constant=False)[0]).constants == ()


def test_the_program_computes_what_the_group_computes() -> None:
    generator = np.random.default_rng(1)
    x, w, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 8), (8,)))
    graph = Graph(x, w, b)
    biased = graph.add(BinaryOp("add", graph.add(MatmulOp(graph[0], graph[1])), graph[2]))
    (group,) = fused(graph, graph.module(graph.add(UnaryOp("relu", biased))))
    program = group_program(group)
    program.module.verify()
    shapes = {array.shape: array for array in (x, w, b)}
    main = program.module.body.block.first_op
    arguments = [shapes[arg.type.get_shape()] for arg in main.regions[0].block.args]  # pyright: ignore
    (result,) = run_module(program.module, arguments)
    np.testing.assert_allclose(result, np.maximum(x.astype(np.float64) @ w + b, 0), rtol=1e-5, atol=1e-5)


def test_a_module_of_two_groups_is_no_program() -> None:
    group = layers(4)[0]
    module = group.parent_op().parent_op()  # pyright: ignore[reportOptionalMemberAccess]
    assert isinstance(module, ModuleOp)
    with pytest.raises(TreadleError, match=r"the program has 2 groups; accepted: one graph\.fused"):
        group_of(module)
