"""Loops and branches that a call decides: functions that `graph.loop` and `graph.if` call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from xdsl.dialects.builtin import TensorType, i64
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph import IfOp, LoopOp
from treadle.dialects.graph.control import CONDITION, COUNTER
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor, erase_dead
from treadle.frontends.common.extent import (
    Extent,
    Symbol,
    Symbolic,
    bound_of,
    bounds_of,
    expression_of,
    minimum,
    range_of,
)
from treadle.frontends.common.result_extents import elements_of, symbols_in
from treadle.frontends.common.samples import is_whole, whole
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Aside, Node, Outlined, ValueNeeded

# How many iterations of a Loop run, where its condition compares counters with what stays the same.

_MOST = 1 << 24
"""Iterations up to which counters are known to have no end of their type, and to be exact in float32."""
_UNCHANGED = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")
"""Operators whose result is true where their first input, of one element, is."""
_LESS = {"Less": (0, 1, 0), "LessOrEqual": (0, 1, 1), "Greater": (1, 0, 0), "GreaterOrEqual": (1, 0, 1)}
"""Of `a < b`: the positions of a and b, and what to add to b."""


@dataclass(frozen=True)
class _Line:
    """A number that changes by the same step in each iteration."""

    start: Symbolic
    step: int

    def at(self, iteration: Symbolic) -> Symbolic:
        return self.start + self.step * iteration


class _Unknown(Exception):
    """Data decide."""


def known_iterations(node: Node, body: GraphProto, state: Sequence[Tensor]) -> Symbolic | None:
    """The number of iterations after which the body's condition ends a loop that begins; None where it is not known.

    The condition is a conjunction of comparisons of integers that the iterations change by steps, such as
    `i + 1 < length`, and of what is always true: the number is an extent where `length` is one.
    """
    tests, others = _conjunction(node, body, state)
    counts = [_count(node, body, state, test) for test in tests]
    known = [count for count in counts if count is not None]
    try:
        return reduce(minimum, known) if known and len(known) == len(counts) and not others else None
    except VerifyException:
        return None


@dataclass(frozen=True)
class Counters:
    """What is known of each iteration of a loop: its number, below `bound`, and the states that follow from it.

    name: of the symbol that is the number, which no loop around it has
    """

    name: str
    bound: int
    lines: dict[int, _Line]

    def give(self, g: GraphBuilder, counter: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The number of the iteration, and the states, as expressions of it, which is the argument `counter`."""
        i = Symbol(self.name, 0, max(self.bound - 1, 0))
        g.variables[self.name] = counter
        return g.numbers(i), _states(state, {n: line.at(i) for n, line in self.lines.items()})


def counters_of(node: Node, body: GraphProto, state: Sequence[Tensor], limit: Symbolic | None) -> Counters | None:
    """None where nothing bounds the number of iterations. Of the condition, comparisons of counters are enough."""
    tests, _ = _conjunction(node, body, state)
    counts = [_count(node, body, state, test) for test in tests]
    bounds = [int(each) for each in (limit, *counts) if each is not None and int(each) <= _MOST]
    if not bounds:
        return None
    lines: dict[int, _Line] = {}
    for n, x in enumerate(state):
        if x.type.element_count() == 1 and (x.array is not None or x.elements is not None):
            try:
                lines |= _lines(node, body, state, [n], min(bounds))
            except (_Unknown, VerifyException, TreadleError):
                continue
    return Counters(_name(node), min(bounds), lines)


def _conjunction(node: Node, body: GraphProto, state: Sequence[Tensor]) -> tuple[list[NodeProto], bool]:
    """The comparisons all of which have to hold, and whether other things have to; of a condition that the body hands
    on, none."""
    made = {name: each for each in body.node for name in each.output}
    pending, found, others = [body.output[0].name], list[NodeProto](), False

    def is_unchanged(producer: NodeProto) -> bool:
        added = producer.op_type == "Add" and _is_zero(node, body, state, producer.input[1])
        return added or producer.op_type in _UNCHANGED

    while pending:
        name = pending.pop()
        producer = made.get(name)
        if name == body.input[1].name:
            continue
        if producer is not None and producer.op_type == "And":
            pending += producer.input
        elif producer is not None and is_unchanged(producer):
            pending.append(producer.input[0])
        elif producer is not None and producer.op_type in _LESS:
            found.append(producer)
        else:
            others = True
    return found, others


def _is_zero(node: Node, body: GraphProto, state: Sequence[Tensor], name: str) -> bool:
    """Whether a number is zero in every iteration."""
    try:
        (number,) = _integers(node, body, [name], Symbol(_name(node), 0, _MOST), state)
        return expression_of(number).as_int() == 0 and not _read_states(body, [name])
    except (_Unknown, VerifyException, TreadleError):
        return False


def _count(node: Node, body: GraphProto, state: Sequence[Tensor], test: NodeProto) -> Symbolic | None:
    """The iterations after which a comparison fails; None where data decide."""
    try:
        return _count_of(node, body, state, test)
    except (_Unknown, VerifyException, TreadleError):
        return None


def _count_of(node: Node, body: GraphProto, state: Sequence[Tensor], test: NodeProto) -> Symbolic:
    first, last, more = _LESS[test.op_type]
    a, b = (_before_casts(body, test.input[n]) for n in (first, last))
    numbers = _read_states(body, [a, b])
    if any(state[n].type.element_count() != 1 for n in numbers):
        raise _Unknown
    lines = _first_lines(node, body, state, numbers)

    def compared(iteration: Symbolic) -> tuple[Symbolic, Symbolic]:
        own = _states(state, {n: line.at(iteration) for n, line in lines.items()})
        low, high = _integers(node, body, [a, b], iteration, own)
        return low, high

    def margin(low: Symbolic, high: Symbolic) -> Symbolic:
        return high - low + more

    start = margin(*compared(0))
    step = start - margin(*compared(1))
    if expression_of(step).as_int() is None or step < 1:
        raise _Unknown
    # The condition holds behind iteration i while `start - step * i` is above 0.
    count = 1 + (-(-start // int(step)) if start >= 0 else 0)
    if count > _MOST or lines != _lines(node, body, state, numbers, bound_of(count)):
        raise _Unknown
    i = Symbol(_name(node), 0, bound_of(count) - 1)
    low, high = compared(i)
    is_cast = a != test.input[first] or b != test.input[last]
    if margin(low, high) + step * i != start or (is_cast and not (_is_exact(low) and _is_exact(high))):
        raise _Unknown
    return count


def _name(node: Node) -> str:
    """The symbol of the number of a loop's iteration."""
    return f"iteration of {node.where}"


def _lines(
    node: Node, body: GraphProto, state: Sequence[Tensor], numbers: Sequence[int], most: int
) -> dict[int, _Line]:
    """The states of those numbers, which are as the first two iterations say in the first `most`."""
    lines = _first_lines(node, body, state, numbers)
    names = [body.output[n + 1].name for n in numbers]
    i = Symbol(_name(node), 0, max(most - 1, 0))
    own = _states(state, {n: line.at(i) for n, line in lines.items()})
    if _integers(node, body, names, i, own) != [line.at(i + 1) for line in lines.values()]:
        raise _Unknown
    return lines


def _first_lines(node: Node, body: GraphProto, state: Sequence[Tensor], numbers: Sequence[int]) -> dict[int, _Line]:
    """The states of those numbers as the first iteration changes them."""
    starts = [_integer(state[n]) for n in numbers]
    names = [body.output[n + 1].name for n in numbers]
    behind = _integers(node, body, names, 0, list(state))
    steps = [second - first for first, second in zip(starts, behind, strict=True)]
    if any(expression_of(step).as_int() is None for step in steps):
        raise _Unknown
    return {n: _Line(start, int(step)) for n, start, step in zip(numbers, starts, steps, strict=True)}


def _states(state: Sequence[Tensor], values: dict[int, Symbolic]) -> list[Tensor]:
    """The state with those numbers in it."""
    own = list(state)
    for n, value in values.items():
        type = own[n].type
        own[n] = Tensor(type, None, None, None, None, elements_of([value], type.get_shape()))
        if expression_of(value).as_int() is not None:
            own[n] = Tensor(type, np.full(type.get_shape(), int(value), own[n].dtype))
    return own


def _integers(
    node: Node, body: GraphProto, names: Sequence[str], iteration: Symbolic, state: Sequence[Tensor]
) -> list[Symbolic]:
    """What the body computes of these names, whole numbers, beside what is written."""
    outputs = [ValueInfoProto(name=name) for name in names]
    part = GraphProto(input=body.input, initializer=body.initializer, node=body.node, output=outputs)
    found: list[Tensor] = []
    data = [n for n, x in enumerate(state) if x.array is None and x.elements is None]

    def write(inner: Node, g: GraphBuilder, given: Sequence[Tensor]) -> list[Tensor]:
        # Tensors of their own: what is written of them here is no value of the block around the loop.
        own = [replace(x, ssa=None) for x in state]
        for n, x in zip(data, given, strict=True):
            own[n] = x
        found.extend(inner.run(part, g.numbers(iteration), g.constant(np.array(True)), *own))
        return []

    node.function("count", [state[n] for n in data], write)
    return [_integer(each) for each in found]


def _integer(x: Tensor) -> Symbolic:
    """The whole number that a tensor of one element is known to be."""
    if x.type.element_count() != 1:
        raise _Unknown
    if x.elements is not None:
        return symbols_in(x.elements)[0]
    if x.array is not None and x.array.dtype.kind in "iu":
        return int(x.array.reshape(-1)[0])
    if x.array is not None and x.array.dtype.kind != "f":
        raise _Unknown
    number = x.array if x.array is not None else x.numbers
    found = whole(number.item()) if number is not None and is_whole(number.item()) else None
    if found is None:
        raise _Unknown
    return found


def _is_exact(number: Symbolic) -> bool:
    """Whether all types of 32 bits and more, but unsigned ones, have a number."""
    known = range_of(number)
    return known is not None and known[0] >= -_MOST and known[1] <= _MOST


def _before_casts(body: GraphProto, name: str) -> str:
    """A number before it is converted to types that have all whole numbers up to `_MOST`."""
    made = {name: each for each in body.node for name in each.output}
    while name in made and (made[name].op_type == "Identity" or _is_wide_cast(made[name])):
        name = made[name].input[0]
    return name


def _is_wide_cast(node: NodeProto) -> bool:
    wide = (TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.DOUBLE)
    return node.op_type == "Cast" and any(each.name == "to" and each.i in wide for each in node.attribute)


def _read_states(body: GraphProto, names: Iterable[str]) -> list[int]:
    """The numbers of the states that these names are computed from, in this iteration or in those before."""
    made = {name: each for each in body.node for name in each.output}
    states = {entry.name: n for n, entry in enumerate(list(body.input)[2:])}
    pending, seen, found = list(names), set[str](), list[int]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in states:
            found.append(states[name])
            pending.append(body.output[states[name] + 1].name)
        elif name in made:
            if graphs_of(made[name]):
                raise _Unknown
            pending += made[name].input
    return sorted(found)


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
