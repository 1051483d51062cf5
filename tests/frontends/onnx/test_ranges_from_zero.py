"""Ranges that begin at 0, and slices that may be shorter or empty: every call against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto
from onnx.helper import make_node

import treadle
from tests.frontends.onnx.test_symbolic_shapes import CASES
from tests.helpers.ranged_model import Call, Case, weights
from treadle.errors import TreadleError

MICROSOFT = "com.microsoft"
NUMBERS = {f"n{n}": np.array([n]) for n in (-20, -3, -2, -1, 0, 1, 2, 3, 5, 10)} | {"end": np.array([2**31])}

WINDOWS = {"convolution", "convolution of multiples", "as many windows as strides", "windows over multiples of strides"}
"""A window does not fit into an image without rows."""
REFUSED = WINDOWS | {"the last token"}
DEFINED_OTHERWISE = {"mean"}
"""The mean of nothing is 0 / 0 by the definition, and 0 in ONNX Runtime."""


def empty(case: Case) -> Case:
    """The case with ranges from 0."""
    return replace(case, ranges=[text[: text.index(":") + 1] + "0" + text[text.index("..") :] for text in case.ranges])


def empty_calls(case: Case) -> list[Call]:
    """Each symbol as 0 with the others as in the first calls, then all."""
    ones = [{**call, name: 0} for call in case.calls[:2] for name in call]
    return [*ones, dict.fromkeys(case.calls[0], 0), *case.calls[:2]]


FROM_ZERO = [name for name in CASES if name not in REFUSED | DEFINED_OTHERWISE]
NEEDED = {
    "heads": "ns", "position of the largest": "w", "gathered by coordinates": "ns",
    "rows of a table, counted from its end": "n",
}  # fmt: skip
"""Symbols of which ONNX Runtime computes no call with 0: a reshape of no elements, a largest one of none."""


def calls_of(name: str) -> list[Call]:
    needed = NEEDED.get(name, "")
    return [call for call in empty_calls(CASES[name]) if all(call[symbol] for symbol in needed)]


SLOW = {
    "a result of merged rows", "positions", "expanded zeros", "nearest neighbours", "cumulative sums", "gathered along",
    "positions looked up", "gathered by coordinates", "rows of a table, counted from its end",
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in FROM_ZERO])
def test_calls_of_no_elements(name: str) -> None:
    empty(CASES[name]).check_compiled(calls_of(name), threads=2)


@pytest.mark.parametrize("name", ["product over a symbol", "layer norm", "a token in front", "sum of logarithms"])
def test_calls_of_no_elements_on_the_emulator(name: str) -> None:
    empty(CASES[name]).check_emulated(calls_of(name))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_needs_an_element_is_refused(name: str) -> None:
    case = empty(CASES[name])
    with pytest.raises(TreadleError, match=r"a window of|whether s - 1 >= 0 depends"):
        treadle.compile(case.model(), shapes=case.shapes)


def test_a_range_below_zero_is_none() -> None:
    with pytest.raises(TreadleError, match="accepted: numbers from 0 to 2147483647, multiples from 1 on"):
        treadle.Dim("n", -1, 4)


# Slices whose bounds lie inside of some calls' tensors only.

WIDTHS = [{"w": w} for w in (0, 1, 2, 3, 5, 9, 10, 11, 31, 32)]


def sliced(start: int, end: str, step: int = 1, *then: NodeProto) -> Case:
    nodes = [make_node("Slice", ["x", f"n{start}", end, "n1", f"n{step}"], ["y"]), *then]
    names = {name for node in nodes for name in node.input}
    constants = {name: array for name, array in NUMBERS.items() if name in names}
    outputs = list(dict.fromkeys(name for node in nodes for name in node.output if name.startswith("y")))
    return Case(nodes, {"x": [2, "w", 3]}, ["w:0..32"], WIDTHS, constants, outputs=outputs)


SLICES: Mapping[str, Case] = {
    "from 2 to 10": sliced(2, "n10"),
    "from 2 to 10, in steps of 3": sliced(2, "n10", 3),
    "the last 20": sliced(-20, "end"),
    "all but the last 3": sliced(0, "n-3"),
    "from 5 back to 0": sliced(5, "n0", -1),
    "from 10 back to 2 in steps of 2": sliced(10, "n2", -2),
    "sums and softmax of what is there": sliced(
        2, "n10", 1, make_node("ReduceSum", ["y", "n1"], ["y1"]), make_node("Softmax", ["y"], ["y2"], axis=1),
    ),
    "as many as another has": Case(
        [
            make_node("Shape", ["z"], ["all"]), make_node("Slice", ["x", "n0", "all", "n1"], ["y"]),
            make_node("Slice", ["z", "n1", "n10"], ["y1"]),
        ],
        {"x": [2, "w"], "z": ["v"]}, ["w:0..32", "v:0..32"],
        [{"w": w, "v": v} for w in (0, 1, 7, 32) for v in (0, 1, 8, 32)], {n: NUMBERS[n] for n in ("n0", "n1", "n10")},
        outputs=("y", "y1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLICES)
def test_slices_of_as_much_as_there_is(name: str) -> None:
    SLICES[name].check_compiled(SLICES[name].calls, threads=2)


@pytest.mark.parametrize("name", ["sums and softmax of what is there", "as many as another has"])
def test_slices_on_the_emulator(name: str) -> None:
    SLICES[name].check_emulated(SLICES[name].calls)


def test_ranges_too_large_to_compare_are_refused() -> None:
    case = SLICES["as many as another has"]
    shapes = {name: treadle.Dim(name, 1, 4096) for name in ("w", "v")}
    with pytest.raises(TreadleError, match=r"whether w < v depends on the extents of a call"):
        treadle.compile(case.model(), shapes=shapes)


# Attention of com.microsoft, with a cache that may be empty.


def attention(operator: str, inputs: list[str], outputs: int, **attributes: Any) -> list[NodeProto]:
    names = ["y", "y1", "y2"][:outputs]
    return [make_node(operator, inputs, names, domain=MICROSOFT, num_heads=2, **attributes)]


PROJECTION = {"m": weights(16, 48), "b": weights(48)}
ROWS = [{"s": 1, "p": 0}, {"s": 9, "p": 0}, {"s": 9, "p": 40}, {"s": 1, "p": 40}, {"s": 4, "p": 17}]
PAST = ["s:1..9", "p:0..40"]
ATTENTION: Mapping[str, Case] = {
    "self": Case(
        attention("Attention", ["x", "m", "b"], 1), {"x": ["n", "s", 16]}, ["n:1..3", "s:1..40"],
        [{"n": 1, "s": 1}, {"n": 3, "s": 40}, {"n": 2, "s": 17}], PROJECTION,
    ),
    "causal": Case(
        attention("Attention", ["x", "m", "b"], 1, unidirectional=1), {"x": [1, "s", 16]}, ["s:1..40"],
        [{"s": s} for s in (1, 40, 17)], PROJECTION,
    ),
    "with a past": Case(
        attention("Attention", ["x", "m", "b", "", "past"], 2, unidirectional=1),
        {"x": [1, "s", 16], "past": [2, 1, 2, "p", 8]}, PAST, ROWS, PROJECTION, outputs=("y", "y1"),
    ),
    "to other keys": Case(
        attention("MultiHeadAttention", ["q", "k", "v"], 1),
        {"q": [2, "s", 16], "k": [2, "p", 16], "v": [2, "p", 16]}, ["s:1..9", "p:1..40"],
        [call for call in ROWS if call["p"]],
    ),
    "of heads with a past": Case(
        attention("MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"], 3, unidirectional=1),
        {"q": [2, "s", 16], "k": [2, "s", 16], "v": [2, "s", 16], "pk": [2, 2, "p", 8], "pv": [2, 2, "p", 8]},
        PAST, ROWS, outputs=("y", "y1", "y2"),
    ),
    "rotated": Case(
        [make_node("RotaryEmbedding", ["x", "i", "cos", "sin"], ["y"], domain=MICROSOFT)],
        {"x": [2, 2, "s", 8], "i": [2, "s"]}, ["s:1..40"], [{"s": s} for s in (1, 40, 17)],
        {"cos": weights(64, 4), "sin": weights(64, 4)}, 64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    ATTENTION[name].check_compiled(ATTENTION[name].calls, threads=2)


@pytest.mark.parametrize("name", ["with a past", "of heads with a past"])
def test_attention_on_the_emulator(name: str) -> None:
    ATTENTION[name].check_emulated(ATTENTION[name].calls)
