"""Models that compute shapes and positions from extents: in each call of a range they give what ONNX's reference
evaluator makes of the model with the call's inputs, which no importer has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from tests.fuzz.check_ranges import RangeChecker
from tests.fuzz.draw import Draw
from tests.fuzz.extents import extents_case_of_seed, with_ranges
from tests.fuzz.ranges import RangedCase
from tests.fuzz.recipes.numbers import Numbers
from tests.fuzz.shrink_ranges import shrunk_ranges
from treadle.errors import TreadleError

SEEDS = range(20)
EMULATED = 10
RANGED = {str(seed): case for seed in SEEDS if (case := extents_case_of_seed(seed)) is not None}


@pytest.fixture(scope="module")
def checker() -> RangeChecker:
    return RangeChecker(RANGED, {name for name in RANGED if int(name) % EMULATED == 0})


@pytest.mark.parametrize("seed", RANGED)
def test_drawn_shape_arithmetic(seed: str, checker: RangeChecker) -> None:
    report = checker.check(seed)
    assert not report.findings, "\n".join([*map(str, report.findings), RANGED[seed].case.text()])


def test_a_seed_alone_gives_the_model() -> None:
    first, second = (extents_case_of_seed(3) for _ in range(2))
    assert first is not None and second is not None
    assert first.model() == second.model() and first.dims == second.dims


def test_every_number_and_every_reader_is_drawn_and_half_of_the_models_are_taken() -> None:
    drawn = [case for seed in range(150) if (case := extents_case_of_seed(seed)) is not None]
    operators = {operator for case in drawn for operator in case.case.operators}
    assert operators >= {
        "Abs", "Add", "ArgMax", "ArgMin", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "CumSum", "Div", "Equal",
        "Expand", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "Hardmax", "Less", "LogSoftmax",
        "LpNormalization", "MatMul", "Max", "Min", "Mod", "Mul", "Neg", "Pad", "Range", "ReduceMax", "ReduceProd",
        "ReduceSum", "Reshape", "Shape", "Size", "Slice", "Softmax", "Split", "Sqrt", "Sub", "Tile", "TopK", "Trilu",
        "Where",
    }  # fmt: skip
    assert len(drawn) > 140 and sum(map(_is_taken, drawn[:60])) >= 30


def _is_taken(case: RangedCase) -> bool:
    try:
        case.module()
    except TreadleError:
        return False
    return True


Recipe = Callable[[Numbers, str], None]
"""Appends nodes that read `n`, a number that is the extent of the input x0, and x0."""


def _ranged(recipe: Recipe, shape: Sequence[int] = (20,), dim: int = 0, opset: int = 17, least: int = 1) -> RangedCase:
    draw = Draw(0)
    draw.opset = opset
    x = draw.input(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    d = Numbers(draw, [x])
    whole = d.node("Shape", [x])
    recipe(d, d.node("Gather", [whole, draw.constant(np.array(dim, np.int64))], axis=0))
    read = {name for node in draw.nodes for name in node.input}
    outputs = [name for node in draw.nodes for name in node.output if name not in read]
    return RangedCase(draw.case(outputs), {(x, dim): "n"}, 1, frozenset(d.exact), {"n": least})


def _long(d: Numbers, value: int) -> str:
    return d.draw.constant(np.array(value, np.int64))


def _table(d: Numbers, *shape: int) -> str:
    return d.draw.constant(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def _last_row(d: Numbers, n: str) -> None:
    d.draw.node("Gather", [_table(d, 32, 3), d.node("Sub", [n, _long(d, 1)])], axis=0)


def _element(d: Numbers, n: str) -> None:
    d.draw.node("GatherElements", [_table(d, 32), d.row(n)], axis=0)


def _point(d: Numbers, n: str) -> None:
    d.draw.node("GatherND", [_table(d, 32, 3), d.rows([n, _long(d, 1)])])


def _rows_at(d: Numbers, n: str) -> None:
    ends = d.row(d.node("Add", [n, _long(d, 2)]))
    d.draw.node("Slice", [_table(d, 32, 3), d.row(n), ends, d.draw.longs([0])])


def _number_of_table(d: Numbers, n: str) -> None:
    d.scalar("Gather", [d.draw.longs([3 * value % 7 for value in range(24)]), n], axis=0)


def _expanded_to_a_difference(d: Numbers, n: str) -> None:
    rest = d.node("Sub", [_long(d, 20), n])
    d.draw.node("Expand", [_table(d, 3), d.rows([rest, _long(d, 3)])])
    d.draw.node("ReduceSum", [d.draw.nodes[-1].output[0], d.draw.longs([0])])


def _zeros_of_a_difference(d: Numbers, n: str) -> None:
    d.draw.node("ConstantOfShape", [d.row(d.node("Sub", [_long(d, 20), n]))])


def _quotient(number: int, divisor: int) -> Recipe:
    def recipe(d: Numbers, n: str) -> None:
        quotient = d.node("Div", [d.node("Sub", [n, _long(d, number)]), _long(d, divisor)])
        factor = d.node("Cast", [quotient], to=TensorProto.FLOAT)
        d.draw.node("Mul", ["x0", factor])

    return recipe


def _along(operator: str) -> Recipe:
    return lambda d, n: d.draw.node(operator, ["x0"], axis=-1)


def _padded(at_the_end: bool) -> Recipe:
    def recipe(d: Numbers, n: str) -> None:
        amounts = [_long(d, 1), n] if at_the_end else [n, _long(d, 1)]
        d.draw.node("Pad", ["x0", d.rows(amounts)], mode="constant")

    return recipe


REGRESSIONS = {
    "the last row of a table": _ranged(_last_row),
    "an element of a table": _ranged(_element),
    "a point of a table": _ranged(_point),
    "rows of a table": _ranged(_rows_at),
    "a number of a table": _ranged(_number_of_table),
    "expanded to a difference": _ranged(_expanded_to_a_difference),
    "zeros of a difference": _ranged(_zeros_of_a_difference),
    "a quotient of negatives": _ranged(_quotient(5, 2), (4,)),
    "a quotient by a negative": _ranged(_quotient(0, -3), (5,)),
    "hardmax": _ranged(_along("Hardmax"), (3, 11), 1),
    "hardmax of all dimensions from one on": _ranged(_along("Hardmax"), (3, 11), 1, opset=11),
    "padded in front": _ranged(_padded(at_the_end=False)),
    "padded behind": _ranged(_padded(at_the_end=True)),
}


@pytest.fixture(scope="module")
def regressions() -> RangeChecker:
    return RangeChecker(REGRESSIONS, [name for name in REGRESSIONS if "table" in name or "hardmax" in name])


@pytest.mark.parametrize("name", REGRESSIONS)
def test_shape_arithmetic_that_was_wrong(name: str, regressions: RangeChecker) -> None:
    report = regressions.check(name)
    assert not report.findings, "\n".join([*map(str, report.findings), REGRESSIONS[name].case.text()])


def test_arithmetic_that_is_wrong_in_some_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another operator than the definition has, which agrees at the greatest extent; what has no part in it is left
    out of what is reported."""

    def recipe(d: Numbers, n: str) -> None:
        factor = d.node("Cast", [d.node("Max", [n, _long(d, 20)])], to=TensorProto.FLOAT)
        d.draw.node("Mul", ["x0", factor])
        d.draw.node("Neg", ["t3_0"])
        d.draw.node("Exp", ["x0"])

    def wrong(self: RangedCase) -> ModelProto:
        model = right(self)
        for node in model.graph.node:
            node.op_type = "Min" if node.op_type == "Max" else node.op_type
        return model

    right, ranged = RangedCase.model, _ranged(recipe)
    monkeypatch.setattr(RangedCase, "model", wrong)

    def fails(case: RangedCase) -> bool:
        return any(each.runner.startswith("C") for each in RangeChecker({"case": case}).check("case").findings)

    assert fails(ranged)
    assert shrunk_ranges(ranged, fails).case.operators == ["Max", "Cast", "Mul"]


def test_ranges_begin_where_the_model_takes_every_call() -> None:
    """A range of less than no elements is none that ONNX has."""

    def recipe(d: Numbers, n: str) -> None:
        d.draw.node("ConstantOfShape", [d.row(d.node("Sub", [n, _long(d, 6)]))])

    found = with_ranges(_ranged(recipe))
    assert found is not None and found.dims["n"].least == 6 and found.calls[1] == {"n": 6}
