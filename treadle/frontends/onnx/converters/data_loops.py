"""Loops and branches that a call decides: functions that `graph.loop` and `graph.if` call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper
from xdsl.dialects.builtin import TensorType, i64

from treadle.dialects.graph import IfOp, LoopOp
from treadle.dialects.graph.control import CONDITION, COUNTER
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import Extent, Symbolic, bound_of, bounds_of, expression_of
from treadle.frontends.onnx.converters.loop_count import Counters
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Aside, Node, Outlined, ValueNeeded

_ENDLESS = np.iinfo(np.int64).max


class ChangingState(TreadleError):
    """The body gives a state another type than it has."""


@dataclass(frozen=True)
class Trips:
    """How often a loop runs: a number, an extent or a scalar that says the most (None: no limit), and a condition to
    begin with, None if there is none.

    known: the number of iterations, where the condition is known to end them so
    counters: what is known of each iteration, where its number has to be
    """

    limit: Symbolic | Tensor | None
    going: Tensor | None
    known: Symbolic | None = None
    counters: Counters | None = None


def counter() -> Tensor:
    """What the first argument of a loop's body is like."""
    return Tensor(COUNTER)


def loop_of(node: Node, g: GraphBuilder, body: GraphProto, trips: Trips, state: Sequence[Tensor]) -> list[Tensor]:
    """The results of Loop: the state behind the last iteration, then the rows of all.

    TreadleError for a body whose state changes its type, and for rows of a loop of which it is not known before the
    call how many there are.
    """
    state = [_as_data(g, x) for x in state]
    held = [n for n, x in enumerate(state) if 0 not in x.type.get_shape()]
    rows: list[Tensor] = []

    def write(inner: Node, g: GraphBuilder, given: Sequence[Tensor]) -> list[Tensor]:
        number, *carried = given
        own = [_empty(g, x) for x in state]
        for n, x in zip(held, carried, strict=True):
            own[n] = x
        if trips.counters is not None:
            counted, known = trips.counters.give(g, number, state)
            number, own = counted, [known[n] if n in trips.counters.lines else x for n, x in enumerate(own)]
        condition, *results = inner.run(body, number, g.constant(np.array(True)), *own)
        if condition.element != CONDITION.get_element_type() or condition.type.element_count() != 1:
            raise node.error(f"the body's condition is {condition.type}", "one boolean")
        _check_state(node, state, results)
        rows.extend(results[len(state) :])
        return [g.reshape(condition, ()), *(results[n] for n in held), *_held(rows)]

    outlined = node.function("body", [counter(), *(state[n] for n in held)], write)
    _check_rows(node, rows, trips)
    times = trips.known if trips.known is not None else _constant_trips(trips, outlined.results[0])
    if rows and times is None:
        raise _unknown_rows(node, trips)
    computes = held or _held(rows)
    ended = _call(g, outlined, times, trips, [state[n] for n in held], _held(rows)) if computes else []
    results = [_empty(g, x) for x in state]
    for n, x in zip(held, ended, strict=False):
        results[n] = x
    return [*results, *_with_empty(g, rows, ended[len(held) :], times or 0)]


def _check_rows(node: Node, rows: Sequence[Tensor], trips: Trips) -> None:
    for number, row in enumerate(rows):
        variables = {v.key for extent in row.shape for v in expression_of(extent).vars()}
        if trips.counters is not None and trips.counters.name in variables:
            raise node.error(f"rows {number} of {shown(row)}, by the iteration's number", "rows of one shape")


def behind_first(body: GraphProto) -> GraphProto:
    """The body of the iterations from the second one on, which a loop counts from 0."""
    number = body.input[0].name
    taken = {name for node in _nodes(body) for name in (*node.input, *node.output)}
    before, one = (_untaken(f"{number}_{word}", taken) for word in ("before", "one"))
    shifted = GraphProto()
    shifted.CopyFrom(body)
    shifted.input[0].name = before
    del shifted.node[:]
    step = numpy_helper.from_array(np.array(1, np.int64))
    shifted.node.extend(
        [
            helper.make_node("Constant", [], [one], value=step),
            helper.make_node("Add", [before, one], [number]),
            *body.node,
        ]
    )
    return shifted


def _untaken(name: str, taken: Collection[str]) -> str:
    return name if name not in taken else _untaken(f"{name}_", taken)


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of those in it."""
    for node in graph.node:
        yield node
        for inner in graphs_of(node):
            yield from _nodes(inner)


def _unknown_rows(node: Node, trips: Trips) -> TreadleError:
    """The error of rows whose number a call decides, naming what has to be known."""
    message = "rows are asked of a loop whose number of iterations is known in a call only"
    accepted = "a trip count that is a constant and a condition that is always true, or no rows"
    for given in (trips.limit, trips.going):
        if isinstance(given, Tensor) and given.ssa is not None and given.array is None:
            return ValueNeeded(message, node.where, accepted, given)
    return node.error(message, accepted)


def scan_of(
    node: Node, g: GraphBuilder, body: GraphProto, state: Sequence[Tensor], scanned: Sequence[Tensor],
    axes: Sequence[int], backward: Sequence[int], length: Symbolic,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The state behind the last iteration, and each further result with a row of each iteration, in their order."""
    given = [_as_data(g, x) for x in (*state, *scanned)]
    if any(0 in x.type.get_shape() for x in given):
        raise node.error("the scan has a tensor without elements", "extents from 1 upwards, or fewer slices")
    rows: list[Tensor] = []

    def write(inner: Node, g: GraphBuilder, arguments: Sequence[Tensor]) -> list[Tensor]:
        number, own, whole = arguments[0], arguments[1 : len(state) + 1], arguments[len(state) + 1 :]
        last = g.sub(g.numbers(length - 1), number) if any(backward) else number
        slices = [
            g.gather(x, last if back else number, axis, laid_out=True)
            for x, axis, back in zip(whole, axes, backward, strict=True)
        ]
        results = inner.run(body, *own, *slices)
        _check_state(node, state, results)
        rows.extend(results[len(state) :])
        return [*results[: len(state)], *_held(rows)]

    outlined = node.function("body", [counter(), *given], write)
    carried, read = given[: len(state)], [*given[len(state) :], *outlined.captured]
    results = counted_loop(g, outlined, carried, read, length, _held(rows))
    return results[: len(state)], _with_empty(g, rows, results[len(state) :], length)


def counted_loop(
    g: GraphBuilder,
    body: Outlined,
    state: Sequence[Tensor],
    read: Sequence[Tensor],
    times: Symbolic,
    rows: Sequence[Tensor],
) -> list[Tensor]:
    """The state behind `times` iterations, and of each of `rows`, which the body gives beside the state, all
    iterations'."""
    tests = [g.value(g.extent(times))] if isinstance(times, Extent) else []
    wide = [TensorType(x.element, [bound_of(times), *x.type.get_shape()]) for x in rows]
    carried, fixed = [g.value(x) for x in state], [g.value(x) for x in read]
    op = LoopOp(body.name, carried, fixed, tests=tests, times=bound_of(times), rows=wide)
    return g.control(op, [*(x.shape for x in state), *((times, *x.shape) for x in rows)])


def branch_of(node: Node, g: GraphBuilder, condition: Tensor, then: Aside, otherwise: Aside) -> list[Tensor]:
    """The results of the function that a condition chooses of two."""
    names, read = node.branches({"then": then, "else": otherwise})
    op = IfOp(g.value(condition), names[0], names[1], read, [x.type for x in then.results])
    return g.control(op, [x.shape for x in then.results])


def _call(
    g: GraphBuilder,
    body: Outlined,
    times: Symbolic | None,
    trips: Trips,
    state: Sequence[Tensor],
    rows: Sequence[Tensor],
) -> list[Tensor]:
    if times is not None:
        _drop_condition(body)
        return counted_loop(g, body, state, body.captured, times, rows)
    values, read = [g.value(x) for x in state], [g.value(x) for x in body.captured]
    limit = trips.limit
    if not isinstance(limit, Tensor):
        limit = g.numbers(_ENDLESS if limit is None else limit)
    going = g.constant(np.array(True)) if trips.going is None else trips.going
    tests = [g.cast(g.reshape(limit, ()), i64), g.reshape(going, ())]
    op = LoopOp(body.name, values, read, tests=[g.value(x) for x in tests])
    return g.control(op, [x.shape for x in state])


def _drop_condition(body: Outlined) -> None:
    """The function without its first result, which says what is known."""
    end = body.function.body.block.last_op
    assert end is not None
    end.operands = end.operands[1:]
    erase_dead(body.function.body.block)
    body.function.update_function_type()


def _constant_trips(trips: Trips, condition: Tensor) -> Symbolic | None:
    """How often a loop runs whatever the data are."""
    known = condition.array is not None and bool(condition.array.reshape(-1)[0])
    begins = trips.going is None or (trips.going.array is not None and bool(trips.going.array.reshape(-1)[0]))
    return trips.limit if known and begins and isinstance(trips.limit, int | Extent) else None


def _check_state(node: Node, state: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    if len(results) < len(state):
        raise node.error(f"the body gives {len(results)} tensors of a state of {len(state)}", "one for each")
    for number, (before, behind) in enumerate(zip(state, results, strict=False)):
        if before.type != behind.type or before.shape != behind.shape:
            message = f"the body makes {shown(behind)} of state {number}, which is {shown(before)}"
            accepted = "the same type in every iteration of a loop that is not written out"
            raise ChangingState(message, node.where, accepted)


def shown(x: Tensor) -> str:
    """A tensor's type, with the extents that change."""
    return str(x.type) if x.extents is None else f"{x.element}[{', '.join(map(str, x.shape))}]"


def _held(rows: Sequence[Tensor]) -> list[Tensor]:
    """Those with elements: no function gives others."""
    return [x for x in rows if 0 not in x.type.get_shape()]


def _with_empty(g: GraphBuilder, rows: Sequence[Tensor], results: Sequence[Tensor], count: Symbolic) -> list[Tensor]:
    """The results, with those of rows without elements in their places."""
    remaining = iter(results)
    return [next(remaining) if 0 not in x.type.get_shape() else _nothing(g, x, (count, *x.shape)) for x in rows]


def _as_data(g: GraphBuilder, x: Tensor) -> Tensor:
    """Integers of symbolic extents as a tensor that a call computes: iterations change a state."""
    return x if x.elements is None else Tensor(x.type, None, g.value(x), None, x.extents)


def _empty(g: GraphBuilder, x: Tensor) -> Tensor:
    return _nothing(g, x, x.shape) if 0 in x.type.get_shape() else x


def _nothing(g: GraphBuilder, x: Tensor, shape: Sequence[Symbolic]) -> Tensor:
    return g.constant(np.zeros(bounds_of(shape), x.dtype), shape)


__all__ = [
    "ChangingState",
    "Trips",
    "behind_first",
    "branch_of",
    "counted_loop",
    "counter",
    "loop_of",
    "scan_of",
    "shown",
]
