"""Tensors without elements, compiled: every family of operators, on both targets, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from tests.helpers.compiled import RUNNERS
from tests.helpers.graphs import Graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import (
    ArgReductionOp,
    AttentionOp,
    BinaryOp,
    BroadcastOp,
    ConcatOp,
    ConvOp,
    ConvTransposeOp,
    GatherOp,
    LayerNormOp,
    MaskOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReductionOp,
    ReshapeOp,
    ResizeOp,
    SliceOp,
    SoftmaxOp,
    TransposeOp,
    UnaryOp,
)
from treadle.dialects.location import LocatedParser
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.schedule.schedule_instantiate import ScheduleInstantiatePass
from treadle.passes.schedule.schedule_select import ScheduleSelectPass
from treadle.target import Target

Array = NDArray[Any]


class Cases(Graph):
    """One module of all cases: each names a result and what NumPy says of it."""

    def __init__(self) -> None:
        f32 = np.float32
        super().__init__(
            *(np.ones(shape, f32) for shape in ((3, 0), (0, 5), (0, 4), (4, 5), (5,), (0, 3, 6, 6), (2, 0, 6, 6))),
            np.ones((0, 2), np.int64),
            np.ones((2, 0), np.int32),
            np.ones((2, 0), np.bool_),
        )
        self.wide, self.tall, self.rows, self.full, self.bias, self.images, self.blind = (self[n] for n in range(7))
        self.nowhere, self.whole, self.bools = (self[n] for n in range(7, 10))
        self.results: list[SSAValue] = []
        self.expected: list[Array] = []

    def case(self, op: Any, expected: Array | float, *shape: int, dtype: type = np.float32) -> SSAValue:
        value = self.add(op)
        self.results.append(value)
        self.expected.append(np.broadcast_to(np.asarray(expected, dtype), shape))
        return value


def products(g: Cases) -> None:
    zeros = g.case(MatmulOp(g.wide, g.tall), 0, 3, 5)
    g.case(BinaryOp("add", zeros, g.bias), 1, 3, 5)
    g.case(UnaryOp("relu", g.case(MatmulOp(g.rows, g.full), 0, 0, 5)), 0, 0, 5)
    columns = g.add(SliceOp(g.full, [0, 0], [4, 0], [1, 1]))
    g.case(MatmulOp(g.full, g.add(TransposeOp(g.tall, [1, 0]))), 0, 4, 0)
    g.case(MatmulOp(g.add(TransposeOp(g.full, [1, 0])), columns), 0, 5, 0)
    batch = g.add(ReshapeOp(g.rows, [0, 2, 2]))
    g.case(MatmulOp(batch, batch), 0, 0, 2, 2)
    heads = g.add(ReshapeOp(g.rows, [0, 1, 2, 2]))
    g.case(AttentionOp(heads, heads, heads), 0, 0, 1, 2, 2)
    extent = g.constant(np.int64(2))
    g.case(MaskOp(g.wide, extent, 1, 7.0), 0, 3, 0)
    none = g.add(ReshapeOp(g.wide, [3, 0, 2]))
    queries = g.constant(np.ones((3, 1, 2), np.float32))
    g.case(AttentionOp(queries, none, none, length=extent), 0, 3, 1, 2)


def windows(g: Cases) -> None:
    filters = g.constant(np.ones((4, 3, 3, 3), np.float32))
    pads, ones = [1, 1, 1, 1], [1, 1]
    g.case(ConvOp(g.images, filters, ones, pads, ones, 1), 0, 0, 4, 6, 6)
    backwards = g.constant(np.ones((3, 4, 3, 3), np.float32))
    g.case(ConvTransposeOp(g.images, backwards, ones, pads, ones, 1, [0, 0]), 0, 0, 4, 6, 6)
    g.case(ConvOp(g.blind, g.constant(np.ones((4, 0, 3, 3), np.float32)), ones, pads, ones, 1), 0, 2, 4, 6, 6)
    for kind in ("max", "avg"):
        g.case(PoolOp(kind, g.images, [3, 3], [2, 2], pads, ones), 0, 0, 3, 3, 3)
        g.case(PoolOp(kind, g.blind, [3, 3], [2, 2], pads, ones), 0, 2, 0, 3, 3)
    g.case(ResizeOp(g.images, [0, 3, 12, 9]), 0, 0, 3, 12, 9)


def reductions(g: Cases) -> None:
    over_none = {"add": 0, "mul": 1, "max": -np.inf, "min": np.inf, "mean": np.nan}
    for kind, value in over_none.items():
        g.case(ReductionOp(kind, g.wide, [1], False), value, 3)
        g.case(ReductionOp(kind, g.wide, [0], True), value, 1, 0)
        g.case(ReductionOp(kind, g.wide, [0, 1], False), value)
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    for kind, number in {"add": 0, "mul": 1, "max": least, "min": most}.items():
        g.case(ReductionOp(kind, g.whole, [1], True), number, 2, 1, dtype=np.int32)
    for kind, truth in {"and": True, "or": False}.items():
        g.case(ReductionOp(kind, g.bools, [1], True), truth, 2, 1, dtype=np.bool_)
    g.case(ArgReductionOp("max", g.tall, 1, True), 0, 0, 1, dtype=np.int64)
    for dim in (0, 1):
        g.case(SoftmaxOp(g.tall, dim), 0, 0, 5)
        g.case(SoftmaxOp(g.wide, dim), 0, 3, 0)
    g.case(LayerNormOp(g.tall, g.bias, g.bias, 1, 1e-5), 0, 0, 5)


def movement(g: Cases) -> None:
    g.case(ReshapeOp(g.tall, [7, 0, 2]), 0, 7, 0, 2)
    g.case(TransposeOp(g.blind, [3, 1, 0, 2]), 0, 6, 0, 2, 6)
    g.case(BroadcastOp(g.tall, [3, 0, 5]), 0, 3, 0, 5)
    g.case(BinaryOp("add", g.tall, g.bias), 0, 0, 5)
    g.case(SliceOp(g.full, [3, 0], [0, 5], [1, 1]), 0, 0, 5)
    seven = g.constant(np.float32(7))
    g.case(PadOp("constant", g.wide, seven, [0, 1, 0, 2]), 7, 3, 3)
    g.case(PadOp("edge", g.tall, seven, [0, 2, 0, 1]), 0, 0, 8)
    g.case(ConcatOp([g.tall, g.full, g.tall], 0), 1, 4, 5)
    g.case(ConcatOp([g.tall, g.tall], 1), 0, 0, 10)
    g.case(GatherOp(g.full, g.nowhere, 0), 0, 0, 2, 5)
    g.case(GatherOp(g.tall, g.nowhere, 1), 0, 0, 0, 2)


@pytest.mark.parametrize("runner", RUNNERS)
def test_compiled(runner: str) -> None:
    g = Cases()
    for family in (products, windows, reductions, movement):
        family(g)
    # Each empty result is a kernel that copies nothing: one has to do for all.
    shown = [n for n, value in enumerate(g.expected) if value.size or n == len(g.expected) - 1]
    results = RUNNERS[runner](g.module(*(g.results[n] for n in shown)), g.inputs)
    for n, actual in zip(shown, results, strict=True):
        expected = g.expected[n]
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), g.results[n]
        np.testing.assert_array_equal(actual, expected, str(g.results[n]))


READER = """
func.func @main(%x: tensor<0x4xf32>) -> tensor<2xf32> {
  %y = graph.compute (%i) {
    %a = graph.at %x[%i, %i] : tensor<0x4xf32>
    graph.yield %a : f32
  } : tensor<2xf32>
  func.return %y : tensor<2xf32>
}
"""


def test_a_definition_that_reads_what_is_not_there() -> None:
    module = LocatedParser(treadle_context(), READER, "in.mlir").parse_module()
    with pytest.raises(TreadleError, match="an element of tensor<0x4xf32> is read; accepted: a tensor with elements"):
        lower(treadle_context(), module, Target.parse("cpu"), to="graph")


GROUP = """
func.func @main(%x: tensor<0x4xf32>) -> tensor<0x4xf32> {
  %y = graph.fused "relu" {
    %c = graph.compute (%i, %j) {
      %a = graph.at %x[%i, %j] : tensor<0x4xf32>
      graph.yield %a : f32
    } : tensor<0x4xf32>
    graph.yield %c : tensor<0x4xf32>
  } SCHEDULE : tensor<0x4xf32>
  func.return %y : tensor<0x4xf32>
}
"""


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("", "'graph.fused' reads or gives a tensor without elements after stage 'fuse'; accepted: extents from 1"),
        ('schedule #schedule.use<"generic_cpu", {run = 1, rows = 1}>', "'generic_cpu' schedules no empty tensor"),
    ],
)
def test_text_that_skipped_the_pass(schedule: str, message: str) -> None:
    module = LocatedParser(treadle_context(), GROUP.replace("SCHEDULE", schedule), "in.mlir").parse_module()
    with pytest.raises(TreadleError, match=message):
        if schedule:
            ScheduleInstantiatePass().apply(treadle_context(), module)
        lower(treadle_context(), module, Target.parse("cpu"), after="fuse")


def test_no_template_is_the_default() -> None:
    module = LocatedParser(treadle_context(), GROUP.replace("SCHEDULE", ""), "in.mlir").parse_module()
    with pytest.raises(TreadleError, match=r"no template for cpu schedules graph\.compute of tensor<0x4xf32>"):
        ScheduleSelectPass().apply(treadle_context(), module)
