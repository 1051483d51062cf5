"""RNN, GRU and LSTM, step by step; the products of all inputs with the weights are one product before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import i64

from treadle.frontends.common.activation import softplus
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

MAX_STEPS = 2000
"""Of a sequence: the operators of each are written out."""

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
class _Weights:
    """Those of one direction: `w [gates * H, I]`, `r [gates * H, H]`, their biases, and an LSTM's peepholes.

    functions: the activations of the direction
    """

    w: Tensor
    r: Tensor
    w_bias: Tensor
    r_bias: Tensor
    peepholes: Tensor | None
    functions: Sequence[Activation]


@converts("RNN", since=7)
def rnn(node: Node, g: GraphBuilder) -> list[Tensor]:
    """`h = f(x W + h R + b)`."""

    def cell(weights: _Weights) -> Cell:
        (f,) = weights.functions

        def step(g: GraphBuilder, x: Tensor, state: State) -> State:
            return (f(g, g.add(x, _recurrent(g, state[0], weights))),)

        return step

    return _sequence(node, g, 1, ("Tanh",), cell, 1)


@converts("GRU", since=7)
def gru(node: Node, g: GraphBuilder) -> list[Tensor]:
    """`h = (1 - z) * n + z * h`, of an update gate `z` and a reset gate in the new state `n`."""
    before = node.flag("linear_before_reset")

    def cell(weights: _Weights) -> Cell:
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
                rows = g.narrow(weights.r, 0, 2 * size, size)
                product = g.matmul(g.mul(reset, h), g.transpose(rows, (1, 0)))
                inner = g.add(product, g.narrow(weights.r_bias, 0, 2 * size, size))
            new = f_hidden(g, g.add(_part(g, x, 2 * size, size), inner))
            return (g.add(g.mul(g.sub(g.broadcast(g.scalar(1, z), z.shape), z), new), g.mul(z, h)),)

        return step

    return _sequence(node, g, 3, ("Sigmoid", "Tanh"), cell, 1)


@converts("LSTM", since=7)
def lstm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """`c = forget * c + input * new`, `h = output * f(c)`; the gates are in the order input, output, forget, new."""
    if node.flag("input_forget"):
        raise node.error("input_forget is 1", "input_forget = 0")

    def cell(weights: _Weights) -> Cell:
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

    return _sequence(node, g, 4, ("Sigmoid", "Tanh", "Tanh"), cell, 2)


def _plus(g: GraphBuilder, gate: Tensor, peephole: Tensor | None, c: Tensor) -> Tensor:
    return gate if peephole is None else g.add(gate, g.mul(peephole, c))


def _part(g: GraphBuilder, x: Tensor, start: int, size: int) -> Tensor:
    return g.narrow(x, 1, start, size)


def _recurrent(g: GraphBuilder, h: Tensor, weights: _Weights) -> Tensor:
    return g.add(g.matmul(h, g.transpose(weights.r, (1, 0))), weights.r_bias)


def _sequence(
    node: Node, g: GraphBuilder, gates: int, names: Sequence[str], cell: Callable[[_Weights], Cell], states: int
) -> list[Tensor]:
    """Every output: `[T, directions, B, H]`, and `[directions, B, H]` of each state."""
    x, batch_first = node.input(0), node.flag("layout")
    if x.rank != 3:
        raise node.error(f"an input of rank {x.rank}", "rank 3")
    x = g.transpose(x, (1, 0, 2)) if batch_first else x
    steps, batch, _ = x.shape
    kind = node.string("direction", "forward", DIRECTIONS)
    count = 2 if kind == "bidirectional" else 1
    if not 1 <= steps <= MAX_STEPS:
        raise node.error(f"a sequence of {steps} steps", f"1 to {MAX_STEPS}")
    weights = _weights(node, g, count, gates, names)
    size = weights[0].r.shape[1]
    initial = [_initial(node, g, x, 5 + n, (count, batch, size), batch_first) for n in range(states)]
    lengths = None if node.optional(4) is None else g.reshape(g.cast(node.input(4), i64), (batch, 1))
    outputs: list[list[Tensor]] = []
    finals: list[State] = []
    for d, each in enumerate(weights):
        backward = kind == "reverse" or d == 1
        state = tuple(g.entry(v, 0, d) for v in initial)
        ys, state = _run(g, x, each, cell(each), state, lengths, backward)
        outputs.append(ys)
        finals.append(state)
    rows = [g.stack([ys[t] for ys in outputs], 0) for t in range(steps)]
    y = g.stack(rows, 0)
    last = [g.stack([state[n] for state in finals], 0) for n in range(states)]
    if batch_first:
        return [g.transpose(y, (2, 0, 1, 3)), *(g.transpose(v, (1, 0, 2)) for v in last)]
    return [y, *last]


def _run(
    g: GraphBuilder, x: Tensor, weights: _Weights, step: Cell, state: State, lengths: Tensor | None, backward: bool
) -> tuple[list[Tensor], State]:
    """The output of each step, and the last state; a step behind a sequence's end keeps its state and gives zeros."""
    steps, batch, width = x.shape
    rows = g.matmul(g.reshape(x, (steps * batch, width)), g.transpose(weights.w, (1, 0)))
    products = g.reshape(g.add(rows, weights.w_bias), (steps, batch, weights.w.shape[0]))
    outputs: dict[int, Tensor] = {}
    for t in reversed(range(steps)) if backward else range(steps):
        new = step(g, g.entry(products, 0, t), state)
        if lengths is None:
            state, outputs[t] = new, new[0]
            continue
        running = g.binary("gt", lengths, t)
        state = tuple(g.where(running, a, b) for a, b in zip(new, state, strict=True))
        outputs[t] = g.where(running, new[0], g.scalar(0, new[0]))
    return [outputs[t] for t in range(steps)], state


def _weights(node: Node, g: GraphBuilder, count: int, gates: int, names: Sequence[str]) -> list[_Weights]:
    node.ignore("output_sequence")
    if node.has("clip") or node.has("activation_alpha") or node.has("activation_beta"):
        raise node.error("clip, activation_alpha or activation_beta is given", "none of them")
    w, r = node.input(1), node.input(2)
    size = node.int("hidden_size", r.shape[-1] if r.rank else 0)
    width = node.input(0).shape[-1]
    expected = (count, gates * size, width), (count, gates * size, size)
    if (w.shape, r.shape) != expected or size < 1:
        raise node.error(f"weights of shapes {w.shape} and {r.shape}", f"{expected[0]} and {expected[1]}")
    bias = node.optional(3) or g.constant(np.zeros((count, 2 * gates * size), w.dtype))
    peepholes = node.optional(7) if gates == 4 else None
    for tensor, each in ((bias, 2 * gates * size), (peepholes, 3 * size)):
        if tensor is not None and tensor.shape != (count, each):
            raise node.error(f"a tensor of shape {tensor.shape} beside the weights", f"{(count, each)}")
    functions = _functions(node, count, names)
    result: list[_Weights] = []
    for d in range(count):
        both = g.entry(bias, 0, d)
        halves = [g.narrow(both, 0, n * gates * size, gates * size) for n in (0, 1)]
        own = functions[d * len(names) : (d + 1) * len(names)]
        peephole = None if peepholes is None else g.entry(peepholes, 0, d)
        result.append(_Weights(g.entry(w, 0, d), g.entry(r, 0, d), halves[0], halves[1], peephole, own))
    return result


def _functions(node: Node, count: int, names: Sequence[str]) -> list[Activation]:
    given = node.strings("activations") or [*names] * count
    unknown = [name for name in given if name.lower() not in ACTIVATIONS]
    if unknown or len(given) != count * len(names):
        raise node.error(f"activations {given}", f"{count * len(names)} of {', '.join(map(str.title, ACTIVATIONS))}")
    return [ACTIVATIONS[name.lower()] for name in given]


def _initial(
    node: Node, g: GraphBuilder, x: Tensor, index: int, shape: tuple[int, int, int], batch_first: bool
) -> Tensor:
    given = node.optional(index)
    if given is None:
        return g.constant(np.broadcast_to(np.zeros((), x.dtype), shape))
    given = g.transpose(given, (1, 0, 2)) if batch_first and given.rank == 3 else given
    if given.shape != shape:
        raise node.error(f"an initial state of shape {given.shape}", f"{shape}")
    return given
