"""A transformer's layer, written as PyTorch exports it: which kernels it becomes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, name_arguments, random
from treadle.backends.reference import evaluate_module
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    AttentionOp,
    BinaryOp,
    ComputeOp,
    FusedOp,
    LayerNormOp,
    MatmulOp,
    ReshapeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
    WholeOp,
)
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.definition_analysis import moves_data
from treadle.passes.graph.rewriting import shape_of
from treadle.target import Target
from treadle.target.options import CompileOptions, Precision

TOKENS, WIDTH, HEADS = 6, 16, 2


class Layer(Graph):
    """Writes one layer over `[1, TOKENS, WIDTH]`, its input and a mask."""

    def __init__(self) -> None:
        super().__init__(random(1, TOKENS, WIDTH), np.zeros((1, 1, 1, TOKENS), np.float32))
        self.seed = 0
        self.results: list[SSAValue] = []

    def weight(self, *shape: int) -> SSAValue:
        self.seed += 1
        return self.constant(random(*shape, seed=self.seed) / np.float32(np.sqrt(shape[0])))

    def binary(self, kind: str, a: SSAValue, b: SSAValue | float) -> SSAValue:
        return self.add(BinaryOp(kind, a, b if isinstance(b, SSAValue) else self.constant(np.float32(b))))

    def linear(self, x: SSAValue, width: int) -> SSAValue:
        flat = self.add(ReshapeOp(x, [TOKENS, shape_of(x)[-1]]))
        product = self.add(MatmulOp(flat, self.weight(shape_of(x)[-1], width)))
        return self.binary("add", self.add(ReshapeOp(product, [1, TOKENS, width])), self.weight(width))

    def norm(self, x: SSAValue) -> SSAValue:
        return self.add(LayerNormOp(x, self.weight(WIDTH), self.weight(WIDTH), 2, 1e-5))

    def heads(self, x: SSAValue) -> SSAValue:
        apart = self.add(ReshapeOp(x, [1, TOKENS, HEADS, WIDTH // HEADS]))
        return self.add(TransposeOp(apart, [0, 2, 1, 3]))

    def attention(self, q: SSAValue, k: SSAValue, v: SSAValue, mask: SSAValue) -> SSAValue:
        """With the square root of the scale at queries and keys, and a guard against rows without any score."""
        size = WIDTH // HEADS
        joined = self.add(ReshapeOp(k, [HEADS, TOKENS, size]))
        turned = self.add(ReshapeOp(self.add(TransposeOp(joined, [0, 2, 1])), [1, HEADS, size, TOKENS]))
        half = float(size) ** -0.25
        scores = self.add(MatmulOp(self.binary("mul", q, half), self.binary("mul", turned, half)))
        shares = self.add(SoftmaxOp(self.binary("add", scores, mask), 3))
        guarded = self.add(WhereOp(self.add(UnaryOp("isnan", shares)), self.constant(np.float32(0)), shares))
        product = self.add(TransposeOp(self.add(MatmulOp(guarded, v)), [0, 2, 1, 3]))
        return self.add(ReshapeOp(product, [1, TOKENS, WIDTH]))


def bert() -> Layer:
    """Three projections; the norm comes last."""
    g = Layer()
    q, k, v = (g.heads(g.linear(g[0], WIDTH)) for _ in range(3))
    x = g.norm(g.binary("add", g.linear(g.attention(q, k, v, g[1]), WIDTH), g[0]))
    y = g.linear(g.add(UnaryOp("gelu", g.linear(x, 4 * WIDTH))), WIDTH)
    g.results = [g.norm(g.binary("add", y, x))]
    return g


def gpt() -> Layer:
    """One projection that is split, a causal mask, the norm first, gelu by tanh written out."""
    g = Layer()
    joined = g.linear(g.norm(g[0]), 3 * WIDTH)
    starts = [[0, 0, n * WIDTH] for n in range(3)]
    parts = [g.add(SliceOp(joined, start, [1, TOKENS, WIDTH], [1, 1, 1])) for start in starts]
    lowest = np.finfo(np.float32).min
    mask = g.constant(np.where(np.tri(TOKENS, dtype=np.bool_), 0, lowest).astype(np.float32)[None, None])
    q, k, v = (g.heads(part) for part in parts)
    x = g.binary("add", g.linear(g.attention(q, k, v, mask), WIDTH), g[0])
    h = g.linear(g.norm(x), 4 * WIDTH)
    cube = g.binary("mul", g.binary("pow", h, 3.0), 0.044715)
    inner = g.binary("mul", g.binary("add", h, cube), 0.7978845608)
    gate = g.binary("add", g.add(UnaryOp("tanh", inner)), 1.0)
    y = g.linear(g.binary("mul", g.binary("mul", h, 0.5), gate), WIDTH)
    g.results = [g.binary("add", x, y)]
    return g


def lowered(graph: Layer, precision: Precision = "f32") -> ModuleOp:
    """The layer's groups, for a GPU."""
    module = graph.module(*graph.results)
    name_arguments(module, 2, 1)
    lower(treadle_context(), module, Target.parse("sm_80"), to="fuse", options=CompileOptions(precision))
    return module


def is_copy(group: FusedOp) -> bool:
    """Whether a kernel would only move data."""
    members = [op for op in group.body.block.ops if isinstance(op, ComputeOp | WholeOp)]
    return all(isinstance(op, ComputeOp) and moves_data(op) for op in members)


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize(("write", "gelu"), [(bert, "gelu"), (gpt, "gelu_tanh")])
def test_a_layer_is_four_products_and_attention(write: Callable[[], Layer], gelu: str, precision: Precision) -> None:
    """Queries, keys and values are one product; after attention, whose heads are its prologues, come three more."""
    module = lowered(write(), precision)
    groups = [op for op in module.walk() if isinstance(op, FusedOp)]
    products = [g.label.data for g in groups if any(isinstance(op, MatmulOp) for op in g.walk())]
    assert len(products) == 4
    assert sum(isinstance(op, AttentionOp) for op in module.walk()) == 1
    assert sum(label.endswith(gelu) for label in products) == 1
    assert not [g.label.data for g in groups if is_copy(g)]
    # A residual is added by the product that ends its branch.
    assert not [g.label.data for g in groups if g.label.data.startswith("add")]


@pytest.mark.parametrize("write", [bert, gpt])
def test_a_layer_keeps_its_values(write: Callable[[], Layer]) -> None:
    graph = write()
    module = graph.module(*graph.results)
    before = evaluate_module(module, graph.inputs)[0]
    name_arguments(module, 2, 1)
    lower(treadle_context(), module, Target.parse("sm_80"), to="fuse")
    after = evaluate_module(module, graph.inputs)[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * float(np.abs(before).max()))
