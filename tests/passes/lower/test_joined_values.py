"""Results that are parts of others: which they are, that they share its memory, and that values stay."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import bf16
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph, name_arguments, random
from tests.helpers.program_batch import CompiledProgram, PrintedProgram, compile_programs, print_program
from treadle.dialects.graph import BinaryOp, CastOp, ConcatOp, PadOp, ReductionOp, TransposeOp, UnaryOp, definition
from treadle.passes.graph.graph_deduplicate import joined_tensors

Array = NDArray[Any]
TARGET = "sse2"
NAMES = ("joined", "nested", "rounded", "returned", "twice", "arguments")


def sums(graph: Graph, x: SSAValue) -> SSAValue:
    """What is stored, since two read it: sums over the last dimension, of rows that are a kernel's."""
    return graph.add(ReductionOp("add", x, [2], keep=False))


def parts(graph: Graph) -> list[SSAValue]:
    return [sums(graph, graph[0]), sums(graph, graph[1])]


def print_case(name: str) -> PrintedProgram:
    """Concats of sums along rows, which something else reads twice, so that they are stored."""
    graph = Graph(random(4, 16, 9), random(8, 16, 9, seed=1))
    a, b = parts(graph)
    if name == "rounded":
        a, b = (graph.add(CastOp(value, bf16)) for value in (a, b))
    if name == "arguments":
        a, b = (graph.add(ReductionOp("max", x, [2], keep=False)) for x in (graph[0], graph[1]))
        a = graph.add(UnaryOp("neg", graph.add(BinaryOp("add", a, a))))
    whole = graph.add(ConcatOp([b, a], 0))
    if name == "nested":
        whole = graph.add(ConcatOp([whole, sums(graph, graph.add(UnaryOp("exp", graph[0])))], 0))
    if name == "twice":
        whole = graph.add(ConcatOp([whole, whole], 0))
    result = whole if name == "returned" else last(graph, whole)
    module = graph.module(result)
    name_arguments(module, 2, 1)
    return print_program(name, module, TARGET, after="import")


def last(graph: Graph, whole: SSAValue) -> SSAValue:
    rows = graph.add(ReductionOp("add", whole, [1], keep=True))
    columns = graph.add(ReductionOp("max", whole, [0], keep=True))
    return graph.add(BinaryOp("add", rows, columns))


@cache
def programs() -> dict[str, CompiledProgram]:
    return compile_programs([print_case(name) for name in NAMES], TARGET)


def wanted(name: str, x: Array, y: Array) -> Array:
    a, b = x.sum(2), y.sum(2)
    if name == "arguments":
        a, b = -2 * x.max(2), y.max(2)
    whole = np.concatenate([b, a])
    if name == "nested":
        whole = np.concatenate([whole, np.exp(x).sum(2)])
    if name == "twice":
        whole = np.concatenate([whole, whole])
    return whole if name == "returned" else whole.sum(1, keepdims=True) + whole.max(0, keepdims=True)


@pytest.mark.parametrize("name", NAMES)
def test_values_stay(name: str) -> None:
    inputs = [random(4, 16, 9), random(8, 16, 9, seed=1)]
    (got,) = programs()[name].run(inputs)
    exact = wanted(name, *(x.astype(np.float64) for x in inputs))
    # Sums of nine, of 16 and of a few magnitudes in float32; parts that are rounded are so to 8 bits.
    limit = 2.0**-8 if name == "rounded" else 40 * 2.0**-24
    magnitudes = wanted("joined" if name == "arguments" else name, *(abs(x.astype(np.float64)) for x in inputs))
    assert (abs(got.astype(np.float64) - exact) <= 2 * limit * magnitudes).all()


@pytest.mark.parametrize("name", ["joined", "rounded", "nested"])
def test_no_kernel_joins_what_kernels_wrote(name: str) -> None:
    text = "".join(unit.text for unit in print_case(name).kernels)
    assert "concat" not in text


def offsets(op: ConcatOp | PadOp | TransposeOp) -> list[int] | None:
    compute = definition(op)
    found = joined_tensors(compute)
    return None if found is None else [found[value] for value in op.operands]


def test_which_definitions_join() -> None:
    graph = Graph(random(2, 3, 4), random(2, 5, 4), random(1, 5, 4), random(3, 5, 4))
    x, y, z, w = (graph[n] for n in range(4))
    assert offsets(ConcatOp([y, z, w], 0)) == [0, 40, 60]
    assert offsets(ConcatOp([x, y], 1)) is None, "rows of several images"
    assert offsets(TransposeOp(x, [1, 0, 2])) is None
    one = Graph(random(1, 3, 4), random(1, 5, 4))
    assert offsets(ConcatOp([one[0], one[1]], 1)) == [0, 12], "of one image"
    assert offsets(ConcatOp([one[0], one[0]], 1)) is None, "one tensor twice"
