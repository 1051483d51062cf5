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


@converts("Scan", since=9)
def scan(node: Node, g: GraphBuilder) -> list[Tensor]:
    """Every iteration takes a slice of each scanned input; its results are slices of the outputs."""
    body, count = node.graph("body"), node.int("num_scan_inputs", 0)
    if not 1 <= count <= len(node):
        raise node.error(f"num_scan_inputs is {count}", f"1 to {len(node)}")
    state, scanned = node.all_inputs()[: len(node) - count], node.all_inputs()[len(node) - count :]
    outputs = len(body.output) - len(state)
    if outputs < 0:
        raise node.error(f"the body has {len(body.output)} outputs", f"at least {len(state)}")
    listed = node.ints_of_length("scan_input_axes", count, 0)
    axes = [node.axis(axis, x.rank) for axis, x in zip(listed, scanned, strict=True)]
    backward = node.ints_of_length("scan_input_directions", count, 0)
    output_axes = node.ints_of_length("scan_output_axes", outputs, 0)
    output_backward = node.ints_of_length("scan_output_directions", outputs, 0)
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
    columns = [list(column) for column in zip(*rows, strict=True)]
    return state + [
        g.stack(column[::-1] if back else column, node.axis(axis, column[0].rank + 1))
        for column, axis, back in zip(columns, output_axes, output_backward, strict=True)
    ]
