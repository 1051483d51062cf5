"""Sectors and banks from addresses; the default schedules' accesses are ideal for aligned shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import BinaryOp, MatmulOp, TransposeOp, UnaryOp
from treadle.dialects.loop import FuncOp, Space
from treadle.dialects.registry import treadle_context
from treadle.passes.loop.fetched_sectors import MemoryTransactions, bank_conflicts, memory_transactions, sectors
from treadle.target import Target

Build = Callable[[Graph], SSAValue]


@pytest.mark.parametrize(
    ("addresses", "width", "touched", "ideal"),
    [
        ([4 * t for t in range(32)], 4, 4, 4),
        ([4 * t + 4 for t in range(32)], 4, 5, 4),
        ([16 * t for t in range(32)], 16, 16, 16),
        ([16 * t for t in range(32)], 4, 16, 4),
        ([0] * 32, 4, 1, 1),
        ([4096 * t for t in range(32)], 4, 32, 4),
    ],
)
def test_sectors(addresses: Sequence[int], width: int, touched: int, ideal: int) -> None:
    assert sectors(addresses, width) == (touched, ideal)


@pytest.mark.parametrize(
    ("addresses", "width", "conflicts"),
    [
        ([4 * t for t in range(32)], 4, 0),
        ([8 * t for t in range(32)], 4, 1),
        ([128 * t for t in range(32)], 4, 31),
        ([132 * t for t in range(32)], 4, 0),
        ([0] * 32, 4, 0),
        ([16 * t for t in range(32)], 16, 0),
        # The eight lanes of each of four waves begin in the same bank.
        ([128 * t for t in range(32)], 16, 28),
        ([8 * t for t in range(32)], 8, 0),
        ([2 * t for t in range(32)], 2, 0),
    ],
)
def test_bank_conflicts(addresses: Sequence[int], width: int, conflicts: int) -> None:
    assert bank_conflicts(addresses, width) == conflicts


def _product(g: Graph) -> SSAValue:
    return g.add(MatmulOp(g[0], g[1]))


def _turned_product(g: Graph) -> SSAValue:
    a, b = (g.add(TransposeOp(g[n], [1, 0])) for n in (0, 1))
    return g.add(MatmulOp(a, b))


def _with_epilogue(g: Graph) -> SSAValue:
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", _product(g), g[2]))))


def _layout(*order: int) -> Build:
    return lambda g: g.add(TransposeOp(g[0], order))


def _pointwise(g: Graph) -> SSAValue:
    return g.add(UnaryOp("relu", g.add(BinaryOp("add", g[0], g[1]))))


ALIGNED: list[tuple[str, Build, tuple[tuple[int, ...], ...]]] = [
    *(
        (f"matmul {m} {k} {n}", _product, ((m, k), (k, n)))
        for m in (16, 128, 4096)
        for k, n in ((64, 1024), (64, 4096))
    ),
    *((f"turned {m}", _turned_product, ((64, m), (2048, 64))) for m in (16, 128, 4096)),
    ("batched matmul", _product, ((12, 128, 64), (12, 64, 128))),
    ("matmul with epilogue", _with_epilogue, ((256, 256), (256, 512), (512,))),
    ("channels last", _layout(0, 2, 3, 1), ((2, 64, 56, 56),)),
    ("channels first", _layout(0, 3, 1, 2), ((2, 56, 56, 64),)),
    ("heads", _layout(0, 2, 1, 3), ((2, 128, 12, 64),)),
    ("keys", _layout(0, 2, 3, 1), ((2, 128, 12, 64),)),
    ("pointwise", _pointwise, ((64, 1024), (1024,))),
]


def _accesses(build: Build, shapes: Sequence[tuple[int, ...]], target: str) -> list[MemoryTransactions]:
    graph = Graph(*(np.zeros(shape, np.float32) for shape in shapes))
    module = graph.module(build(graph))
    lower(treadle_context(), module, Target.parse(target), to="loops")
    return [each for op in module.walk() if isinstance(op, FuncOp) for each in memory_transactions(op)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("build", "shapes"), [case[1:] for case in ALIGNED], ids=[case[0] for case in ALIGNED])
def test_default_schedules_of_aligned_shapes_are_ideal(
    build: Build, shapes: tuple[tuple[int, ...], ...], target: str
) -> None:
    found = _accesses(build, shapes, target)
    assert {each.is_store for each in found if each.space is None} == {True, False}
    assert not [each for each in found if each.excess or each.conflicts]


def test_a_block_of_a_large_product_moves_16_bytes_a_lane() -> None:
    found = _accesses(_product, ((4096, 4096), (4096, 4096)), "sm_80")
    assert {each.bytes for each in found if each.space is None} == {16}
    assert {(each.buffer, each.bytes) for each in found if each.space is Space.SHARED and not each.is_store} == {
        ("shared_a", 16),
        ("shared_b", 16),
    }


def test_a_ragged_product_is_described_too() -> None:
    found = _accesses(_product, ((2039, 2039), (2039, 2039)), "sm_80")
    assert all(each.conflicts == 0 for each in found)
    assert max(each.sectors for each in found) > 0
