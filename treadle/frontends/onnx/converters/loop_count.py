"""How many iterations of a Loop run, where its condition compares counters with what stays the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto
from xdsl.utils.exceptions import VerifyException

from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Symbol, Symbolic, bound_of, expression_of, minimum, range_of
from treadle.frontends.common.samples import is_whole, whole
from treadle.frontends.common.symbolic_elements import elements_of, symbols_in
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Node

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


__all__ = ["Counters", "counters_of", "known_iterations"]
