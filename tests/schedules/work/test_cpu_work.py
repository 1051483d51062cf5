"""Work counted on kernels: exact for a product by hand, and footprints as enumeration finds them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, strategies
from xdsl.ir import Operation
from xdsl.parser import Parser

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, SoftmaxOp, UnaryOp
from treadle.dialects.loop import FuncOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.schedules.work.cpu_work import LINE, Work, touched_bytes
from treadle.schedules.work.lowered import count_work
from treadle.target import Target

CPU = Target.parse("cpu")


def work_of(graph: Graph, operator: Operation, template: str, workers: int = 1, **choices: Choice) -> Work:
    """The work of one operator's kernel."""
    context, module = treadle_context(), graph.module(graph.add(operator))
    lower(context, module, CPU, after="graph", to="fuse")
    for fused in [op for op in module.walk() if isinstance(op, FusedOp)]:
        fused.schedule = UseAttr.get(template, choices)
    lower(context, module, CPU, after="schedule", to="loops")
    (kernel,) = [op for op in module.walk() if isinstance(op, FuncOp)]
    return count_work(kernel, replace(CPU, cores=workers))


def product(m: int, k: int, n: int, rows: int, chunk: int, *, pack: bool, passes: int = 1) -> Work:
    """Of `matmul_cpu`."""
    graph = Graph(np.zeros((m, k), np.float32), np.zeros((k, n), np.float32))
    knobs = {"rows": rows, "vectors": 2, "chunk": chunk, "pack": pack, "passes": passes}
    return work_of(graph, MatmulOp(graph[0], graph[1]), "matmul_cpu", **knobs)


def test_a_product_is_counted_as_by_hand() -> None:
    """Tiles of 8 rows by two vectors of 16: per step of k 16 fused operations, 8 broadcasts and 2 vectors of B."""
    work = product(64, 96, 64, rows=8, chunk=32, pack=False)
    assert (work.blocks, work.threads) == (4, 1)
    inner = max(work.bodies, key=lambda body: body.executions)
    assert (inner.executions, inner.arithmetic, inner.loads, inner.stores) == (4 * 96, 16, 10, 0)
    assert inner.chain == 1
    assert sum(body.executions * body.stores for body in work.bodies) == 4 * 8 * 2


def test_what_is_moved_shrinks_as_caches_grow() -> None:
    work = product(64, 96, 64, rows=8, chunk=32, pack=False)
    capacities = [step.capacity for step in work.reuse]
    moved = [work.traffic(capacity) for capacity in capacities]
    assert capacities == sorted(capacities)
    assert moved == sorted(moved, reverse=True)
    # All of A, B and C, once each, at least.
    assert moved[-1] == 4 * (64 * 96 + 96 * 64 + 64 * 64)


def test_a_panel_that_stays_is_read_once() -> None:
    """B is 512 x 512 of 4 bytes, 1 MiB: its panel of 32 columns, 64 KiB, is read for each tile of rows again."""
    work = product(256, 512, 512, rows=8, chunk=256, pack=False)
    panel = 512 * 32 * 4
    tile = 4 * (8 * 512 + 8 * 32)
    assert work.traffic(panel + 2 * tile) < work.traffic(panel // 2) / 4


def test_passes_read_a_panel_once_into_a_cache_that_holds_a_part() -> None:
    """B is 1024 x 512; its panel of 32 columns is 128 KiB, a part of it in four passes 32 KiB."""
    whole, parts = (product(256, 1024, 512, rows=8, chunk=256, pack=False, passes=passes) for passes in (1, 4))
    capacity = 3 * 32 * 1024
    assert parts.traffic(capacity) < whole.traffic(capacity) / 3
    tensors, sums = 4 * (256 * 1024 + 1024 * 512 + 256 * 512), 4 * 256 * 32
    assert [work.traffic(1 << 30) for work in (whole, parts)] == [tensors, tensors + sums]


def test_functions_cost_what_the_table_says() -> None:
    graph = Graph(np.zeros((64, 64), np.float32))
    plain = work_of(graph, UnaryOp("relu", graph[0]), "generic_cpu", run=4096, rows=1)
    graph = Graph(np.zeros((64, 64), np.float32))
    costly = work_of(graph, UnaryOp("tanh", graph[0]), "generic_cpu", run=4096, rows=1)
    assert sum(b.executions * b.arithmetic for b in costly.bodies) > 9 * sum(
        b.executions * b.arithmetic for b in plain.bodies
    )


def test_rows_are_counted_per_block() -> None:
    graph = Graph(np.zeros((64, 32), np.float32))
    choices: dict[str, Choice] = {"across": "columns", "lanes": 32, "rows": 4, "cache_row": True}
    work = work_of(graph, SoftmaxOp(graph[0], 1), "row_cpu", workers=2, **choices)
    assert (work.blocks, work.share) == (16, 8)
    assert sum(body.executions * body.stores for body in work.bodies) == 4 * 2


@given(
    strategies.lists(
        strategies.tuples(strategies.integers(1, 6), strategies.sampled_from([0, 4, 12, 64, 256, 4096])), max_size=3
    ),
    strategies.sampled_from([4, 64]),
)
def test_lines_are_those_that_enumeration_finds(digits: list[tuple[int, int]], width: int) -> None:
    """For strides that nest, as those of arrays do; lines are counted from where the access begins."""
    digits = [(trips, stride) for trips, stride in digits if trips > 1 and stride]
    reach = width
    for trips, stride in sorted(digits, key=lambda digit: digit[1]):
        if stride < reach:
            return
        reach = stride * (trips - 1) + reach
    starts = [
        sum(i * s for i, (_, s) in zip(at, digits, strict=True)) for at in itertools.product(*map(_range, digits))
    ]
    lines = {byte // LINE for start in starts for byte in range(start, start + width, 4)}
    found = touched_bytes(width, digits) / LINE
    assert len(lines) <= found * 1.01 or len(lines) - found < 1
    assert found <= max(2 * len(lines), prod(trips for trips, _ in digits))


def _range(digit: tuple[int, int]) -> range:
    return range(digit[0])


@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 5, 3), (7, 1, 33)])
def test_small_products_have_work(extents: tuple[int, int, int]) -> None:
    work = product(*extents, rows=1, chunk=1, pack=False)
    assert work.blocks >= 1
    assert work.traffic(1 << 30) > 0


@pytest.mark.parametrize(("stride", "loads"), [(2, 2), (3, 16)])
def test_every_second_element_is_two_loads(stride: int, loads: int) -> None:
    """And a shuffle; other strides are a load for each lane."""
    text = f"""loop.func @kernel(%A : memref<100xf32>, %C : memref<16xf32>) grid(%b in 1) threads(%t in 1) {{
      %c0 = arith.constant 0 : index
      %v = loop.strided_load %A[%c0] by {stride} : memref<100xf32>, vector<16xf32>
      vector.store %v, %C[%c0] : memref<16xf32>, vector<16xf32>
    }}"""
    (kernel,) = [op for op in Parser(treadle_context(), text).parse_module().walk() if isinstance(op, FuncOp)]
    (body,) = count_work(kernel, CPU).bodies
    assert (body.loads, body.stores) == (loads, 1)


def test_a_load_that_a_branch_guards_counts_as_a_masked_one() -> None:
    """However unlikely it is."""
    text = """loop.func @kernel(%A : memref<64xf32>, %C : memref<64xf32>) grid(%b in 4) threads(%t in 1) {
      %c1 = arith.constant 1 : index
      %c16 = arith.constant 16 : index
      %at = arith.muli %b, %c16 : index
      %pad = arith.constant dense<9.0> : vector<16xf32>
      %first = arith.cmpi slt, %b, %c1 : index
      %v = scf.if %first -> (vector<16xf32>) {
        %x = vector.load %A[%at] : memref<64xf32>, vector<16xf32>
        scf.yield %x : vector<16xf32>
      } else {
        scf.yield %pad : vector<16xf32>
      }
      vector.store %v, %C[%at] : memref<64xf32>, vector<16xf32>
    }"""
    (kernel,) = [op for op in Parser(treadle_context(), text).parse_module().walk() if isinstance(op, FuncOp)]
    (body,) = count_work(kernel, CPU).bodies
    assert (body.loads, body.stores, body.masked) == (1, 1, 1)
