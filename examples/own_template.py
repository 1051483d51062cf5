"""Templates of one's own for matrix products, one for CPUs and one for GPUs, with task mappings written in Python.

    python examples/own_template.py

It registers them, compiles a product with a bias and a relu, and compares the results of this machine's CPU and of the
emulator of a GPU with NumPy's. `docs/embedding.md` says what caches and searches know of such templates.
"""

from __future__ import annotations

import re
from math import ceil
from typing import ClassVar

import numpy as np
from xdsl.dialects.builtin import ModuleOp, f32

import treadle
from treadle import ir
from treadle.dialects.graph import BinaryOp, MatmulOp, UnaryOp
from treadle.dialects.loop import KernelOp
from treadle.scheduling import (
    Anchor,
    Choice,
    Choices,
    Knob,
    MemorySpace,
    Template,
    check_limits,
    kernel_builder,
    register_template,
    repeat,
    spatial,
)
from treadle.target import Target


class Product(Template):
    """What both have in common: products of two matrices of f32, and the second value of `tile` as the default."""

    def fits(self, anchor: Anchor) -> bool:
        return isinstance(anchor, MatmulOp) and anchor.type.get_element_type() == f32 and len(anchor.shape) == 2

    def default(self, anchor: Anchor, target: Target) -> dict[str, Choice]:
        return {"tile": self.knobs[0].values[1]}


class ProductOnCpu(Product):
    """A block computes a tile of C, whose columns are vectors."""

    name: ClassVar[str] = "example_product_cpu"
    kind: ClassVar[str] = "cpu"
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("tile", ((1, 64), (4, 32), (8, 32)), "rows and columns of a block"),)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        (m, n), (rows, columns) = anchor.shape, _pair(choices)
        blocks, tile = spatial(ceil(m / rows), ceil(n / columns)), repeat(rows, columns)
        b = kernel_builder([anchor.a, anchor.b], anchor.type)
        acc, zero = b.alloc("acc", [rows, columns], f32), b.constant(0.0, f32)
        with b.tasks(["i", "j"], tile, vector=True) as (i, j):
            b.store(zero, acc, [i, j])
        with (
            b.loop("k", anchor.reduction_extent) as k,
            b.tasks(["i", "j"], blocks * tile, b.block, vector=True) as (i, j),
        ):
            left, right = b.load(b.inputs[0], [i, k], i < m, zero), b.load(b.inputs[1], [k, j], j < n, zero)
            own = [i % rows, j % columns]
            b.store(b.add(b.load(acc, own), b.mul(left, right)), acc, own)
        with b.tasks(["i", "j"], blocks * tile, b.block, vector=True) as (i, j):
            b.store(b.load(acc, [i % rows, j % columns]), b.output, [i, j], (i < m) & (j < n))
        return b.kernel(name, [anchor.a, anchor.b], anchor.type, blocks.workers, 1, f"{rows} x {columns} of C")


class ProductOnGpu(Product):
    """256 threads compute a tile of C in registers, from tiles of A and B in shared memory.

    Source: Hidet (ASPLOS 2023), figures 5 and 8, with one buffer instead of two.
    """

    name: ClassVar[str] = "example_product_gpu"
    kind: ClassVar[str] = "cuda"
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("tile", ((2, 2), (4, 4), (8, 4)), "rows and columns of a thread"),)

    def limits(self, anchor: Anchor, choices: Choices, target: Target) -> None:
        shared = ("bytes of shared memory", 4 * 8 * 16 * sum(_pair(choices)), target.shared_per_block_static)
        check_limits(self.name, [("threads", 256, target.max_threads_per_block), shared], target)

    def build(self, anchor: Anchor, choices: Choices, target: Target, name: str) -> KernelOp:
        assert isinstance(anchor, MatmulOp)
        (m, n), last, (high, wide) = anchor.shape, anchor.reduction_extent, _pair(choices)
        threads = spatial(16, 16) * repeat(high, wide)
        rows, columns = threads.shape
        blocks = spatial(ceil(m / rows), ceil(n / columns))
        b = kernel_builder([anchor.a, anchor.b], anchor.type)
        a_tile = b.alloc("a_tile", [rows, 8], f32, MemorySpace.SHARED)
        b_tile = b.alloc("b_tile", [8, columns], f32, MemorySpace.SHARED)
        acc, zero = b.alloc("acc", [high, wide], f32), b.constant(0.0, f32)
        with b.tasks(["i", "j"], repeat(high, wide), unroll=True) as (i, j):
            b.store(zero, acc, [i, j])
        with b.tasks(["bi", "bj"], blocks, b.block) as (bi, bj), b.loop("step", ceil(last / 8)) as step:
            with b.tasks(["i", "k"], repeat(rows // 32, 1) * spatial(32, 8), b.thread, unroll=True) as (i, k):
                row, term = bi * rows + i, step * 8 + k
                b.store(b.load(b.inputs[0], [row, term], (row < m) & (term < last), zero), a_tile, [i, k])
            with b.tasks(["k", "j"], repeat(1, columns // 32) * spatial(8, 32), b.thread, unroll=True) as (k, j):
                term, column = step * 8 + k, bj * columns + j
                b.store(b.load(b.inputs[1], [term, column], (term < last) & (column < n), zero), b_tile, [k, j])
            b.barrier()
            with b.loop("k", 8, unroll=True) as k, b.tasks(["i", "j"], threads, b.thread, unroll=True) as (i, j):
                product, own = b.mul(b.load(a_tile, [i, k]), b.load(b_tile, [k, j])), [i % high, j % wide]
                b.store(b.add(b.load(acc, own), product), acc, own)
            b.barrier()
        with (
            b.tasks(["bi", "bj"], blocks, b.block) as (bi, bj),
            b.tasks(["i", "j"], threads, b.thread, unroll=True) as (i, j),
        ):
            row, column = bi * rows + i, bj * columns + j
            b.store(b.load(acc, [i % high, j % wide]), b.output, [row, column], (row < m) & (column < n))
        said = f"{rows} x {columns} of C"
        return b.kernel(name, [anchor.a, anchor.b], anchor.type, blocks.workers, threads.workers, said)


def _pair(choices: Choices) -> tuple[int, int]:
    tile = choices["tile"]
    assert isinstance(tile, tuple)
    return tile[0], tile[1]


def layer(m: int, n: int, k: int) -> ModuleOp:
    """relu(x @ w + b)."""
    shapes = {"x": (m, k), "w": (k, n), "b": (n,)}
    entry = ir.Entry({name: ir.tensor_type("float32", shape) for name, shape in shapes.items()})
    shifted = entry.add(BinaryOp("add", entry.add(MatmulOp(entry["x"], entry["w"])), entry["b"]))
    return entry.module({"y": entry.add(UnaryOp("relu", shifted))})


def main() -> None:
    """Compiles the layer for both, and prints the decisions and how far the results are from NumPy's."""
    m, n, k = 100, 70, 40
    generator = np.random.default_rng(0)
    x, w, bias = (generator.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n), (n,)))
    with register_template(ProductOnCpu, before="matmul_cpu"), register_template(ProductOnGpu, before="matmul_simt"):
        for target in ("cpu", "sm_80"):
            scheduled = layer(m, n, k)
            ir.lower(scheduled, target, to="schedule")
            print(*re.findall("#schedule.use<.*?>", ir.print_text(scheduled)))
            with treadle.compile(layer(m, n, k), target, device=None if target == "cpu" else "emulator") as model:
                (y,) = model(x=x, w=w, b=bias)
            print(f"{target}: largest difference {np.abs(y - np.maximum(x @ w + bias, 0)).max():.1e}")


if __name__ == "__main__":
    main()
