"""A drawn model with ranges as compiled C and on the emulator: one program, every call beside what it must be.

What compiled C reads and writes lies between pages that are no memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tests.fuzz.case import Array, Case
from tests.fuzz.check import Finding, Report, judge, judge_runtime
from tests.fuzz.definition import Expected, expected_outputs
from tests.fuzz.ranges import RangedCase, Values, calls_of
from tests.fuzz.runtime import runtime_calls
from tests.helpers.emulated_batch import CUDA, EmulatedProgram
from tests.helpers.guarded import guarded, guarded_outputs
from tests.helpers.program_batch import C, CompiledProgram, ProgramBatch
from treadle.errors import TreadleError


class RangeChecker:
    """Cases that are compiled together; those in `emulated` for the emulator, too."""

    def __init__(self, cases: Mapping[str, RangedCase], emulated: Collection[str] = ()):
        self.cases, self.emulated = cases, emulated
        self._refused: dict[str, str] = {}
        makers = {name: partial(self._imported, name) for name in cases}
        self.compiled = ProgramBatch(makers, C)
        self.kernels = ProgramBatch({name: make for name, make in makers.items() if name in emulated}, CUDA)

    def _imported(self, name: str) -> ModuleOp:
        try:
            return self.cases[name].module()
        except TreadleError as error:
            self._refused[name] = error.message
            raise

    def check(self, name: str) -> Report:
        """What is wrong with one of the cases. The importer may refuse a range; what it takes has to be right."""
        report, ranged = Report(), self.cases[name]
        batches = {"C": self.compiled} | ({"emulator": self.kernels} if name in self.emulated else {})
        programs = {runner: self._program(report, runner, batch, name) for runner, batch in batches.items()}
        if name in self._refused:
            report.skipped["ranges"] = "the importer refuses them"
            return report
        calls = [_Call.of(ranged, values) for values in ranged.calls]
        for call in calls:
            if call.case is None:
                report.findings.append(Finding("C", "", f"takes {call.shown}, which the model does not"))
        taken = [call for call in calls if call.case is not None]
        report.elements = sum(e.value.size for call in taken for e in call.expected.values())
        report.undecided = sum(int(e.undecided.sum()) for call in taken for e in call.expected.values())
        for runner, program in programs.items():
            if program is not None:
                for call in taken:
                    call.judge(report, runner, ranged, program)
        _judge_runtime(report, ranged, taken)
        return report

    def _program(
        self, report: Report, runner: str, batch: ProgramBatch[Any, Any], name: str
    ) -> CompiledProgram | EmulatedProgram | None:
        """A program; None with a finding where there is none, but for what the importer refused."""
        try:
            return batch[name]
        except TreadleError as error:
            if name not in self._refused:
                report.findings.append(Finding(runner, "", f"refused: {error}"))
        except Exception as error:
            report.findings.append(Finding(runner, "", f"{type(error).__name__}: {error}"))
        return None


@dataclass(frozen=True)
class _Call:
    """A call by the symbols' values, the case that it is, and what that must give; no case where the model does not
    take it."""

    values: Values
    case: Case | None
    expected: Mapping[str, Expected]

    @classmethod
    def of(cls, ranged: RangedCase, values: Values) -> _Call:
        case = ranged.at(values)
        return cls(values, case, expected_outputs(case) if case is not None else {})

    @property
    def shown(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.values.items())

    def judge(self, report: Report, runner: str, ranged: RangedCase, ready: CompiledProgram | EmulatedProgram) -> None:
        """Adds what is wrong with what a program gives."""
        case, values = self.case, self.values
        assert case is not None

        def run() -> list[Array]:
            program = ready.program
            calls = calls_of(program)
            inputs = list(case.inputs.values())
            extents = calls.arguments(inputs, values)[len(inputs) :]
            largest = ranged.arguments(case.inputs)
            if isinstance(ready, EmulatedProgram):
                return calls.results(ready.run([*largest, *extents]), values)
            at_end = sum(values.values()) % 2 == 0
            specs = zip(inputs, largest, program.inputs, strict=False)
            given = [guarded(exact if spec.dense else whole, at_end) for exact, whole, spec in specs]
            with guarded_outputs(at_end):
                return calls.results(ready.run([*given, *extents], calls.shapes(values)), values)

        judge(report, f"{runner} with {self.shown}", case, self.expected, run)


def _judge_runtime(report: Report, ranged: RangedCase, calls: Sequence[_Call]) -> None:
    """ONNX Runtime, which runs the model with its symbols."""
    case = ranged.case
    outputs = runtime_calls(ranged.model().SerializeToString(), case.outputs, [c.case.inputs for c in calls if c.case])
    for call, found in zip(calls, outputs, strict=True):
        assert call.case is not None
        judge_runtime(report, f"ONNX Runtime with {call.shown}", call.case, call.expected, found)


__all__ = ["RangeChecker"]
