"""Sums beyond their type: which are infinite in every order of their terms, and which are undecided."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest

from tests.fuzz.case import Array, Case
from tests.fuzz.check import check_case
from tests.fuzz.definition import expected_outputs
from tests.fuzz.draw import Draw
from tests.fuzz.sums import terms_of

INF, NAN = np.inf, np.nan
ROWS: dict[str, tuple[list[float], bool]] = {
    "of one sign": ([0.75, 0.75, 0.5], False),
    "of the other": ([-0.75, -0.75, 0], False),
    "beyond, less a little": ([0.75, 0.75, -0.25], False),
    "back within the type": ([0.75, 0.75, -0.75], True),
    "beyond on both sides": ([0.75, 0.75, 0.75, 0.75, -0.75, -0.75], True),
    "of both signs, each within": ([0.75, 0.125, -0.75, -0.125], False),
    "with infinity": ([INF, 0.75, 0.75, -0.75], False),
    "with infinity, beyond on the other side": ([INF, -0.75, -0.75], True),
    "with NaN": ([NAN, 0.75, 0.125, -0.75], False),
    "near the end": ([0.5, 0.5, -1e-9], True),
}  # fmt: skip
"""Terms as parts of the largest number, and whether the sum is undecided."""


def case_of(operator: str, operands: dict[str, Array], then: Sequence[tuple[str, list[str]]] = ()) -> Case:
    draw = Draw(0)
    draw.opset = 21
    for name, array in operands.items():
        draw.values[name] = draw.inputs[name] = array
    later = {name for _, names in then for name in names}
    draw.node(operator, [name for name in operands if name not in later])
    for each, names in then:
        draw.node(each, names)
    return draw.case([draw.nodes[-1].output[0]])


def undecided(case: Case) -> list[bool]:
    (expected,) = expected_outputs(case).values()
    return expected.undecided.reshape(-1).tolist()


def row(name: str, dtype: type[np.floating]) -> Array:
    with np.errstate(over="ignore"):
        return (np.array(ROWS[name][0]) * float(np.finfo(dtype).max)).astype(dtype)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_every_order_gives_is_decided(name: str, dtype: type[np.floating]) -> None:
    x, is_undecided = row(name, dtype), ROWS[name][1]
    with np.errstate(all="ignore"):
        sums = [float(np.add.accumulate(np.array(order, dtype), dtype=dtype)[-1]) for order in permutations(x)]
    assert is_undecided or len({str(s) if not np.isfinite(s) else "a number" for s in sums}) == 1
    ones = np.ones((len(x), 1), dtype)
    assert undecided(case_of("ReduceSum", {"x": x})) == [is_undecided]
    assert undecided(case_of("MatMul", {"x": x[None], "ones": ones})) == [is_undecided]
    assert undecided(case_of("Conv", {"x": x[None, :, None], "ones": ones.T[..., None]})) == [is_undecided]
    assert undecided(case_of("Gemm", {"x": x[None, 1:], "ones": ones[1:], "c": x[None, :1]})) == [is_undecided]
    then = [("Add", ["t0_0", "c"])]
    assert undecided(case_of("MatMul", {"x": x[None, 1:], "ones": ones[1:], "c": x[:1]}, then)) == [is_undecided]


def test_a_sum_at_the_end_of_its_type_is_undecided_in_every_channel() -> None:
    """`1.5 * largest - 0.5 * largest` is the largest number, and infinite where products are rounded: the errors of few
    samples are all on one side in some channels."""
    x = np.full((1, 2, 1), -np.finfo(np.float64).max)
    w = np.repeat([[[-1.5], [0.5]]], 200, 0)
    assert undecided(case_of("Conv", {"x": x, "w": w})) == [True] * 200


def test_the_largest_number_less_a_mean_of_any_value_is_undecided_in_every_channel() -> None:
    """The sum is infinite in some orders, and so is what is left of the largest number; else it is a number, in each
    channel: errors of few samples made it infinite in some."""
    x = np.tile(np.array([1, -1, -1, 1, -1, 1, 0.5]) * np.finfo(np.float64).max, (1, 100, 1))
    parameters = {name: np.full(100, v) for name, v in (("scale", 1.0), ("bias", 0.5))}
    assert all(undecided(case_of("InstanceNormalization", {"x": x, **parameters})))


def test_integers_that_float64_rounds_on_the_way_are_undecided() -> None:
    """`2^62 - 2^62 + 1` is 1 in one order, and 0 in another."""
    x = np.array([[2**62, -(2**62), 1], [2**40, -(2**40), 1]])
    case = case_of("ReduceLogSum", {"x": x, "axes": np.array([1])})
    assert undecided(case) == [True, False]


def test_means_and_scaled_products_may_be_scaled_first() -> None:
    """A half of each term adds up to a number."""
    x = row("of one sign", np.float32)
    assert undecided(case_of("ReduceMean", {"x": x})) == [True]
    operands = {"x": x[None], "ones": np.ones((3, 1), np.float32), "c": np.array([0.25], np.float32)}
    assert undecided(case_of("MatMul", operands, [("Mul", ["t0_0", "c"])])) == [True]
    assert undecided(case_of("MatMul", operands, [("Neg", ["t0_0"]), ("Sub", ["t1_0", "c"])])) == [False]


@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceL1", "ReduceSumSquare", "ReduceL2"])
def test_a_number_in_place_of_an_infinite_sum_is_found(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(operator, {"x": row("of one sign", np.float32)})
    assert not check_case(case).findings
    largest = np.full((1,), np.finfo(np.float32).max)
    monkeypatch.setattr("tests.helpers.program_batch.CompiledProgram.run", lambda *_: [largest])
    assert [finding.runner for finding in check_case(case).findings] == ["C"]


def test_terms_on_both_sides() -> None:
    terms = terms_of(np.array([[1, -2, 4, INF]]), (1,), 4)
    assert (terms.magnitude, terms.largest, terms.special) == (7, 5, INF)
    assert (terms.value, terms.negated().value) == (INF, -INF)
    finite = terms_of(np.array([[1, -2, 4]]), (1,), 3)
    both = finite.plus(finite.scaled(2).negated())
    assert (both.count, both.largest, both.value, both.is_scaled) == (6, 12, -3, True)
    ends = [(4.0, (True, False)), (2.5, (False, False)), (1.5, (False, True))]
    assert [finite.infinities(end) for end, _ in ends] == [expected for _, expected in ends]


def test_equal_terms_round_alike() -> None:
    """Sums of many times the same number are off by more than roundings that are independent of one another."""
    rows = np.array([[3, 1, 3, 0, 0, 3], [1, 2, 3, 4, 5, NAN]])
    terms = terms_of(rows, (1,), 6)
    np.testing.assert_array_equal(terms.alike, [[9 + 1 + 2], [6]])
    np.testing.assert_array_equal(terms.roundings, np.sqrt([[12], [6]]))
    assert terms_of(np.zeros((2, 0)), (1,), 0).alike.tolist() == [[0], [0]]
    assert terms_of(np.zeros((0, 2)), (1,), 2).alike.shape == (0, 1)
    assert terms_of(rows, (), 1).alike.tolist() == np.ones((2, 6)).tolist()


def test_means_of_equal_elements_are_within_their_limit() -> None:
    x = np.full((700, 1), 3.0405881, np.float32)
    case = case_of("ReduceMean", {"x": x, "axes": np.array([0])})
    (expected,) = expected_outputs(case).values()
    in_order = np.add.accumulate(x, axis=0, dtype=np.float32)[-1] / np.float32(700)
    assert np.all(np.abs(in_order - expected.value[0]) <= expected.limit[0])
    assert np.all(expected.limit < 1e-4 * expected.value), "an error of 100 roundings is found"


@pytest.mark.parametrize("operator", ["Cos", "Sin", "Tan"])
def test_an_angle_that_may_overflow_on_the_way_has_no_phase(operator: str) -> None:
    """NaN, or any number of the function's range; that of a tangent has no end."""
    ends = np.array([[0.75, 0.75, -0.75], [0.5, 0.125, 0.125]]) * float(np.finfo(np.float32).max)
    case = case_of("ReduceMean", {"x": ends.astype(np.float32)[:1]}, [(operator, ["t0_0"])])
    assert undecided(case) == [True]
    case = case_of("ReduceMean", {"x": ends.astype(np.float32)[1:]}, [(operator, ["t0_0"])])
    assert undecided(case) == [operator == "Tan"]
