"""ONNX's own node tests as compiled code: what ships, against what ONNX expects.

Cases beyond the first few of an operator, and those whose modules are those of others, are slow tests. Every case has a
form for GPUs, too: a case that cannot be lowered for one fails, and would have to be listed here with its reason.
"""

from __future__ import annotations

from functools import partial

import pytest
from onnx import ModelProto
from onnx.backend.test.case.test_case import TestCase
from xdsl.dialects.builtin import ModuleOp

from tests.frontends.onnx.node_cases import QUICK, SUPPORTED, assert_expected, data_of
from tests.helpers.emulated_batch import CUDA, EmulatedProgram, PrintedKernels
from tests.helpers.program_batch import C, CompiledProgram, Maker, PrintedProgram, ProgramBatch
from treadle.frontends.onnx import import_model

CASES = pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.slow]) for c in SUPPORTED],
)


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest) -> ProgramBatch[PrintedProgram, CompiledProgram]:
    return ProgramBatch(_chosen(request, "test_compiled_case"), C)


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> ProgramBatch[PrintedKernels, EmulatedProgram]:
    return ProgramBatch(_chosen(request, "test_emulated_case"), CUDA)


@CASES
def test_compiled_case(case: TestCase, compiled: ProgramBatch[PrintedProgram, CompiledProgram]) -> None:
    for number, (model, inputs, expected) in enumerate(data_of(case)):
        assert_expected(case, model, inputs, compiled[_name(case, number)].run(inputs), expected)


@pytest.mark.slow
@CASES
def test_emulated_case(case: TestCase, emulated: ProgramBatch[PrintedKernels, EmulatedProgram]) -> None:
    for number, (model, inputs, expected) in enumerate(data_of(case)):
        assert_expected(case, model, inputs, emulated[_name(case, number)].run(inputs), expected)


def _chosen(request: pytest.FixtureRequest, test: str) -> dict[str, Maker]:
    """What makes the modules of the cases that were chosen: one alone does not wait for a hundred others."""
    chosen = {item.name for item in request.session.items}
    cases = [case for case in SUPPORTED if f"{test}[{case.name}]" in chosen]
    data = {_name(case, n): model for case in cases for n, (model, _, _) in enumerate(data_of(case))}
    return {name: partial(_imported, model) for name, model in data.items()}


def _imported(model: ModelProto) -> ModuleOp:
    return import_model(model.SerializeToString())


def _name(case: TestCase, number: int) -> str:
    return f"{case.name}.{number}"
