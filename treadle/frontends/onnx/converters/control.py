"""Control flow: If, Loop and Scan, decided while importing where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from onnx import GraphProto
from xdsl.dialects.func import ReturnOp
from xdsl.utils.exceptions import VerifyException

from treadle.artifact.store import StoreError
from treadle.dialects.graph import (
    BinaryOp,
    BitcastOp,
    BroadcastOp,
    CastOp,
    ConcatOp,
    ConstantOp,
    GatherOp,
    MaskOp,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    UnaryOp,
    WhereOp,
)
from treadle.dialects.graph.dtypes import MAX_WRITTEN_OUT
from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.extent import Extent, Symbolic, minimum
from treadle.frontends.onnx.converters.data_loops import (
    ChangingState,
    Trips,
    behind_first,
    branch_of,
    counters_of,
    known_iterations,
    loop_of,
    scan_of,
    shown,
)
from treadle.frontends.onnx.functions import FoundInBody, IteratedValue, converts
from treadle.frontends.onnx.loader import graphs_of
from treadle.frontends.onnx.node import Aside, Node, ValueNeeded

MOST_WRITTEN = 64
"""Nodes of a loop's body, times its iterations, that are written out.

A Scan whose body is a product of 64 x 64, a sum and tanh, on two cores of a Xeon that others used, written out and as a
loop: 16 iterations (64 nodes) took 2.81 and 0.20 s to compile and 33 and 37 us to call, 64 iterations 6.54 and 0.21 s
and 48 and 37 us, 256 iterations 53.74 and 0.20 s and 89 and 57 us."""
_WRITTEN_OUT = (ChangingState, FoundInBody, IteratedValue)
"""What a body that is no function raises."""
_LIGHT = (
    BinaryOp, BitcastOp, BroadcastOp, CastOp, ConcatOp, ConstantOp, GatherOp, MaskOp, PadOp, ReshapeOp, ReturnOp,
    SliceOp, TransposeOp, UnaryOp, WhereOp,
)  # fmt: skip


@converts("If")
def if_node(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The branch of a known condition; of another that which a call chooses. Of branches that are elementwise both are
    computed, in the kernels around them, and each element is chosen."""
    condition = node.input()
    branches = {"then": node.graph("then_branch"), "else": node.graph("else_branch")}
    if condition.array is not None:
        return node.run(branches["then" if node.known_scalar(0, "the condition") else "else"])
    if condition.type.element_count() != 1:
        raise node.error(f"the condition is {condition.type}", "one boolean")
    condition = g.reshape(condition, ())
    then, other = _of_equal_ranks(g, *(_converted(node, condition, graph) for graph in branches.values()))
    if not _are_alike(then.results, other.results):
        types = " and ".join(", ".join(map(shown, side.results)) for side in (then, other))
        message, accepted = f"the branches of an unknown condition give {types}", "equal types, or a known condition"
        raise ValueNeeded(message, node.where, accepted, condition)
    if not any(map(_stays, (then, other))) and not (_is_light(then) and _is_light(other)):
        return branch_of(node, g, condition, then, other)
    for side in (then, other):
        g.move(side.block)
    return [g.where(condition, a, b) for a, b in zip(then.results, other.results, strict=True)]


def _converted(node: Node, condition: Tensor, graph: GraphProto) -> Aside:
    """A branch; what is wrong with it would not matter if it were known that the other one is chosen."""
    try:
        return node.beside(graph)
    except (ValueNeeded, StoreError):
        raise
    except TreadleError as error:
        raise ValueNeeded(error.message, error.where, error.accepted, condition) from error


def _of_equal_ranks(g: GraphBuilder, then: Aside, other: Aside) -> tuple[Aside, Aside]:
    """The branches, whose results of one element have the rank of the other branch's where that is higher: exporters
    write scalars in one, and `[1]` in the other."""
    if len(then.results) != len(other.results):
        return then, other
    sides: list[Aside] = []
    for side, beside in ((then, other), (other, then)):
        with g.writing_to(side.block):
            pairs = zip(side.results, beside.results, strict=True)
            sides.append(replace(side, results=[g.reshape(a, _higher(a, b)) for a, b in pairs]))
    return sides[0], sides[1]


def _higher(a: Tensor, b: Tensor) -> Sequence[Symbolic]:
    both_one = a.type.element_count() == 1 == b.type.element_count() and a.extents is None and b.extents is None
    return (1,) * b.rank if both_one and b.rank > a.rank else a.shape


def _are_alike(then: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return [(x.type, x.shape) for x in then] == [(x.type, x.shape) for x in other]


def _stays(side: Aside) -> bool:
    """Whether a branch is no function: of results without elements, or if it finds extents."""
    return side.finds or any(0 in x.type.get_shape() for x in side.results)


def _is_light(side: Aside) -> bool:
    return all(isinstance(op, _LIGHT) for op in side.block.ops)


@converts("Loop")
def loop(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Few iterations of a known number are written out; others, and those that a call decides, are a `graph.loop`."""
    body, limit, going = node.graph("body"), node.optional(0), node.optional(1)
    most = None if limit is None or _is_data(limit) else node.known_int(0, "the trip count")
    state = [node.input(n) for n in range(2, len(node))]
    known = None
    if (
        len(body.output) > len(state)
        and (limit is None or not _is_data(limit))
        and (going is None or not _is_data(going))
    ):
        known = _known(node, body, most, going, state)
    trips = Trips(most if limit is None or not _is_data(limit) else limit, going, known)
    most = most if known is None else known
    if isinstance(most, Extent):
        return loop_of(node, g, body, trips, state)
    decided = [x for x in (limit, going) if x is not None and _is_data(x)]
    if decided:
        try:
            return _as_function(node, g, body, trips, most, state)
        except IteratedValue as error:  # once they are written out, iterations are told apart
            given = (*error.tensors, *decided)
            raise ValueNeeded(error.message, error.where, error.accepted, *given) from error
    begins = going is None or bool(node.known_scalar(1, "the condition"))
    size = _size(body)
    if most is None or not begins or most * size <= MOST_WRITTEN:
        written = _written_out(node, g, body, most if begins else 0, state, MOST_WRITTEN // size + 1)
        return loop_of(node, g, body, trips, state) if written is None else written
    try:
        return _as_function(node, g, body, trips, most, state)
    except ChangingState:
        peeled = _peeled(node, g, body, trips, state)
        if peeled is not None:
            return peeled
    except (FoundInBody, IteratedValue):
        pass
    written = _written_out(node, g, body, most, state, MAX_WRITTEN_OUT)
    if written is None:
        message = "the loop's condition depends on the model's input data, and its state changes its type"
        raise node.error(message, "a state of one type from the second iteration on, or a condition that is known")
    return written


def _as_function(
    node: Node, g: GraphBuilder, body: GraphProto, trips: Trips, most: Symbolic | None, state: Sequence[Tensor]
) -> list[Tensor]:
    """A `graph.loop`, whose body knows its counters as expressions of the iteration's number if it has to."""
    try:
        return loop_of(node, g, body, trips, state)
    except IteratedValue:
        counters = counters_of(node, body, state, most)
        if counters is None:
            raise
        return loop_of(node, g, body, replace(trips, counters=counters), state)


def _peeled(
    node: Node, g: GraphBuilder, body: GraphProto, trips: Trips, state: Sequence[Tensor]
) -> list[Tensor] | None:
    """A loop that begins, as its first iteration and a `graph.loop` of the others, whose state has the types that the
    first one gives; None where these do not stay."""
    counts = len(g.found.counts)
    condition, state, first = _iterate(node, g, body, 0, state)
    if len(g.found.counts) > counts:
        g.found.keep(counts)
        return None
    assert not isinstance(trips.limit, Tensor), "a loop that data bound may not run at all"
    limit, known = (None if n is None else n - 1 for n in (trips.limit, trips.known))
    if 0 in (limit, known) or (condition.array is not None and not condition.array.reshape(-1)[0]):
        return [*state, *(g.stack([row], 0) for row in first)]
    others = Trips(limit, condition, known)
    try:
        results = _as_function(node, g, behind_first(body), others, limit if known is None else known, state)
    except _WRITTEN_OUT:
        return None
    rows = zip(first, results[len(state) :], strict=True)
    return [*results[: len(state)], *(g.concat([g.stack([row], 0), rest], 0) for row, rest in rows)]


def _known(
    node: Node, body: GraphProto, most: Symbolic | None, going: Tensor | None, state: Sequence[Tensor]
) -> Symbolic | None:
    """The number of iterations of a loop whose condition compares counters; None where it is not known."""
    if going is not None and not node.known_scalar(1, "the condition"):
        return None
    count = known_iterations(node, body, state)
    try:
        return count if count is None or most is None else minimum(count, most)
    except VerifyException:
        return None


def _is_data(x: Tensor) -> bool:
    """Whether a call decides what a tensor is."""
    return x.array is None and x.elements is None


def _size(graph: GraphProto) -> int:
    """The nodes of a graph and of those in it."""
    return 1 + sum(1 + sum(map(_size, graphs_of(each))) for each in graph.node)


def _written_out(
    node: Node, g: GraphBuilder, body: GraphProto, limit: int | None, state: list[Tensor], most: int
) -> list[Tensor] | None:
    """The results of the iterations one after the other; None if a call decides how many there are, or if there are
    more than `most`."""
    rows: list[list[Tensor]] = []
    going, counts = True, len(g.found.counts)
    while going and (limit is None or len(rows) < limit):
        if len(rows) > most:
            return None
        condition, state, row = _iterate(node, g, body, len(rows), state)
        rows.append(row)
        if condition.array is None:
            if len(g.found.counts) > counts:
                message = "the loop's condition depends on the model's input data, and so do extents in its body"
                raise ValueNeeded(message, node.where, "a condition that is known", condition)
            return None
        going = bool(condition.array.reshape(-1)[0])
    if rows:
        return [*state, *(g.stack(column, 0) for column in zip(*rows, strict=True))]
    # The body shows what an iteration's results would be; nothing uses the operators.
    _, _, row = _iterate(node, g, body, 0, state)
    return [*state, *(g.constant(np.zeros((0, *x.shape), x.dtype)) for x in row)]


def _iterate(
    node: Node, g: GraphBuilder, body: GraphProto, number: int, state: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """The condition, the state and the further results of an iteration."""
    counter, true = g.constant(np.array(number)), g.constant(np.array(True))
    if len(body.output) <= len(state):
        raise node.error(f"the body has {len(body.output)} outputs", f"at least {len(state) + 1}")
    condition, *results = node.run(body, counter, true, *state)
    return condition, results[: len(state)], results[len(state) :]


@converts("Scan")
def scan_batched(node: Node, g: GraphBuilder) -> list[Tensor]:
    """As opset 8 had it: the first dimension of all is that of a batch, the second that of the slices."""
    if node.optional(0) is not None:
        raise node.error("sequence_lens is given", "sequences of one length")
    given = [node.input(n) for n in range(1, len(node))]
    count = _scan_count(node, given)
    batches = {x.shape[0] if x.rank else 0 for x in given}
    if len(batches) != 1 or 0 in batches:
        raise node.error(f"batches of {sorted(batches)} entries", "one number from 1 upwards")
    backward = node.ints_of_length("directions", count, 0)
    entries = [
        _scanned(node, g, [g.entry(x, 0, n) for x in given], [0] * count, backward) for n in range(batches.pop())
    ]
    results = [[*state, *columns] for state, columns in entries]
    return [g.stack(column, 0) for column in zip(*results, strict=True)]


@converts("Scan", since=9)
def scan(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Every iteration takes a slice of each scanned input; its results are slices of the outputs."""
    given = node.all_inputs()
    count = _scan_count(node, given)
    axes = node.ints_of_length("scan_input_axes", count, 0)
    state, columns = _scanned(node, g, given, axes, node.ints_of_length("scan_input_directions", count, 0))
    output_axes = node.ints_of_length("scan_output_axes", len(columns), 0)
    output_backward = node.ints_of_length("scan_output_directions", len(columns), 0)
    return state + [
        _laid_out(g, x, back, node.axis(axis, x.rank))
        for x, axis, back in zip(columns, output_axes, output_backward, strict=True)
    ]


def _laid_out(g: GraphBuilder, rows: Tensor, backward: int, axis: int) -> Tensor:
    """Rows as slices along an axis, from the last one on if they are `backward`."""
    if backward:
        rows = g.reversed(rows, 0)
    others = list(range(1, rows.rank))
    return g.transpose(rows, [*others[:axis], 0, *others[axis:]])


def _scan_count(node: Node, given: Sequence[Tensor]) -> int:
    count = node.int("num_scan_inputs", 0)
    if not 1 <= count <= len(given):
        raise node.error(f"num_scan_inputs is {count}", f"1 to {len(given)}")
    return count


def _scanned(
    node: Node, g: GraphBuilder, given: Sequence[Tensor], listed: Sequence[int], backward: Sequence[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """The state after all iterations, and each further result of the body, a row of each iteration.

    given: the state, then the scanned inputs, each with its axis in `listed`, and whether it is read from its end
    """
    body, count = node.graph("body"), len(listed)
    state, scanned = list(given[: len(given) - count]), given[len(given) - count :]
    if len(body.output) < len(state):
        raise node.error(f"the body has {len(body.output)} outputs", f"at least {len(state)}")
    axes = [node.axis(axis, x.rank) for axis, x in zip(listed, scanned, strict=True)]
    lengths = {x.shape[axis] for x, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1 or lengths == {0}:
        raise node.error(f"the scanned inputs have {list(lengths)} slices", "one number from 1 upwards")
    (length,) = lengths
    if isinstance(length, Extent):
        return scan_of(node, g, body, state, scanned, axes, backward, length)
    if length * _size(body) > MOST_WRITTEN:
        try:
            return scan_of(node, g, body, state, scanned, axes, backward, length)
        except _WRITTEN_OUT:
            pass
    rows: list[list[Tensor]] = []
    for n in range(length):
        positions = [length - 1 - n if back else n for back in backward]
        slices = [g.entry(x, a, p) for x, a, p in zip(scanned, axes, positions, strict=True)]
        results = node.run(body, *state, *slices)
        state = results[: len(state)]
        rows.append(results[len(state) :])
    return state, [g.stack(column, 0) for column in zip(*rows, strict=True)]
