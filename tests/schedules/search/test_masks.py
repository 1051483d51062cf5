"""Masked accesses, counted on values and on kernels as by hand: where tiles overhang, and where vectors are short."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from tests.helpers.graphs import Graph
from tests.schedules.nest.test_nest import program
from tests.schedules.search.test_nest_work import TILED, both, masked, parts
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.schedules.search.predict import cpu_terms
from treadle.schedules.search.work import Body, Reuse, Work, masked_accesses
from treadle.target import Target

CPU = Target.parse("cpu")


def product(columns: int, text: str) -> ModuleOp:
    """8 x 64 times 64 x columns, scheduled by a program."""
    graph = Graph(np.zeros((8, 64), np.float32), np.zeros((64, columns), np.float32))
    module = graph.module(graph.add(MatmulOp(graph[0], graph[1])))
    lower(treadle_context(), module, CPU, after="graph", to="schedule")
    (fused,) = [op for op in module.walk() if isinstance(op, FusedOp)]
    module.body.block.add_op(program(text))
    fused.schedule = SymbolRefAttr("p")
    return module


def test_whole_tiles_have_no_masks() -> None:
    found, counted, *_ = both(product(96, TILED))
    assert masked(found) == masked(counted) == 0


def test_tiles_that_overhang_are_masked() -> None:
    """4 rows of 2 vectors, of which the second tile of each row of blocks overhangs 40 columns: in half of the blocks
    each of 64 steps loads B through a mask for every row anew, and each vector is stored through one."""
    found, counted, *_ = both(product(40, TILED))
    assert masked(found) == masked(counted) == 0.5 * (64 * 4 * 2 + 4 * 2)


def test_parts_of_vectors_are_masked_and_in_memory() -> None:
    """4 rows of 8 columns, half a vector: each of 64 steps loads a row's sums and B, and stores the sums; before that
    these are reset, at the end they are loaded and the result is stored."""
    found, counted, *_ = both(product(96, TILED.replace("(32)", "(8)")))
    assert parts(found) == parts(counted)
    assert masked(found) == masked(counted) == 64 * 4 * 3 + 4 + 2 * 4
    inner = max(found.bodies, key=lambda body: body.executions)
    assert inner.stores == 4


def test_masks_take_the_ports_of_arithmetic() -> None:
    """Each mask as four operations on vectors, of which there are two a cycle."""
    body = Body(1e6, 8.0, 2.0)
    work = Work(1, 1, (body,), (Reuse(0.0, 0.0),), 1.0)
    cycle = 4 * CPU.lanes / CPU.peak_f32
    assert cpu_terms(work, CPU)["arithmetic"] == pytest.approx(1e6 * 4 * cycle)
    with_masks = replace(work, bodies=(replace(body, masked=2.0),))
    assert cpu_terms(with_masks, CPU)["arithmetic"] == pytest.approx(1e6 * 8 * cycle)


def test_lanes_far_apart_are_masked_one_by_one() -> None:
    assert [masked_accesses(16, stride) for stride in (1, 2, 3, -4)] == [1, 1, 16, 16]
