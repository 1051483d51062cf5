"""What loops and branches give, in terms of what their functions give: one meaning for every evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.func import FuncOp

from treadle.dialects.graph.control import ControlOp, IfOp, called

V = TypeVar("V")
Call = Callable[[FuncOp, Sequence[V]], Sequence[V]]


def run_control(
    op: ControlOp,
    operands: Sequence[V],
    call: Call[V],
    number: Callable[[V], int],
    counter: Callable[[int], V],
    stack: Callable[[Sequence[V]], V],
) -> tuple[V, ...]:
    """The results of an operation.

    operands: the values of its operands, in order
    call:     what a function gives for its arguments
    number:   a scalar as a whole number; a condition as 0 or 1
    counter:  the scalar of a number of an iteration
    stack:    the rows of a result, one or more, as one value
    """
    if isinstance(op, IfOp):
        condition, *read = operands
        return tuple(call(called(op)[0 if number(condition) else 1], read))
    (body,) = called(op)
    tests, carried = len(op.tests), len(op.carried)
    state, read = list(operands[tests : tests + carried]), operands[tests + carried :]
    limit = number(operands[0]) if op.times is None else op.times.value.data
    going = op.times is not None or bool(number(operands[1]))
    rows: list[Sequence[V]] = []
    while going and len(rows) < limit:
        given = list(call(body, [counter(len(rows)), *state, *read]))
        if op.times is None:
            going = bool(number(given.pop(0)))
        state = given[:carried]
        rows.append(given[carried:])
    return (*state, *(stack(column) for column in zip(*rows, strict=True)))


def run_arrays(op: ControlOp, operands: Sequence[NDArray[Any]], call: Call[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """As `run_control`, of arrays."""
    return run_control(op, operands, call, int, lambda number: np.array(number, np.int64), lambda rows: np.stack(rows))


__all__ = ["run_arrays", "run_control"]
