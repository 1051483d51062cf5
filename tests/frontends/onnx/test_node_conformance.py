"""ONNX's own node tests, through import and the evaluation of operators by their definitions.

`test_node_conformance_compiled.py` runs the same cases as compiled C. All others of the suite have to end in the error
that `expected_failures.py` lists.
"""

from __future__ import annotations

import pytest
from onnx.backend.test.case.test_case import TestCase

from tests.frontends.onnx.expected_failures import EXPECTED, error_of, reason_of
from tests.frontends.onnx.node_cases import CASES, REFUSED, SUPPORTED, assert_expected, data_of, model_of
from tests.frontends.onnx.reference import run
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.slow
@pytest.mark.parametrize("case", SUPPORTED, ids=lambda case: case.name)
def test_case(case: TestCase) -> None:
    for model, inputs, expected in data_of(case):
        assert_expected(case, model, inputs, run(import_model(model.SerializeToString()), inputs), expected)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_refused_case_says_why(case: TestCase) -> None:
    with pytest.raises(TreadleError, match=error_of(case.name)):
        import_model(model_of(case).SerializeToString())


def test_every_reason_has_a_case() -> None:
    """The suite of the installed onnx may differ from the one the list was made with, but not by much."""
    names = {case.name for case in CASES}
    assert len(SUPPORTED) > 0.9 * len(CASES)
    assert [reason for reason in EXPECTED if all(reason_of(name) != reason for name in names)] == []
