"""What operators mean, computed with NumPy: the oracle for every pass and backend.

Nothing here but a reshape is known by name: an operator is evaluated by its definition, vectorised over all
its elements. What the values are is a choice (`arithmetic.py`): arrays of the element types, or float64 beside limits
of the errors of all elements (`treadle/backends/reference/bounded.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith
from xdsl.dialects.builtin import DYNAMIC_INDEX, IndexType, TensorType, i1
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from treadle.dialects.graph.arithmetic import AFFINE_OPERATORS, Affine, Arithmetic, Array, Exact, V, apply_scalar
from treadle.dialects.graph.compute import AtOp, ComputeOp, ReduceOp, YieldOp, yielded, yielded_values
from treadle.dialects.graph.constant import ConstantOp, constant_array
from treadle.dialects.graph.control import ControlOp, IfOp, LoopOp, called, row_type
from treadle.dialects.graph.definition import Operator, definition
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.fused import FusedOp
from treadle.dialects.graph.movement import ReshapeOp
from treadle.dialects.location import location_of
from treadle.errors import TreadleError

# What loops and branches give, in terms of what their functions give: one meaning for every evaluator.

Given = TypeVar("Given")
Call = Callable[[FuncOp, Sequence[Given]], Sequence[Given]]


def run_control(
    op: ControlOp,
    operands: Sequence[Given],
    call: Call[Given],
    number: Callable[[Given], int],
    counter: Callable[[int], Given],
    stack: Callable[[Sequence[Given]], Given],
    blank: Callable[[TensorType], Given],
) -> tuple[Given, ...]:
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
    rows: list[Sequence[Given]] = []
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


Env = Mapping[SSAValue, Array]

_CHUNK = 1 << 23
"""Elements of the largest intermediate array (64 MiB of float64) that a reduction evaluates at once."""


def evaluate(op: Operation, env: Env) -> Array:
    """The value of a tensor operation (an Operator, `graph.constant`, `graph.compute`), the first of a `graph.fused`.

    `env` gives the arrays of all tensors that it reads; the result may be a view of one of them. TreadleError
    for any other operation, for a symbolic dimension, and for a read outside a tensor.
    """
    return evaluate_results(op, env)[0]


def evaluate_results(op: Operation, env: Env) -> tuple[Array, ...]:
    """The values of all results of a tensor operation, or of a loop or a branch; errors as `evaluate`."""
    if isinstance(op, LoopOp | IfOp):
        return run_arrays(op, [env[operand] for operand in op.operands], _called)
    return evaluate_in(Exact(), op, env)


def _called(function: FuncOp, operands: Sequence[Array]) -> list[Array]:
    """What a function of tensor operations gives."""
    block = function.body.block
    env: dict[SSAValue, Array] = dict(zip(block.args, operands, strict=True))
    for op in block.ops:
        if not isinstance(op, ReturnOp):
            env.update(zip(op.results, evaluate_results(op, env), strict=True))
    assert block.last_op is not None
    return [np.asarray(env[value]) for value in block.last_op.operands]


def evaluate_compute(compute: ComputeOp, env: Env) -> Array:
    """All elements of a `graph.compute`, whose tensors have their arrays in `env`; errors as `evaluate`."""
    return _elements(Exact(), compute, env)


def evaluate_in(arithmetic: Arithmetic[V], op: Operation, env: Mapping[SSAValue, V]) -> tuple[V, ...]:
    """As `evaluate_results`, in another arithmetic."""
    if not isinstance(op, FusedOp):
        return (_value(arithmetic, op, env),)
    inner = dict(env)
    for child in op.body.block.ops:
        if not isinstance(child, YieldOp):
            inner[child.results[0]] = evaluate_in(arithmetic, child, inner)[0]
    return tuple(inner[value] for value in yielded_values(op.body))


def evaluate_elements(arithmetic: Arithmetic[V], compute: ComputeOp, env: Mapping[SSAValue, V]) -> dict[SSAValue, V]:
    """The values of the operations in a definition's own block, of all its elements at once: each has the definition's
    shape. Indices are left out, and what a reduction folds. Errors as `evaluate_compute`; nothing of an empty tensor.
    """
    space = _Space(arithmetic, env)
    _check_elements(compute, env)
    if 0 in compute.shape:
        return {}
    block = compute.body.block
    with np.errstate(all="ignore"), space.axes(block, [(0, extent) for extent in compute.shape]):
        space.run(block)
        values = [value for op in block.ops for value in op.results if not isinstance(value.type, IndexType)]
        return {value: arithmetic.broadcast(space.value(value), compute.shape) for value in values}


def _value(arithmetic: Arithmetic[V], op: Operation, env: Mapping[SSAValue, V]) -> V:
    if isinstance(op, ConstantOp):
        return arithmetic.lift(constant_array(op))
    if isinstance(op, ReshapeOp):
        # A shortcut: its definition divides and multiplies every index.
        return arithmetic.reshape(env[op.x], op.shape)
    if isinstance(op, Operator):
        if 0 in op.shape:
            return arithmetic.lift(np.empty(op.shape, numpy_dtype(op.type.get_element_type())))
        return _operator_value(arithmetic, op, env)
    if isinstance(op, ComputeOp):
        return _elements(arithmetic, op, env)
    accepted = "an operator of the graph dialect, graph.constant, graph.compute, graph.fused"
    raise TreadleError(f"{op.name} cannot be evaluated", location_of(op), accepted)


_MOST_DEFINITIONS = 1024
_definitions: dict[object, tuple[Block, ComputeOp]] = {}
"""Of operators by what they are made of, on arguments of a block in place of operands: building a definition takes
longer than evaluating it on small tensors."""


def _operator_value(arithmetic: Arithmetic[V], op: Operator, env: Mapping[SSAValue, V]) -> V:
    types = tuple(operand.type for operand in op.operands)
    key = (type(op), types, op.result.type, frozenset(op.properties.items()))
    found = _definitions.get(key)
    if found is None:
        block = Block(arg_types=types)
        copy = type(op).create(operands=block.args, result_types=[op.result.type], properties=dict(op.properties))
        found = block, definition(copy)
        if len(_definitions) >= _MOST_DEFINITIONS:
            _definitions.clear()  # other threads hold what they took out
        _definitions[key] = found
    block, compute = found
    try:
        return _elements(arithmetic, compute, {a: env[o] for a, o in zip(block.args, op.operands, strict=True)})
    except (KeyError, TreadleError):
        compute = definition(op)  # whose error names this one's place
        try:
            return _elements(arithmetic, compute, env)
        finally:
            # A definition that is not erased would count as a user of the operands.
            compute.erase()


def _check_elements(compute: ComputeOp, env: Mapping[SSAValue, V]) -> None:
    """TreadleError for a symbolic dimension, and for a tensor without a value."""
    if DYNAMIC_INDEX in compute.shape:
        raise TreadleError(
            f"graph.compute of {compute.type} has a symbolic dimension", location_of(compute), "static extents"
        )
    for tensor in compute.tensors():
        if tensor not in env:
            raise TreadleError(f"graph.compute reads {tensor}, which has no value here", location_of(compute))


def _elements(arithmetic: Arithmetic[V], compute: ComputeOp, env: Mapping[SSAValue, V]) -> V:
    shape = compute.shape
    _check_elements(compute, env)
    if 0 in shape:
        return arithmetic.lift(np.empty(shape, numpy_dtype(compute.type.get_element_type())))
    space = _Space(arithmetic, env)
    with np.errstate(all="ignore"), space.axes(compute.body.block, [(0, extent) for extent in shape]):
        value = space.run(compute.body.block)
    return arithmetic.broadcast(value, shape)


class _Space(Generic[V]):
    """The values of one definition over its iteration space."""

    def __init__(self, arithmetic: Arithmetic[V], env: Mapping[SSAValue, V]):
        self.arithmetic, self.env = arithmetic, env
        self.sizes: list[int] = []
        self.values: dict[SSAValue, Affine | V] = {}

    def axes(self, block: Block, ranges: Sequence[tuple[int, int]]) -> _Axes[V]:
        """Adds a block's arguments, each over (start, size), as axes while the `with` statement lasts."""
        return _Axes(self, block, ranges)

    def run(self, block: Block) -> V:
        """The value that a block yields, over the axes in force."""
        last = block.last_op
        assert isinstance(last, YieldOp)
        for op in block.ops:
            if op is not last:
                self.values[op.results[0]] = self._result(op)
        return self.value(last.value)

    def value(self, value: SSAValue) -> V:
        known = self.values[value]
        return self.arithmetic.lift(known.array(self.sizes)) if isinstance(known, Affine) else known

    def _result(self, op: Operation) -> Affine | V:
        if isinstance(op, AtOp):
            return self._read(op)
        if isinstance(op, ReduceOp):
            return self._reduce(op)
        if isinstance(op.results[0].type, IndexType):
            affine = self._affine(op)
            if affine is not None:
                return affine
        return self.arithmetic.scalar(op, [self.value(o) for o in op.operands])

    def _affine(self, op: Operation) -> Affine | None:
        """The value of an index operation without an array of it, where its operands have none either.

        The evaluator is the oracle of index algebra, too: it computes with values, and reads no expressions.
        """
        if isinstance(op, arith.ConstantOp):
            return Affine(int(apply_scalar(op, [])), {})
        operands = [self.values[o] for o in op.operands]
        combine = AFFINE_OPERATORS.get(type(op))
        if combine is None or not all(isinstance(operand, Affine) for operand in operands):
            return None
        return combine(*operands)

    def _read(self, op: AtOp) -> V:
        predicate = None if op.predicate is None else self.value(op.predicate)
        otherwise = None if op.otherwise is None else self.value(op.otherwise)
        indices = [self.values[i] for i in op.indices]
        return self.arithmetic.read(self.env[op.source], indices, self.sizes, predicate, otherwise)

    def _reduce(self, op: ReduceOp) -> V:
        factors = _factors(op)
        total: V | None = None
        for ranges in _chunks(op.shape, self._chunk_points(op, factors)):
            with self.axes(op.body.block, ranges):
                part = self._fold(op, factors)
            total = part if total is None else self.arithmetic.combine(op.kind.data, total, part)
        return self.arithmetic.finish(op, total)

    def _fold(self, op: ReduceOp, factors: tuple[SSAValue, SSAValue] | None) -> V:
        """One chunk of a reduction, not yet rounded to the element type."""
        block = op.body.block
        if factors is None:
            return self.arithmetic.fold(op, self.run(block), self.sizes, len(block.args))
        for inner in block.ops:
            if not isinstance(inner, YieldOp) and inner is not yielded(op.body).owner:
                self.values[inner.results[0]] = self._result(inner)
        a, b = factors
        return self.arithmetic.contract(op, (self.value(a), self.value(b)), self.sizes, len(block.args))

    def _chunk_points(self, op: ReduceOp, factors: tuple[SSAValue, SSAValue] | None) -> int:
        """How many of the reduction's points fit `_CHUNK` elements, by its body's largest array."""
        levels = {value: self._levels(value) for value in self.values}
        sizes = [*self.sizes]
        for arg, extent in zip(reversed(op.body.block.args), reversed(op.shape), strict=True):
            levels[arg] = frozenset([len(sizes)])
            sizes.append(extent)
        product = yielded(op.body).owner if factors is not None else None
        largest = 1
        for inner in op.body.block.ops:
            operands = [o for nested in inner.walk() for o in nested.operands if not inner.is_ancestor(o.owner)]
            found = frozenset(level for o in operands for level in levels.get(o, ()))
            levels.update((result, found) for result in inner.results)
            made = inner.results and inner is not product and not isinstance(inner.results[0].type, IndexType)
            largest = max(largest, prod(sizes[level] for level in found)) if made else largest
        return max(1, prod(op.shape) * _CHUNK // largest)

    def _levels(self, value: SSAValue) -> frozenset[int]:
        known = self.values[value]
        if isinstance(known, Affine):
            return frozenset(known.steps)
        rank = len(known.shape)
        return frozenset(rank - 1 - axis for axis, extent in enumerate(known.shape) if extent > 1)


class _Axes(Generic[V]):
    """A block's arguments as axes of a space, innermost argument rightmost."""

    def __init__(self, space: _Space[V], block: Block, ranges: Sequence[tuple[int, int]]):
        self.space, self.args, self.ranges = space, block.args, ranges

    def __enter__(self) -> None:
        sizes = self.space.sizes
        for arg, (start, size) in zip(reversed(self.args), reversed(self.ranges), strict=True):
            self.space.values[arg] = Affine(start, {len(sizes): 1} if size != 1 else {})
            sizes.append(size)

    def __exit__(self, *_: object) -> None:
        del self.space.sizes[len(self.space.sizes) - len(self.ranges) :]


def _factors(op: ReduceOp) -> tuple[SSAValue, SSAValue] | None:
    """The factors of a sum of products, which is a contraction: of floats, or of two integers."""
    product = yielded(op.body).owner
    if not isinstance(product, arith.MulfOp | arith.MuliOp) or product.parent is not op.body.block:
        return None
    if isinstance(product, arith.MuliOp) and (product.result.type in (i1, IndexType()) or product.lhs is product.rhs):
        return None
    if op.kind.data != "add" or not product.result.has_one_use():
        return None
    return product.lhs, product.rhs


def _chunks(extents: Sequence[int], points: int) -> Iterator[list[tuple[int, int]]]:
    """Boxes of about `points` points that cover `extents`, as (start, size) a dimension; none of nothing."""
    if 0 in extents:
        return
    inner = prod(extents[1:])
    if not extents or prod(extents) <= points:
        yield [(0, extent) for extent in extents]
        return
    step = max(1, points // inner)
    for start in range(0, extents[0], step):
        size = min(step, extents[0] - start)
        for rest in _chunks(extents[1:], max(1, points // size)):
            yield [(start, size), *rest]
