"""How outputs are compared with the reference, and the arguments and progress of the command line."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.helpers.onnx_models import linear_model
from treadle.backends.file_names import file_names
from treadle.errors import TreadleError
from treadle.manifest import Tensor
from treadle.tools import progress as progress_module
from treadle.tools.arguments import parse_shapes
from treadle.tools.oracle import compare, tolerance
from treadle.tools.progress import progress
from treadle.tools.run_command import sample

REFERENCE = np.array([1.0, -4.0, 0.5], np.float32)


def test_errors_are_relative_to_the_largest_value() -> None:
    close = compare("y", REFERENCE + np.float32(2e-6), REFERENCE, units=10)
    assert close.agrees and close.relative == pytest.approx(5e-7, rel=0.2)
    far = compare("y", REFERENCE + np.float32(1e-3), REFERENCE, units=10)
    assert not far.agrees and str(far).endswith("DIFFERS")


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        (REFERENCE[:2], REFERENCE, "the reference has float32[3]"),
        (REFERENCE.astype(np.float64), REFERENCE, "the reference has float32[3]"),
        (np.array([1.0, np.nan], np.float32), REFERENCE[:2], "NaN where the reference is finite"),
        (REFERENCE[:2], np.array([1.0, np.inf], np.float32), "where the reference is not finite"),
    ],
)
def test_what_cannot_agree_is_said(actual: np.ndarray, expected: np.ndarray, problem: str) -> None:
    result = compare("y", actual, expected, units=1e6)
    assert not result.agrees and problem in str(result)


def test_the_same_infinities_agree() -> None:
    array = np.array([1.0, -np.inf, np.nan], np.float32)
    assert compare("y", array, array.copy(), units=1).agrees


def test_integers_must_be_equal() -> None:
    ids = np.array([1, 2, 3])
    assert compare("y", ids, ids, units=1e9).agrees
    assert not compare("y", ids + 1, ids, units=1e9).agrees


def test_the_tolerance_grows_with_the_depth_of_the_reductions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    units = tolerance(linear_model(tmp_path / "m.onnx"), {})
    assert 16 * 8**0.5 <= units <= 16 * 12**0.5


def test_sampled_integers_are_small() -> None:
    generator = np.random.default_rng(0)
    ids = sample(Tensor("ids", (64,), "int64"), generator)
    assert ids.dtype == np.int64 and set(ids) == {0, 1}
    assert sample(Tensor("mask", (4,), "bool"), generator).dtype == np.bool_


def test_shapes() -> None:
    assert parse_shapes(["x=1,3,48,320", "a=b=7"]) == {"x": (1, 3, 48, 320), "a=b": (7,)}
    assert parse_shapes(["scalar="]) == {"scalar": ()}
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
        with progress(Console(file=stream, force_terminal=True, width=80)) as tell:
            tell("folding constants", 0.5)
        return stream.getvalue()

    assert "folding constants" in shown(-1.0)
    assert shown(60.0) == ""


def test_no_bar_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress(Console(file=stream, force_terminal=False)) as tell:
        tell("folding constants", 0.5)
    assert stream.getvalue() == ""


def test_file_names_are_safe_and_distinct() -> None:
    assert file_names(["a/b", "a_b", "A_b", "", "../x"]) == ["a_b", "a_b_2", "A_b_3", "unit", "___x"]
