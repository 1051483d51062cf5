"""Kernels for tensor cores in the words of tiles: a product, attention, and a fused operator of one's own.

    python examples/own_tiles.py

It registers the three templates, compiles a model for each, and compares the results of the emulator of a GPU with
NumPy's in float64. `docs/tiles.md` explains the words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf, prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType, f16, f32
from xdsl.ir import Operation, SSAValue

import treadle
from treadle import ir
from treadle.dialects.graph import AttentionOp, ComputeOp, MatmulOp
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of, widened
from treadle.dialects.graph.elementwise import convert
from treadle.dialects.loop import KernelOp
from treadle.scheduling import (
    Anchor,
    Choice,
    Choices,
    Index,
    Knob,
    Region,
    Template,
    TileBuilder,
    TileLayout,
    check_limits,
    kernel_builder,
    number,
    pair,
    pipelined,
    register_template,
    repeat,
    spatial,
    staged_bytes,
)
from treadle.target import Target

Arrays = Mapping[str, NDArray[np.float16]]


class TensorCores(Template):
    """What the three have in common: 16-bit floats, and the first value of each knob as the default."""

    kind: ClassVar[str] = "cuda"
    least_capability: ClassVar[int] = 80

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return {knob.name: knob.values[0] for knob in self.knobs}


class TileProduct(TensorCores):
    """C = A * B: four warps share a tile of C, and tiles of A and B come `stages` - 1 steps ahead."""

    name: ClassVar[str] = "example_tile_product"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("block", ((64, 64), (128, 64), (128, 128)), "rows and columns of a block's tile of C"),
        Knob("stages", (3, 2, 4), "tiles of A and B in shared memory"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and anchor.type.get_element_type() == f16 and len(anchor.shape) == 2

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        (rows, columns), stages = pair(choices, "block"), number(choices, "stages")
        used = stages * 2 * 32 * (rows + columns) + staged_bytes(128, columns // 2, 2)
        check_limits(self.name, [("bytes of shared memory", used, target.shared_per_block)], target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        (m, n), k, depth = anchor.shape, anchor.reduction_extent, 32
        (rows, columns), stages, warps = pair(choices, "block"), number(choices, "stages"), spatial(2, 2)
        blocks = spatial(ceil(m / rows), ceil(n / columns))
        b = kernel_builder([anchor.a, anchor.b], anchor.type)
        t = TileBuilder(b, 128)
        i, j = (at * extent for at, extent in zip(blocks.task(b.block, []), (rows, columns), strict=True))
        tile_a = t.shared("tile_a", TileLayout(rows, depth, 2), f16, stages)
        tile_b = t.shared("tile_b", TileLayout(depth, columns, 2, along_k=False), f16, stages)
        own = rows // 2, columns // 2
        c = t.fragment("c", f32, own, tuple(at * e for at, e in zip(warps.task(t.warp, []), own, strict=True)))

        def start(step: Index, stage: Index) -> None:
            term = step * depth
            t.copy(Region.of(b, b.inputs[0], (i, term), (m, k), (rows, depth)), tile_a[stage])
            t.copy(Region.of(b, b.inputs[1], (term, j), (k, n), (depth, columns)), tile_b[stage])

        pipelined(b, "step", ceil(k / depth), stages, start, lambda _, stage: t.gemm(tile_a[stage], tile_b[stage], c))
        t.store(c, Region.of(b, b.output, (i, j), (m, n), (rows, columns)))
        return b.kernel(name, [anchor.a, anchor.b], anchor.type, blocks.workers, 128, f"{rows} x {columns} of C")


class TileAttention(TensorCores):
    """softmax(Q * K^T * scale) * V: a block has 64 queries of a head, a warp 16, and keys come a tile at a time.

    Source: Dao, "FlashAttention-2", ICLR 2024, algorithm 1; its weights are rounded to f16 for the second product.
    """

    name: ClassVar[str] = "example_tile_attention"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("keys", (64, 32), "keys and values of a tile"),
        Knob("stages", (2, 3), "tiles of keys and values in shared memory"),
    )

    def fits(self, anchor: Anchor) -> bool:
        if not isinstance(anchor, AttentionOp) or anchor.type.get_element_type() != f16 or len(anchor.operands) > 3:
            return False
        plain = not anchor.causal.value.data and not anchor.guard.value.data and anchor.group_size == 1
        return plain and max(_columns(anchor.q), anchor.shape[-1]) <= 128

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        assert isinstance(anchor, AttentionOp)
        size, width = _whole(_columns(anchor.q)), _whole(anchor.shape[-1])
        tiles = number(choices, "stages") * number(choices, "keys") * (size + width)
        used = 2 * (64 * size + tiles) + staged_bytes(128, width, 2)
        check_limits(self.name, [("bytes of shared memory", used, target.shared_per_block)], target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, AttentionOp)
        (*batch, m, n), size, width = anchor.scores_shape, _columns(anchor.q), anchor.shape[-1]
        rows, keys, stages = 64, number(choices, "keys"), number(choices, "stages")
        b = kernel_builder(list(anchor.operands), anchor.type)
        t, parts = TileBuilder(b, 128), ceil(m / rows)
        first, head = (b.block % parts) * rows, (b.block // parts).delinearize(batch) if batch else []
        tile_q = t.shared("tile_q", TileLayout(rows, _whole(size), 2), f16)
        tile_k = t.shared("tile_k", TileLayout(keys, _whole(size), 2), f16, stages)
        tile_v = t.shared("tile_v", TileLayout(keys, _whole(width), 2, along_k=False), f16, stages)
        own = t.warp * 16
        result = t.fragment("result", f32, (16, _whole(width)), (own, 0))
        largest, total, shrink = (b.alloc(word, [1, 2], f32) for word in ("largest", "total", "shrink"))
        for registers, value in ((largest, -inf), (total, 0.0)):
            with b.loop("h", 2, unroll=True) as h:
                b.store(b.constant(value, f32), registers, [0, h])

        def lines(buffer: SSAValue, line: Index, extents: tuple[int, int], layout: TileLayout) -> Region:
            return Region.of(b, buffer, (line, b.index(0)), extents, (layout.rows, layout.columns), head)

        def start(step: Index, stage: Index) -> None:
            t.copy(lines(b.inputs[1], step * keys, (n, size), tile_k.layout), tile_k[stage])
            t.copy(lines(b.inputs[2], step * keys, (n, width), tile_v.layout), tile_v[stage])

        def step(step: Index, stage: Index) -> None:
            scores = t.fragment("scores", f32, (16, keys), (own, 0))
            t.gemm(t.operand("queries", tile_q, 16, own), tile_k[stage], scores)

            def scaled(r: Index, p: Index, q: Index, h: Index, c: Index) -> Scalar:
                exists = step * keys + scores.column(p, q, c) < n
                score = b.mul(scores.load(r, p, q, h, c), b.constant(anchor.scale.value.data, f32))
                return b.select(exists, score, b.constant(-inf, f32))

            scores.set(scaled)
            with b.tasks(["r", "h"], repeat(1, 2), unroll=True) as row:
                old = b.load(largest, row)
                new = t.fold_row("max", scores.load, scores, row, old)
                b.store(new, largest, row)
                b.store(b.math("exp", b.binary("sub", old, new)), shrink, row)
            scores.set(lambda *at: b.math("exp", b.binary("sub", scores.load(*at), b.load(largest, [at[0], at[3]]))))
            with b.tasks(["r", "h"], repeat(1, 2), unroll=True) as row:
                sums = t.fold_row("add", scores.load, scores, row, b.constant(0.0, f32))
                b.store(b.add(b.mul(b.load(total, row), b.load(shrink, row)), sums), total, row)
            result.scale_rows(shrink)
            t.gemm(t.as_operand(scores.load, scores, f16), tile_v[stage], result)

        t.copy(lines(b.inputs[0], first, (m, size), tile_q.layout), tile_q)
        b.commit()
        pipelined(b, "step", ceil(n / keys), stages, start, step)
        with b.tasks(["r", "h"], repeat(1, 2), unroll=True) as row:
            b.store(b.binary("div", b.constant(1.0, f32), b.load(total, row)), shrink, row)
        result.scale_rows(shrink)
        t.store(result, lines(b.output, first, (m, width), TileLayout(rows, _whole(width), 2)))
        return b.kernel(name, list(anchor.operands), anchor.type, parts * prod(batch), 128, f"{rows} queries of a head")


def gated(x: SSAValue, w: SSAValue, v: SSAValue) -> ComputeOp:
    """silu(x @ w) * (x @ v), as its definition: every target computes it, with or without a template of its own."""
    terms, columns = _columns(x), _columns(w)

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        def product(weights: SSAValue) -> Scalar:
            def term(inner: DefinitionBuilder, k: Sequence[Scalar]) -> Scalar:
                left, right = inner.at(x, [index[0], k[0]]), inner.at(weights, [k[0], index[1]])
                return inner.mul(widened(inner, left), widened(inner, right))

            return b.reduce("add", [terms], term)

        return convert(b, _gate(b, product(w), product(v)), f16)

    assert isinstance(x.type, TensorType)
    return compute_of(TensorType(f16, [x.type.get_shape()[0], columns]), element, "gated")


def _gate(b: DefinitionBuilder, gate: Scalar, value: Scalar) -> Scalar:
    """silu(gate) * value."""
    power = b.math("exp", b.binary("sub", b.constant(0.0, f32), gate))
    return b.mul(b.binary("div", gate, b.add(b.constant(1.0, f32), power)), value)


class TileGated(TensorCores):
    """Both products of `gated` at once: one load of x serves both, and neither of them is written."""

    name: ClassVar[str] = "example_tile_gated"
    knobs: ClassVar[tuple[Knob, ...]] = (
        Knob("block", ((64, 64), (128, 64)), "rows and columns of a block's tile"),
        Knob("stages", (3, 2), "tiles of the three matrices in shared memory"),
    )

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, ComputeOp) and anchor.operators is not None and anchor.operators.data == "gated"

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, ComputeOp)
        tensors = anchor.tensors()
        (m, n), k, depth = anchor.shape, _columns(tensors[0]), 32
        (rows, columns), stages = pair(choices, "block"), number(choices, "stages")
        blocks, warps, own = spatial(ceil(m / rows), ceil(n / columns)), spatial(2, 2), (rows // 2, columns // 2)
        b = kernel_builder(tensors, anchor.type)
        t = TileBuilder(b, 128)
        i, j = (at * extent for at, extent in zip(blocks.task(b.block, []), (rows, columns), strict=True))
        tile_x = t.shared("tile_x", TileLayout(rows, depth, 2), f16, stages)
        tiles = [t.shared(word, TileLayout(depth, columns, 2, along_k=False), f16, stages) for word in ("w", "v")]
        first = tuple(at * extent for at, extent in zip(warps.task(t.warp, []), own, strict=True))
        gate, value = (t.fragment(word, f32, own, first) for word in ("gate", "value"))

        def start(step: Index, stage: Index) -> None:
            term = step * depth
            t.copy(Region.of(b, b.inputs[0], (i, term), (m, k), (rows, depth)), tile_x[stage])
            for buffer, tile in zip(b.inputs[1:], tiles, strict=True):
                t.copy(Region.of(b, buffer, (term, j), (k, n), (depth, columns)), tile[stage])

        def step(_: Index, stage: Index) -> None:
            for tile, sums in zip(tiles, (gate, value), strict=True):
                t.gemm(tile_x[stage], tile[stage], sums)

        pipelined(b, "step", ceil(k / depth), stages, start, step)
        gate.set(lambda *at: _gate(b, gate.load(*at), value.load(*at)))
        t.store(gate, Region.of(b, b.output, (i, j), (m, n), (rows, columns)))
        return b.kernel(name, tensors, anchor.type, blocks.workers, 128, f"{rows} x {columns} of a gated product")


def _columns(matrix: SSAValue) -> int:
    assert isinstance(matrix.type, TensorType)
    return matrix.type.get_shape()[-1]


def _whole(extent: int) -> int:
    """With the zeros that fill the last product on tensor cores."""
    return -(-extent // 16) * 16


def models() -> dict[str, tuple[ModuleOp, Arrays, NDArray[np.float64]]]:
    """By template a model, its inputs, and its result in float64."""
    generator = np.random.default_rng(0)

    def arrays(**shapes: tuple[int, ...]) -> Arrays:
        return {word: generator.standard_normal(shape).astype(np.float16) for word, shape in shapes.items()}

    def model(inputs: Arrays, operator: type[MatmulOp] | Callable[..., Operation]) -> ModuleOp:
        entry = ir.Entry({word: ir.tensor_type("float16", array.shape) for word, array in inputs.items()})
        return entry.module({"y": entry.add(operator(*(entry[word] for word in inputs)))})

    product = arrays(a=(100, 200), b=(200, 72))
    a, b = (array.astype(np.float64) for array in product.values())
    heads = arrays(q=(2, 70, 48), k=(2, 90, 48), v=(2, 90, 40))
    gates = arrays(x=(100, 64), w=(64, 80), v=(64, 80))
    q, k, v = (array.astype(np.float64) for array in heads.values())
    weights = np.exp(q @ k.swapaxes(1, 2) / 8)
    x, w, u = (array.astype(np.float64) for array in gates.values())
    return {
        "example_tile_product": (
            model(product, MatmulOp),
            product,
            a @ b,
        ),
        "example_tile_attention": (
            model(heads, lambda *x: AttentionOp(*x, scale=1 / 8)),
            heads,
            weights / weights.sum(-1, keepdims=True) @ v,
        ),
        "example_tile_gated": (model(gates, gated), gates, (x @ w) / (1 + np.exp(-(x @ w))) * (x @ u)),
    }


def main() -> None:
    """Compiles the three for the emulator, and prints the decisions and how far the results are from NumPy's."""
    with (
        register_template(TileProduct, before="matmul_mma"),
        register_template(TileAttention, before="attention_mma"),
        register_template(TileGated, before="row_cuda"),
    ):
        for module, inputs, expected in models().values():
            scheduled = module.clone()
            ir.lower(scheduled, "sm_80", to="schedule")
            print(*re.findall("#schedule.use<.*?>", ir.print_text(scheduled)))
            with treadle.compile(module, "sm_80", device="emulator") as model:
                (y,) = model(**inputs)
            error = np.abs(y.astype(np.float64) - expected).max() / np.abs(expected).max()
            print(f"largest difference over largest magnitude: {error:.1e}")


if __name__ == "__main__":
    main()
