"""The twelve operators of MetaSchedule's appendix A.2: what the rules write for them computes what they define."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from benchmarks.paper_operators import OPERATORS
from tests.helpers import emulated_batch
from tests.helpers.emulated_batch import EmulatedProgram, PrintedKernels
from tests.helpers.program_batch import (
    Backend,
    CompiledProgram,
    PrintedProgram,
    ProgramBatch,
    compile_programs,
    print_program,
)
from tests.schedules.rules.scheduled import CPU, GPU, anchor, scheduled
from treadle.backends.reference import evaluate_module
from treadle.errors import TreadleError
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import workload_of
from treadle.schedules.rules import Rule, programs
from treadle.schedules.rules.programs import drafts
from treadle.schedules.rules.tiling import default_rules
from treadle.target import Target

Array = NDArray[Any]
NESTS = [name for name in OPERATORS if name != "SFM"]
"""Softmax has two reductions: templates schedule it."""
START, MORE = 1, 3
"""The number of the first operator's draft; drafts that slow tests compile, beside one of each quick operator."""
NAMES = [f"{name} {number + more}" for number, name in enumerate(OPERATORS, START) for more in range(1 + MORE)]
QUICK = ("C2D", "DEP", "GRP", "T2D", "TBG", "NRM", "SFM")
"""Of the others the anchors are products as well."""
FIRST = [name for name in NAMES[:: 1 + MORE] if name.split()[0] in QUICK]
DRAWN = [pytest.param(name, marks=() if name in FIRST else pytest.mark.slow) for name in NAMES]
SIZED = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OPERATORS]


def nests_of(target: Target) -> Sequence[Rule]:
    """The default rules but for templates, which have tests of their own."""
    return default_rules(target)[1:]


def rules_of(name: str, target: Target) -> Sequence[Rule]:
    return nests_of(target) if name in NESTS else default_rules(target)


@cache
def expected(name: str) -> Array:
    """In float64, by the definition."""
    operator = OPERATORS[name]
    inputs = operator.arrays(small=True, dtype=np.float64)[: operator.inputs]
    (found,) = evaluate_module(operator.module(small=True, dtype=np.float64), inputs)
    return found


def maker(name: str, target: Target) -> Callable[[], ModuleOp]:
    operator, number = name.split()
    return lambda: scheduled(OPERATORS[operator].module(small=True), target, rules_of(operator, target), int(number))


@pytest.fixture(scope="module")
def compiled() -> ProgramBatch[PrintedProgram, CompiledProgram]:
    backend = Backend(partial(print_program, after="schedule"), compile_programs)
    return ProgramBatch({name: maker(name, CPU) for name in FIRST + NAMES}, backend, len(FIRST))


@pytest.mark.parametrize("name", DRAWN)
def test_compiled(compiled: ProgramBatch[PrintedProgram, CompiledProgram], name: str) -> None:
    operator = OPERATORS[name.split()[0]]
    (actual,) = compiled[name].run(operator.arrays(small=True)[: operator.inputs])
    np.testing.assert_allclose(actual, expected(name.split()[0]), rtol=1e-5, atol=2e-5)


@pytest.fixture(scope="module")
def emulated() -> ProgramBatch[PrintedKernels, EmulatedProgram]:
    backend = Backend(partial(emulated_batch.print_program, after="schedule"), emulated_batch.compile_programs)
    return ProgramBatch({name: maker(name, GPU) for name in FIRST + NAMES}, backend, len(FIRST))


@pytest.mark.parametrize("name", DRAWN)
def test_emulated(emulated: ProgramBatch[PrintedKernels, EmulatedProgram], name: str) -> None:
    """As CUDA, with every check of the emulator."""
    operator = OPERATORS[name.split()[0]]
    (actual,) = emulated[name].run(operator.arrays(small=True)[: operator.inputs])
    np.testing.assert_allclose(actual, expected(name.split()[0]), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", SIZED)
def test_every_operator_has_programs(name: str, target: Target) -> None:
    """At the paper's sizes. They are the same for the same seed, to the letter."""
    of = anchor(name, target, small=False)
    texts = [str(program) for program in programs(of, target, default_rules(target), seed=1)]
    assert texts == [str(program) for program in programs(of, target, default_rules(target), seed=1)]
    assert any("schedule.template" in text for text in texts)
    assert any("schedule.arrange" in text for text in texts) == (name in NESTS)


@pytest.mark.parametrize("target", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", SIZED[:-1])
def test_draws_are_mostly_legal_and_wrong_ones_rejected(name: str, target: Target) -> None:
    """Other values of the same traces, as a search mutates them: replay is the validator."""
    of = anchor(name, target, small=False)
    workload, rules = workload_of(of), nests_of(target)
    found = {str(d.program("p")): d for d in drafts(of, target, rules, "0")}
    again = [d for seed in "1234" for d in drafts(of, target, rules, seed)]
    legal = tried = 0
    for draft in again:
        trace = found.get(str(draft.program("p")))
        if trace is None:
            continue
        assert nest_of(trace.program("p"), draft.decisions, workload, target) == draft.nest
        for label, decision in draft.decisions.items():
            tried += 1
            try:
                nest_of(trace.program("p"), {**trace.decisions, label: decision}, workload, target)
                legal += 1
            except TreadleError as error:
                assert "accepted" in str(error)
    assert legal >= 0.5 * tried
