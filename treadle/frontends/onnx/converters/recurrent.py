"""RNN, GRU and LSTM: a loop over the steps; the products of all inputs with the weights are one product before.

Few steps are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.composed import softplus
from treadle.frontends.common.extent import Extent, Symbolic, bounds_of
from treadle.frontends.onnx.converters.data_loops import counted_loop, counter
from treadle.frontends.onnx.functions import converts
from treadle.frontends.onnx.node import Node

_WRITTEN = 4
"""Steps that are written out in any case.

LSTMs of 64 inputs and 128 states on two idle cores of a Xeon with AVX-512, written out and as a loop: 4 steps 1.27
and 0.15 s to compile, 30 and 29 us to call; 8 backward 0.58 and 0.24 s, 43 and 42 us; 16 in both directions 2.25 and
0.58 s, 120 and 133 us."""

DIRECTIONS = ("forward", "reverse", "bidirectional")
Activation = Callable[[GraphBuilder, Tensor], Tensor]
State = tuple[Tensor, ...]
Cell = Callable[[GraphBuilder, Tensor, State], State]


def _unary(kind: str) -> Activation:
    return lambda g, x: g.unary(kind, x)


def _softsign(g: GraphBuilder, x: Tensor) -> Tensor:
    return g.div(x, g.add(g.unary("abs", x), 1))


ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": _unary("sigmoid"),
    "tanh": _unary("tanh"),
    "relu": _unary("relu"),
    "softsign": _softsign,
    "softplus": softplus,
}


@dataclass(frozen=True)
class Matrix:
    """Weights that rows are multiplied by: `product(g, rows, *parts)` is `[rows, gates * H]`.

    parts: one tensor of floats, or the parts of a quantised matrix
    """

    parts: tuple[Tensor, ...]
    product: Callable[..., Tensor]

    def times(self, g: GraphBuilder, rows: Tensor) -> Tensor:
        """The rows' products."""
        return self.product(g, rows, *self.parts)


@dataclass(frozen=True)
class Weights:
    """Those of one direction: of an input and of a state, their biases, and an LSTM's peepholes.

    w:         of rows of I elements
    r:         of rows of H elements
    w_bias:    `[gates * H]`, as r_bias
    functions: the activations of the direction
    """

    w: Matrix
    r: Matrix
    w_bias: Tensor
    r_bias: Tensor
    peepholes: Tensor | None
    functions: Sequence[Activation]


Matrices = Callable[[Node, GraphBuilder, int, int], tuple[int, list[tuple[Matrix, Matrix]]]]
"""H, and the matrices w and r of each of so many directions, for so many gates; an error if shapes do not fit."""


@converts("RNN", since=7)
def rnn(node: Node, g: GraphBuilder) -> list[Tensor]:
    """`h = f(x W + h R + b)`."""

    def cell(weights: Weights) -> Cell:
        (f,) = weights.functions

        def step(g: GraphBuilder, x: Tensor, state: State) -> State:
            return (f(g, g.add(x, _recurrent(g, state[0], weights))),)

        return step

    return _sequence(node, g, 1, ("Tanh",), cell, 1)


@converts("GRU", since=7)
def gru(node: Node, g: GraphBuilder) -> list[Tensor]:
    """`h = (1 - z) * n + z * h`, of an update gate `z` and a reset gate in the new state `n`."""
    before = node.flag("linear_before_reset")

    def cell(weights: Weights) -> Cell:
        f, f_hidden = weights.functions

        def step(g: GraphBuilder, x: Tensor, state: State) -> State:
            (h,) = state
            size = h.shape[1]
            recurrent = _recurrent(g, h, weights)
            both = f(g, g.add(_part(g, x, 0, 2 * size), _part(g, recurrent, 0, 2 * size)))
            z, reset = _part(g, both, 0, size), _part(g, both, size, size)
            if before:
                inner = g.mul(reset, _part(g, recurrent, 2 * size, size))
            else:
                rows = g.narrow(weights.r.parts[0], 0, 2 * size, size)
                product = g.matmul(g.mul(reset, h), g.transpose(rows, (1, 0)))
                inner = g.add(product, g.narrow(weights.r_bias, 0, 2 * size, size))
            new = f_hidden(g, g.add(_part(g, x, 2 * size, size), inner))
            return (g.add(g.mul(g.sub(g.broadcast(g.scalar(1, z), z.shape), z), new), g.mul(z, h)),)

        return step

    return _sequence(node, g, 3, ("Sigmoid", "Tanh"), cell, 1)


@converts("LSTM", since=7)
def lstm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """`c = forget * c + input * new`, `h = output * f(c)`; the gates are in the order input, output, forget, new."""
    return lstm_of(node, g, _floats)


def lstm_of(node: Node, g: GraphBuilder, matrices: Matrices) -> list[Tensor]:
    """An LSTM whose weights are floats, or quantised."""
    if node.flag("input_forget"):
        raise node.error("input_forget is 1", "input_forget = 0")

    def cell(weights: Weights) -> Cell:
        f, f_new, f_hidden = weights.functions

        def step(g: GraphBuilder, x: Tensor, state: State) -> State:
            h, c = state
            size = h.shape[1]
            total = g.add(x, _recurrent(g, h, weights))
            i, o, forget, new = (_part(g, total, n * size, size) for n in range(4))
            peep = weights.peepholes
            pi, po, pf = (None if peep is None else g.narrow(peep, 0, n * size, size) for n in range(3))
            forget, i = f(g, _plus(g, forget, pf, c)), f(g, _plus(g, i, pi, c))
            c = g.add(g.mul(forget, c), g.mul(i, f_new(g, new)))
            return g.mul(f(g, _plus(g, o, po, c)), f_hidden(g, c)), c

        return step

    return _sequence(node, g, 4, ("Sigmoid", "Tanh", "Tanh"), cell, 2, matrices)


def _plus(g: GraphBuilder, gate: Tensor, peephole: Tensor | None, c: Tensor) -> Tensor:
    return gate if peephole is None else g.add(gate, g.mul(peephole, c))


def _part(g: GraphBuilder, x: Tensor, start: int, size: int) -> Tensor:
    return g.narrow(x, 1, start, size)


def _recurrent(g: GraphBuilder, h: Tensor, weights: Weights) -> Tensor:
    return g.add(weights.r.times(g, h), weights.r_bias)


def _floats(node: Node, g: GraphBuilder, count: int, gates: int) -> tuple[int, list[tuple[Matrix, Matrix]]]:
    """Of inputs 1 and 2, `[directions, gates * H, I]` and `[directions, gates * H, H]`."""
    w, r = node.input(1), node.input(2)
    size = node.int("hidden_size", r.shape[-1] if r.rank else 0)
    expected = (count, gates * size, node.input(0).shape[-1]), (count, gates * size, size)
    check_weights(node, size, expected)

    def product(g: GraphBuilder, rows: Tensor, matrix: Tensor) -> Tensor:
        return g.matmul(rows, g.transpose(matrix, (1, 0)))

    return size, [(Matrix((entry(g, w, d),), product), Matrix((entry(g, r, d),), product)) for d in range(count)]


def check_weights(node: Node, size: int, expected: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Inputs 1 and 2 have these shapes, or it is an error."""
    w, r = node.input(1), node.input(2)
    if (w.shape, r.shape) != expected or size < 1:
        raise node.error(f"weights of shapes {w.shape} and {r.shape}", f"{expected[0]} and {expected[1]}")


def _sequence(
    node: Node, g: GraphBuilder, gates: int, names: Sequence[str], cell: Callable[[Weights], Cell], states: int,
    matrices: Matrices = _floats,
) -> list[Tensor]:  # fmt: skip
    """Every output: `[T, directions, B, H]`, and `[directions, B, H]` of each state."""
    x, batch_first = node.input(0), node.flag("layout")
    if x.rank != 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3")
    x = g.transpose(x, (1, 0, 2)) if batch_first else x
    steps, batch, _ = x.shape
    kind = node.string("direction", "forward", DIRECTIONS)
    count = 2 if kind == "bidirectional" else 1
    if steps < 1:
        raise node.error(f"a sequence of {steps} steps", "1 or more")
    size, pairs = matrices(node, g, count, gates)
    weights = _weights(node, g, pairs, size, gates, names)
    initial = [_initial(node, g, x, 5 + n, (count, batch, size), batch_first) for n in range(states)]
    lengths = None if node.optional(4) is None else g.reshape(g.cast(node.input(4), i64), (batch, 1))
    outputs: list[Tensor] = []
    finals: list[State] = []
    for d, each in enumerate(weights):
        backward = kind == "reverse" or d == 1
        state = tuple(g.entry(v, 0, d) for v in initial)
        y, state = _run(node, g, x, each, cell, state, lengths, backward)
        outputs.append(y)
        finals.append(state)
    y = g.stack(outputs, 1)
    last = [g.stack([state[n] for state in finals], 0) for n in range(states)]
    if batch_first:
        return [g.transpose(y, (2, 0, 1, 3)), *(g.transpose(v, (1, 0, 2)) for v in last)]
    return [y, *last]


def _run(
    node: Node, g: GraphBuilder, x: Tensor, weights: Weights, cell: Callable[[Weights], Cell], state: State,
    lengths: Tensor | None, backward: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """The outputs of all steps `[T, B, H]`, and the last state."""
    steps, batch, width = x.shape
    rows = weights.w.times(g, g.reshape(x, (steps * batch, width)))
    products = g.reshape(g.add(rows, weights.w_bias), (steps, batch, rows.shape[1]))
    if isinstance(steps, Extent) or steps > _WRITTEN:
        return _looped(node, g, products, weights, cell, state, lengths, backward)
    step, outputs = cell(weights), dict[int, Tensor]()
    for t in reversed(range(steps)) if backward else range(steps):
        running = None if lengths is None else g.binary("gt", lengths, t)
        outputs[t], state = _next(g, step, g.entry(products, 0, t), state, running)
    return g.stack([outputs[t] for t in range(steps)], 0), state


def _next(g: GraphBuilder, step: Cell, x: Tensor, state: State, running: Tensor | None) -> tuple[Tensor, State]:
    """The output and the state of a step: behind a sequence's end the state is kept, and the output is zero."""
    new = step(g, x, state)
    if running is None:
        return new[0], new
    kept = tuple(g.where(running, a, b) for a, b in zip(new, state, strict=True))
    return g.where(running, new[0], g.scalar(0, new[0])), kept


def _looped(
    node: Node, g: GraphBuilder, products: Tensor, weights: Weights, cell: Callable[[Weights], Cell], state: State,
    lengths: Tensor | None, backward: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """As `_run`, by a loop. Weights that are known are constants of its body."""
    outer = [*weights.r.parts, weights.r_bias, weights.peepholes, lengths]
    read = [products, *(each for each in outer if each is not None and each.array is None)]
    steps = products.shape[0]

    def write(_node: Node, g: GraphBuilder, given: Sequence[Tensor]) -> list[Tensor]:
        t, own, (products, *others) = given[0], tuple(given[1 : len(state) + 1]), given[len(state) + 1 :]
        arguments = iter(others)

        def inside(x: Tensor) -> Tensor:  # in the order of `outer`
            return next(arguments) if x.array is None else g.constant(x.array)

        r = replace(weights.r, parts=tuple(inside(each) for each in weights.r.parts))
        r_bias = inside(weights.r_bias)
        peepholes = None if weights.peepholes is None else inside(weights.peepholes)
        place = g.sub(g.numbers(steps - 1), t) if backward else t
        running = None if lengths is None else g.binary("gt", inside(lengths), place)
        step = cell(replace(weights, r=r, r_bias=r_bias, peepholes=peepholes))
        y, new = _next(g, step, g.gather(products, place, 0, laid_out=True), own, running)
        return [*new, y]

    body = node.function("step", [counter(), *state, *read], write)
    *last, ys = counted_loop(g, body, state, [*read, *body.captured], steps, body.results[-1:])
    return g.reversed(ys, 0) if backward else ys, tuple(last)


def _weights(
    node: Node, g: GraphBuilder, pairs: Sequence[tuple[Matrix, Matrix]], size: int, gates: int, names: Sequence[str]
) -> list[Weights]:
    node.ignore("output_sequence")
    if node.has("clip") or node.has("activation_alpha") or node.has("activation_beta"):
        raise node.error("clip, activation_alpha or activation_beta is given", "none of them")
    x, count = node.input(0), len(pairs)
    bias = node.optional(3) or g.constant(np.zeros((count, 2 * gates * size), x.dtype))
    peepholes = node.optional(7) if gates == 4 else None
    for tensor, each in ((bias, 2 * gates * size), (peepholes, 3 * size)):
        if tensor is not None and tensor.shape != (count, each):
            raise node.error(f"a tensor of shape {tensor.shape} beside the weights", f"{(count, each)}")
    functions = _functions(node, count, names)
    result: list[Weights] = []
    for d, (w, r) in enumerate(pairs):
        both = entry(g, bias, d)
        halves = [entry(g, g.reshape(both, (2, gates * size)), n) for n in (0, 1)]
        own = functions[d * len(names) : (d + 1) * len(names)]
        peephole = None if peepholes is None else entry(g, peepholes, d)
        result.append(Weights(w, r, halves[0], halves[1], peephole, own))
    return result


def entry(g: GraphBuilder, x: Tensor, d: int) -> Tensor:
    """Of the first dimension; of known weights a known one, which is laid out for a loop's body at compile time."""
    return g.entry(x, 0, d) if x.array is None else g.constant(x.array[d])


def _functions(node: Node, count: int, names: Sequence[str]) -> list[Activation]:
    given = node.strings("activations") or [*names] * count
    unknown = [name for name in given if name.lower() not in ACTIVATIONS]
    if unknown or len(given) != count * len(names):
        raise node.error(f"activations {given}", f"{count * len(names)} of {', '.join(map(str.title, ACTIVATIONS))}")
    return [ACTIVATIONS[name.lower()] for name in given]


def _initial(
    node: Node, g: GraphBuilder, x: Tensor, index: int, shape: tuple[Symbolic, ...], batch_first: bool
) -> Tensor:
    given = node.optional(index)
    if given is None:
        return g.constant(np.broadcast_to(np.zeros((), x.dtype), bounds_of(shape)), shape)
    given = g.transpose(given, (1, 0, 2)) if batch_first and given.rank == 3 else given
    if given.shape != shape:
        raise node.error(f"an initial state of shape {given.shape}", f"{shape}")
    return given
