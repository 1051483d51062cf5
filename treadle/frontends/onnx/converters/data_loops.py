"""Loops and branches that a call decides: functions that `graph.loop` and `graph.if` call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto
from xdsl.dialects.builtin import TensorType, i64

from treadle.dialects.graph import IfOp, LoopOp
from treadle.dialects.graph.control import CONDITION, COUNTER
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.onnx.node import Node, Outlined, ValueNeeded

_ENDLESS = np.iinfo(np.int64).max


class ChangingState(TreadleError):
    """The body gives a state another type than it has."""


@dataclass(frozen=True)
class Trips:
    """How often a loop runs: a number or a scalar that says the most (None: no limit), and a condition to begin with,
    None if there is none."""

    limit: int | Tensor | None
    going: Tensor | None


def loop_of(node: Node, g: GraphBuilder, body: GraphProto, trips: Trips, state: Sequence[Tensor]) -> list[Tensor]:
    """The results of Loop: the state behind the last iteration, then the rows of all.

    TreadleError for a body whose state changes its type, and for rows of a loop of which it is not known before the
    call how many there are.
    """
    state = [_static(node, x) for x in state]
    held = [n for n, x in enumerate(state) if 0 not in x.shape]
    rows: list[Tensor] = []

    def write(inner: Node, g: GraphBuilder, given: Sequence[Tensor]) -> list[Tensor]:
        counter, *carried = given
        own = [_empty(g, x) for x in state]
        for n, x in zip(held, carried, strict=True):
            own[n] = x
        condition, *results = inner.run(body, counter, g.constant(np.array(True)), *own)
        if condition.element != CONDITION.get_element_type() or condition.type.element_count() != 1:
            raise node.error(f"the body's condition is {condition.type}", "one boolean")
        _check_state(node, state, results)
        rows.extend(results[len(state) :])
        return [g.reshape(condition, ()), *(results[n] for n in held), *_held(rows)]

    outlined = node.function("body", [COUNTER, *(state[n].type for n in held)], write)
    times = _constant_trips(trips, outlined.results[0])
    if rows and times is None:
        raise _unknown_rows(node, trips)
    computes = held or _held(rows)
    ended = _call(g, outlined, times, trips, [state[n] for n in held], _held(rows)) if computes else []
    results = [_empty(g, x) for x in state]
    for n, x in zip(held, ended, strict=False):
        results[n] = x
    return [*results, *_with_empty(g, rows, ended[len(held) :], times or 0)]


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
    axes: Sequence[int], backward: Sequence[int], length: int,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The state behind the last iteration, and each further result with a row of each iteration, in their order."""
    given = [_static(node, x) for x in (*state, *scanned)]
    if any(0 in x.shape for x in given):
        raise node.error("the scan has a tensor without elements", "extents from 1 upwards, or fewer slices")
    rows: list[Tensor] = []

    def write(inner: Node, g: GraphBuilder, arguments: Sequence[Tensor]) -> list[Tensor]:
        counter, own, whole = arguments[0], arguments[1 : len(state) + 1], arguments[len(state) + 1 :]
        last = g.sub(g.constant(np.array(length - 1)), counter)
        slices = [
            g.gather(x, last if back else counter, axis) for x, axis, back in zip(whole, axes, backward, strict=True)
        ]
        results = inner.run(body, *own, *slices)
        _check_state(node, state, results)
        rows.extend(results[len(state) :])
        return [*results[: len(state)], *_held(rows)]

    outlined = node.function("body", [COUNTER, *(x.type for x in given)], write)
    carried, read = given[: len(state)], [*given[len(state) :], *outlined.captured]
    values, fixed = [g.value(x) for x in carried], [g.value(x) for x in read]
    wide = [_rows(x, length) for x in _held(rows)]
    results = g.control(LoopOp(outlined.name, values, fixed, times=length, rows=wide))
    return results[: len(state)], _with_empty(g, rows, results[len(state) :], length)


def branch_of(node: Node, g: GraphBuilder, condition: Tensor, branches: Sequence[Outlined]) -> list[Tensor]:
    """The results of the function that a condition chooses of two, which are given the same tensors."""
    read = list({id(x): x for each in branches for x in each.captured}.values())
    for each in branches:
        _take(each, read)
    types = [x.type for x in branches[0].results]
    names = [each.name for each in branches]
    op = IfOp(g.value(condition), names[0], names[1], [g.value(x) for x in read], types)
    return g.control(op)


def _take(branch: Outlined, read: Sequence[Tensor]) -> None:
    """Makes the arguments of a function those tensors, in their order."""
    block = branch.function.body.block
    own = dict(zip(map(id, branch.captured), list(block.args), strict=True))
    for tensor in read:
        argument = block.insert_arg(tensor.type, len(block.args))
        old = own.get(id(tensor))
        if old is not None:
            argument.name_hint = old.name_hint
            old.replace_all_uses_with(argument)
    for old in own.values():
        block.erase_arg(old)
    branch.function.update_function_type()


def _call(
    g: GraphBuilder, body: Outlined, times: int | None, trips: Trips, state: Sequence[Tensor], rows: Sequence[Tensor]
) -> list[Tensor]:
    values, read = [g.value(x) for x in state], [g.value(x) for x in body.captured]
    if times is not None:
        _drop_condition(body)
        wide = [_rows(x, times) for x in rows]
        return g.control(LoopOp(body.name, values, read, times=times, rows=wide))
    limit = trips.limit
    if not isinstance(limit, Tensor):
        limit = g.constant(np.array(_ENDLESS if limit is None else limit, np.int64))
    going = g.constant(np.array(True)) if trips.going is None else trips.going
    tests = [g.cast(g.reshape(limit, ()), i64), g.reshape(going, ())]
    return g.control(LoopOp(body.name, values, read, tests=[g.value(x) for x in tests]))


def _drop_condition(body: Outlined) -> None:
    """The function without its first result, which is always true."""
    end = body.function.body.block.last_op
    assert end is not None
    end.operands = end.operands[1:]
    erase_dead(body.function.body.block)
    body.function.update_function_type()


def _constant_trips(trips: Trips, condition: Tensor) -> int | None:
    """How often a loop runs whatever the data are."""
    known = condition.array is not None and bool(condition.array.reshape(-1)[0])
    begins = trips.going is None or (trips.going.array is not None and bool(trips.going.array.reshape(-1)[0]))
    return trips.limit if known and begins and isinstance(trips.limit, int) else None


def _check_state(node: Node, state: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    if len(results) < len(state):
        raise node.error(f"the body gives {len(results)} tensors of a state of {len(state)}", "one for each")
    for number, (before, behind) in enumerate(zip(state, results, strict=False)):
        if before.type != behind.type:
            message = f"the body makes {behind.type} of state {number}, which is {before.type}"
            accepted = "the same type in every iteration of a loop that is not written out"
            raise ChangingState(message, node.where, accepted)


def _held(rows: Sequence[Tensor]) -> list[Tensor]:
    """Those with elements: no function gives others."""
    return [x for x in rows if 0 not in x.shape]


def _with_empty(g: GraphBuilder, rows: Sequence[Tensor], results: Sequence[Tensor], count: int) -> list[Tensor]:
    """The results, with those of rows without elements in their places."""
    remaining = iter(results)
    return [
        g.constant(np.zeros(_rows(x, count).get_shape(), x.dtype)) if 0 in x.shape else next(remaining) for x in rows
    ]


def _static(node: Node, x: Tensor) -> Tensor:
    if x.extents is not None or x.elements is not None:
        message = "the loop is given a tensor whose extents change from call to call"
        raise node.error(message, "static extents, or a loop that is written out")
    return x


def _rows(x: Tensor, count: int) -> TensorType:
    return TensorType(x.element, [count, *x.type.get_shape()])


def _empty(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.constant(np.zeros(x.type.get_shape(), x.dtype)) if 0 in x.shape else x


__all__ = ["ChangingState", "Trips", "branch_of", "loop_of", "scan_of"]
