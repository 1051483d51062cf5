"""How many iterations of a Loop run, where its condition compares counters with what stays the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, ValueInfoProto
from xdsl.utils.exceptions import VerifyException

from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Symbol, Symbolic, expression_of
from treadle.frontends.common.symbolic_elements import elements_of, symbols_in
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Node

_MOST = 1 << 24
"""Iterations up to which counters are known to have no end of their type, and to be exact in float32."""
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
    tests, others = _conjunction(body)
    counts = [_count(node, body, state, test) for test in tests]
    known = [count for count in counts if count is not None]
    try:
        return min(known) if known and len(known) == len(counts) and not others else None
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
    tests, _ = _conjunction(body)
    counts = [_count(node, body, state, test) for test in tests]
    bounds = [int(each) for each in (limit, *counts) if each is not None and int(each) <= _MOST]
    if not bounds:
        return None
    lines: dict[int, _Line] = {}
    for n, x in enumerate(state):
        if x.type.element_count() == 1 and (x.array is not None or x.elements is not None):
            try:
                lines |= _lines(node, body, state, [n])
            except (_Unknown, VerifyException, TreadleError):
                continue
    return Counters(f"iteration of {node.where}", min(bounds), lines)


def _conjunction(body: GraphProto) -> tuple[list[NodeProto], bool]:
    """The comparisons all of which have to hold, and whether other things have to; of a condition that the body hands
    on, none."""
    made = {name: each for each in body.node for name in each.output}
    pending, found, others = [body.output[0].name], list[NodeProto](), False
    while pending:
        name = pending.pop()
        producer = made.get(name)
        if name == body.input[1].name:
            continue
        if producer is not None and producer.op_type in ("Identity", "Cast", "And"):
            pending += producer.input
        elif producer is not None and producer.op_type in _LESS:
            found.append(producer)
        else:
            others = True
    return found, others


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
    lines = _lines(node, body, state, numbers)
    i = Symbol("iteration", 0, _MOST)
    margins: list[Symbolic] = []
    for iteration in (0, 1, i):
        own = _states(state, {n: line.at(iteration) for n, line in lines.items()})
        low, high = _integers(node, body, [a, b], iteration, own)
        margins.append(high - low + more)
    start, step = margins[0], margins[0] - margins[1]
    if expression_of(step).as_int() is None or step < 1 or margins[2] + step * i != start:
        raise _Unknown
    # The condition holds behind iteration i while `start - step * i` is above 0.
    count = 1 + (-(-start // int(step)) if start >= 0 else 0)
    if count > _MOST:
        raise _Unknown
    return count


def _lines(node: Node, body: GraphProto, state: Sequence[Tensor], numbers: Sequence[int]) -> dict[int, _Line]:
    """The states of those numbers, which are as the first two iterations say in all."""
    starts = [_integer(state[n]) for n in numbers]
    names = [body.output[n + 1].name for n in numbers]
    behind = _integers(node, body, names, 0, list(state))
    steps = [second - first for first, second in zip(starts, behind, strict=True)]
    if any(expression_of(step).as_int() is None for step in steps):
        raise _Unknown
    lines = {n: _Line(start, int(step)) for n, start, step in zip(numbers, starts, steps, strict=True)}
    i = Symbol("iteration", 0, _MOST)
    own = _states(state, {n: line.at(i) for n, line in lines.items()})
    if _integers(node, body, names, i, own) != [line.at(i + 1) for line in lines.values()]:
        raise _Unknown
    return lines


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

    def write(inner: Node, g: GraphBuilder, _: Sequence[Tensor]) -> list[Tensor]:
        found.extend(inner.run(part, g.numbers(iteration), g.constant(np.array(True)), *state))
        return []

    node.function("count", [], write)
    return [_integer(each) for each in found]


def _integer(x: Tensor) -> Symbolic:
    """The whole number that a tensor of one element is known to be."""
    if x.type.element_count() != 1:
        raise _Unknown
    if x.elements is not None:
        return symbols_in(x.elements)[0]
    if x.array is None or x.array.dtype.kind not in "iu":
        raise _Unknown
    return int(x.array.reshape(-1)[0])


def _before_casts(body: GraphProto, name: str) -> str:
    """A number before it is converted: up to `_MOST`, types of 32 bits and more have all whole numbers."""
    made = {name: each for each in body.node for name in each.output}
    while name in made and made[name].op_type in ("Cast", "Identity"):
        name = made[name].input[0]
    return name


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
