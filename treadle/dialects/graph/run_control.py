"""What loops and branches give, in terms of what their functions give: one meaning for every evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import FuncOp

from treadle.dialects.graph.control import ControlOp, IfOp, called, row_type
from treadle.dialects.graph.dtypes import numpy_dtype

V = TypeVar("V")
Call = Callable[[FuncOp, Sequence[V]], Sequence[V]]


def run_control(
    op: ControlOp,
    operands: Sequence[V],
    call: Call[V],
    number: Callable[[V], int],
    counter: Callable[[int], V],
    stack: Callable[[Sequence[V]], V],
    blank: Callable[[TensorType], V],
) -> tuple[V, ...]:
    """The results of an operation.

    operands: the values of its operands, in order
    call:     what a function gives for its arguments
    number:   a scalar as a whole number; a condition as 0 or 1
    counter:  the scalar of a number of an iteration
    stack:    the rows of a result, one or more, as one value
    blank:    a row of that type, of an iteration that does not run
    """
    if isinstance(op, IfOp):
        condition, *read = operands
        return tuple(call(called(op)[0 if number(condition) else 1], read))
    (body,) = called(op)
    tests, carried = len(op.tests), len(op.carried)
    state, read = list(operands[tests : tests + carried]), operands[tests + carried :]
    times = None if op.times is None else op.times.value.data
    limit = times
    if op.tests:
        limit = number(operands[0]) if times is None else min(number(operands[0]), times)
    going = not op.has_condition or bool(number(operands[1]))
    rows: list[Sequence[V]] = []
    while going and len(rows) < (limit or 0):
        given = list(call(body, [counter(len(rows)), *state, *read]))
        if op.has_condition:
            going = bool(number(given.pop(0)))
        state = given[:carried]
        rows.append(given[carried:])
    while times is not None and len(rows) < times:
        rows.append([blank(row_type(value)) for value in op.rows])
    return (*state, *(stack(column) for column in zip(*rows, strict=True)))


def run_arrays(op: ControlOp, operands: Sequence[NDArray[Any]], call: Call[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """As `run_control`, of arrays."""
    return run_control(op, operands, call, int, lambda number: np.array(number, np.int64), np.stack, zeros)


def zeros(type: TensorType) -> NDArray[Any]:
    """An array of a type."""
    return np.zeros(type.get_shape(), numpy_dtype(type.get_element_type()))


__all__ = ["run_arrays", "run_control", "zeros"]
