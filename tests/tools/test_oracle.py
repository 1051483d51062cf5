"""How outputs are compared with the reference, and the arguments and progress of the command line."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from treadle.artifact.manifest import Tensor
from treadle.backends.interface import file_names
from treadle.backends.reference.bounded import Bounded
from treadle.errors import TreadleError
from treadle.runtime.inputs import sample
from treadle.shapes.dim import Dim
from treadle.tools import progress_bar as progress_module
from treadle.tools.arguments import parse_shapes
from treadle.tools.oracle import Comparison, compare
from treadle.tools.progress_bar import progress_bar

VALUES = np.array([1.0, -4.0, 0.5])
EXPECTED = Bounded(VALUES, np.array([1e-6, 1e-6, 1e-9]))


def verdict(actual: Any, expected: Bounded = EXPECTED, dtype: Any = np.float32) -> Comparison:
    return compare("y", np.asarray(actual), expected, np.dtype(dtype))


def test_each_element_has_its_own_limit() -> None:
    exact = VALUES.astype(np.float32)
    assert verdict(exact).agrees
    near = verdict(exact + np.array([0, 2.4e-7, 0], np.float32))
    assert near.agrees and near.worst == pytest.approx(0.24, rel=0.1) and str(near).endswith(": agrees")
    far = verdict(exact + np.array([0, 0, 6e-8], np.float32))
    assert not far.agrees and far.absolute < near.absolute and str(far).endswith(": DIFFERS")


def test_all_elements_together_must_be_closer_than_one() -> None:
    limits = Bounded(np.zeros(100), np.ones(100))
    alone = np.zeros(100, np.float32)
    alone[7] = 0.9
    assert verdict(alone, limits).agrees
    everywhere = verdict(np.full(100, 0.25, np.float32), limits)
    assert everywhere.worst == 0.25 and everywhere.mean == 0.25 and not everywhere.agrees


@pytest.mark.parametrize("dtype", [np.int64, np.int8])
def test_integers_are_equal_or_not(dtype: Any) -> None:
    """2**63 - 1 and 2**63 - 2 are one number in float64."""
    values = np.array([np.iinfo(dtype).max, 0, -5], dtype)
    assert verdict(values, Bounded(values), dtype).agrees
    other = verdict(values - np.array([1, 0, 0], dtype), Bounded(values), dtype)
    assert not other.agrees and other.absolute == 1


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        (VALUES[:2].astype(np.float32), EXPECTED, "the definition has float32[3]"),
        (VALUES, EXPECTED, "the definition has float32[3]"),
        (np.array([1, np.nan], np.float32), Bounded(VALUES[:2]), "NaN where the definition is finite"),
        (np.array([1, 2], np.float32), Bounded(np.array([1, np.inf])), "where the definition is not finite"),
    ],
)
def test_what_cannot_agree_is_said(actual: Any, expected: Bounded, problem: str) -> None:
    result = verdict(actual, expected)
    assert not result.agrees and problem in str(result)


def test_the_same_infinities_agree() -> None:
    array = np.array([1.0, -np.inf, np.nan])
    assert verdict(array.astype(np.float32), Bounded(array)).agrees


def test_an_output_without_any_limit_must_be_close() -> None:
    open_ = Bounded(VALUES, np.full(3, np.inf))
    near = verdict(VALUES.astype(np.float32), open_)
    assert near.agrees and near.undecided == 3
    far = verdict(np.zeros(3, np.float32), open_)
    assert not far.agrees and str(far).endswith("DIFFERS: no element has a limit, and some are far from the definition")


def test_integers_must_be_equal_where_rounding_does_not_decide() -> None:
    ids = np.array([1, 2, 3])
    assert verdict(ids, Bounded(ids), np.int64).agrees
    assert not verdict(ids + 1, Bounded(ids), np.int64).agrees
    tied = Bounded(ids, np.array([0.0, np.inf, 0.0]))
    free = verdict(np.array([1, 9, 3]), tied, np.int64)
    assert free.agrees and free.undecided == 1 and "1 elements undecided" in str(free)
    assert not verdict(np.array([1, 9, 4]), tied, np.int64).agrees


def test_sampled_integers_are_small() -> None:
    generator = np.random.default_rng(0)
    ids = sample(Tensor("ids", (64,), "int64"), generator)
    assert ids.dtype == np.int64 and set(ids) == {0, 1}
    assert sample(Tensor("mask", (4,), "bool"), generator).dtype == np.bool_


def test_shapes() -> None:
    assert parse_shapes(["x=1,3,48,320", "a=b=7"]) == {"x": (1, 3, 48, 320), "a=b": (7,)}
    assert parse_shapes(["scalar="]) == {"scalar": ()}
    assert parse_shapes(["x=n:1..8,3,w:32..64:32", "seq=1..9"]) == {
        "x": (Dim("n", 1, 8), 3, Dim("w", 32, 64, 32)),
        "seq": (Dim("seq", 1, 9),),
    }
    with pytest.raises(TreadleError, match="two shapes for input 'x'"):
        parse_shapes(["x=1", "x=2"])


@pytest.mark.parametrize("text", ["x", "=1", "x=1,", "x=-1", "x=0", "x=1x3"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(TreadleError, match="accepted: NAME=D0,D1"):
        parse_shapes([text])


def test_a_terminal_sees_a_bar_only_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(patience: float) -> str:
        monkeypatch.setattr(progress_module, "PATIENCE", patience)
        stream = io.StringIO()
        with progress_bar(Console(file=stream, force_terminal=True, width=80)) as progress:
            progress("folding constants", 0.5)
        return stream.getvalue()

    assert "folding constants" in shown(-1.0)
    assert shown(60.0) == ""


def test_no_bar_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress_bar(Console(file=stream, force_terminal=False)) as progress:
        progress("folding constants", 0.5)
    assert stream.getvalue() == ""


def test_file_names_are_safe_and_distinct() -> None:
    assert file_names(["a/b", "a_b", "A_b", "", "../x"]) == ["a_b", "a_b_2", "A_b_3", "unit", "___x"]
