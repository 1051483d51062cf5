"""ONNX's own node tests, through import and the evaluation of operators by their definitions.

`test_node_conformance_compiled.py` runs the same cases as compiled C. Cases that are refused, and all others of the
suite, have to end in one clear error.
"""

from __future__ import annotations

import pytest
from onnx.backend.test.case.test_case import TestCase

from tests.frontends.onnx.backend import TreadleBackend
from tests.frontends.onnx.node_cases import (
    IN_SCOPE,
    OUT_OF_SCOPE,
    REFUSED,
    SUPPORTED,
    assert_expected,
    data_of,
    model_of,
    reason_of,
)
from treadle.errors import TreadleError


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize("case", SUPPORTED, ids=lambda case: case.name)
def test_case(case: TestCase) -> None:
    for model, inputs, expected in data_of(case):
        assert_expected(case, model, inputs, TreadleBackend.prepare(model).run(inputs), expected)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_case_says_why(case: TestCase) -> None:
    model, _, _ = next(data_of(case))
    with pytest.raises(TreadleError, match=reason_of(case.name)):
        TreadleBackend.prepare(model)


def test_all_other_cases_are_errors_of_treadle() -> None:
    """No model of the suite ends in a traceback of something else."""
    for case in OUT_OF_SCOPE:
        with pytest.raises(TreadleError):
            TreadleBackend.prepare(model_of(case))


def test_most_cases_pass() -> None:
    """The suite of the installed onnx may differ from the one the lists were made with, but not by much."""
    assert len(SUPPORTED) > 0.9 * len(IN_SCOPE)
