"""Control flow that is decided while importing: If, and the loops Loop and Scan, whose iterations are written out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node, ValueNeeded
from treadle.frontends.onnx.registry import converts


@converts("If")
def if_node(node: Node, g: GraphBuilder) -> list[Tensor]:
    """The branch of a known condition; of another both, of whose results each element is chosen."""
    condition = node.input()
    branches = [node.graph("then_branch"), node.graph("else_branch")]
    if condition.array is not None:
        return node.run(branches[0 if node.known_scalar(0, "the condition") else 1])
    then, other = (node.run(branch) for branch in branches)
    if [x.type for x in then] != [x.type for x in other]:
        types = " and ".join(", ".join(str(x.type) for x in branch) for branch in (then, other))
        raise node.error(f"the branches of an unknown condition give {types}", "equal types, or a known condition")
    condition = g.reshape(condition, ())
    return [g.where(condition, a, b) for a, b in zip(then, other, strict=True)]


@converts("Loop")
def loop(node: Node, g: GraphBuilder) -> list[Tensor]:
    """A known number of iterations, each written out, with conditions that are known as well."""
    body = node.graph("body")
    limit = None if node.optional(0) is None else node.known_int(0, "the trip count")
    going = node.optional(1) is None or bool(node.known_scalar(1, "the condition"))
    state = [node.input(n) for n in range(2, len(node))]
    rows: list[list[Tensor]] = []
    while going and (limit is None or len(rows) < limit):
        condition, state, row = _iterate(node, g, body, len(rows), state)
        rows.append(row)
        if condition.array is None:
            message = "the loop's condition depends on the model's input data"
            raise ValueNeeded(message, node.where, "a condition that is known", condition)
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
    results = [[*state, *(g.stack(column, 0) for column in columns)] for state, columns in entries]
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
        g.stack(column[::-1] if back else column, node.axis(axis, column[0].rank + 1))
        for column, axis, back in zip(columns, output_axes, output_backward, strict=True)
    ]


def _scan_count(node: Node, given: Sequence[Tensor]) -> int:
    count = node.int("num_scan_inputs", 0)
    if not 1 <= count <= len(given):
        raise node.error(f"num_scan_inputs is {count}", f"1 to {len(given)}")
    return count


def _scanned(
    node: Node, g: GraphBuilder, given: Sequence[Tensor], listed: Sequence[int], backward: Sequence[int]
) -> tuple[list[Tensor], list[list[Tensor]]]:
    """The state after all iterations, and each further result of the body, iteration by iteration.

    given: the state, then the scanned inputs, each with its axis in `listed`, and whether it is read from its end
    """
    body, count = node.graph("body"), len(listed)
    state, scanned = list(given[: len(given) - count]), given[len(given) - count :]
    if len(body.output) < len(state):
        raise node.error(f"the body has {len(body.output)} outputs", f"at least {len(state)}")
    axes = [node.axis(axis, x.rank) for axis, x in zip(listed, scanned, strict=True)]
    lengths = {x.shape[axis] for x, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1 or lengths == {0}:
        raise node.error(f"the scanned inputs have {sorted(lengths)} slices", "one number from 1 upwards")
    (length,) = lengths
    rows: list[list[Tensor]] = []
    for n in range(length):
        positions = [length - 1 - n if back else n for back in backward]
        slices = [g.entry(x, a, p) for x, a, p in zip(scanned, axes, positions, strict=True)]
        results = node.run(body, *state, *slices)
        state = results[: len(state)]
        rows.append(results[len(state) :])
    return state, [list(column) for column in zip(*rows, strict=True)]
