"""A drawn model with ranges as compiled C and on the emulator: one program, every call beside what it must be.

What compiled C reads and writes lies between pages that are no memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from xdsl.dialects.builtin import ModuleOp

from tests.fuzz.case import Array
from tests.fuzz.check import Finding, Report, judge
from tests.fuzz.definition import expected_outputs
from tests.fuzz.ranges import RangedCase, Values, calls_of
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
        for runner, batch in batches.items():
            try:
                program = batch[name]
            except TreadleError as error:
                if name in self._refused:
                    report.skipped["ranges"] = "the importer refuses them"
                else:
                    report.findings.append(Finding(runner, "", f"refused: {error}"))
                continue
            except Exception as error:
                report.findings.append(Finding(runner, "", f"{type(error).__name__}: {error}"))
                continue
            for values in ranged.calls:
                _check_call(report, runner, ranged, values, program)
        return report


def _check_call(
    report: Report, runner: str, ranged: RangedCase, values: Values, ready: CompiledProgram | EmulatedProgram
) -> None:
    shown = ", ".join(f"{name} = {value}" for name, value in values.items())
    case = ranged.at(values)
    if case is None:
        report.findings.append(Finding(runner, "", f"takes {shown}, which the model does not"))
        return
    expected = expected_outputs(case)
    report.elements += sum(e.value.size for e in expected.values())
    report.undecided += sum(int(e.undecided.sum()) for e in expected.values())

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

    judge(report, f"{runner} with {shown}", case, expected, run)


__all__ = ["RangeChecker"]
