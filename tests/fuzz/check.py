"""A drawn model as compiled C, on the emulator and by ONNX Runtime, each beside what its outputs must be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from tests.fuzz.case import Case
from tests.fuzz.definition import Expected, expected_outputs
from tests.fuzz.freedom import runtime_differs
from tests.fuzz.recipes import QUANTIZED
from tests.fuzz.runtime import runtime_outputs
from tests.fuzz.schedules import DRAWN_C, DRAWN_CUDA
from tests.helpers.emulated_batch import CUDA
from tests.helpers.program_batch import Backend, C, ProgramBatch, compile_programs, print_program
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

Array = NDArray[Any]
Run = Callable[[], "Sequence[Array]"]
UNIT = "cpu{matrix_unit=vnni}"
"""A processor that multiplies bytes; on others its kernels do the same without the instructions."""
ON_UNIT = Backend(lambda name, module: print_program(name, module, UNIT), lambda texts: compile_programs(texts, UNIT))


@dataclass(frozen=True)
class Finding:
    """What is wrong: who gave which output, and how it differs; `output` is empty where there is none."""

    runner: str
    output: str
    message: str

    def __str__(self) -> str:
        return f"{self.runner}: {self.output}{': ' if self.output else ''}{self.message}"


@dataclass
class Report:
    """The findings of a case, and what was not compared, with the reason."""

    findings: list[Finding] = field(default_factory=list[Finding])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    elements: int = 0
    undecided: int = 0
    scheduled: int = 0
    """Programs with drawn schedules."""


class Checker:
    """Cases that are compiled together; quantised ones for a matrix unit, too, those in `emulated` for the emulator,
    and those in `scheduled` once more with schedule decisions that are drawn, for the emulator as well if they are in
    both."""

    def __init__(self, cases: Mapping[str, Case], emulated: Collection[str] = (), scheduled: Collection[str] = ()):
        self.cases, self.emulated, self.scheduled = cases, emulated, scheduled
        makers = {name: partial(_imported, case) for name, case in cases.items()}
        self.compiled = ProgramBatch(makers, C)
        quantized = {name for name, case in cases.items() if not QUANTIZED.keys().isdisjoint(case.operators)}
        self.on_unit = ProgramBatch({name: make for name, make in makers.items() if name in quantized}, ON_UNIT)
        self.quantized = quantized
        self.kernels = ProgramBatch({name: make for name, make in makers.items() if name in emulated}, CUDA)
        drawn = {name: make for name, make in makers.items() if name in scheduled}
        self.drawn = ProgramBatch(drawn, DRAWN_C)
        self.drawn_kernels = ProgramBatch({name: make for name, make in drawn.items() if name in emulated}, DRAWN_CUDA)

    def check(self, name: str) -> Report:
        """What is wrong with one of the cases."""
        case, report = self.cases[name], Report()
        expected = expected_outputs(case)
        report.elements = sum(e.value.size for e in expected.values())
        report.undecided = sum(int(e.undecided.sum()) for e in expected.values())
        inputs = list(case.inputs.values())
        judge(report, "C", case, expected, lambda: self.compiled[name].run(inputs))
        if name in self.quantized:
            judge(report, "matrix unit", case, expected, lambda: self.on_unit[name].run(inputs))
        if name in self.emulated:
            judge(report, "emulator", case, expected, lambda: self.kernels[name].run(inputs))
        if name in self.scheduled:
            self._judge_drawn(report, name, expected)
        judge_runtime(report, "ONNX Runtime", case, expected, runtime_outputs(case))
        return report

    def _judge_drawn(self, report: Report, name: str, expected: Mapping[str, Expected]) -> None:
        """With drawn schedules; a space may hold decisions that a later pass rejects by name."""
        case = self.cases[name]
        inputs = list(case.inputs.values())
        batches: dict[str, ProgramBatch[Any, Any]] = {"C, drawn schedules": self.drawn}
        batches |= {"emulator, drawn schedules": self.drawn_kernels} if name in self.emulated else {}
        for runner, batch in batches.items():
            try:
                program = batch[name]
            except TreadleError as error:
                report.skipped[runner] = f"refused: {error.message}"
                continue
            except Exception as error:
                report.findings.append(Finding(runner, "", f"{type(error).__name__}: {error}"))
                continue
            report.scheduled += 1
            judge(report, runner, case, expected, partial(program.run, inputs))


def check_case(case: Case, emulated: bool = False, scheduled: str = "") -> Report:
    """What is wrong with a case by itself; `scheduled` is the name by which its schedules are drawn."""
    name = scheduled or "case"
    return Checker({name: case}, [name] if emulated else [], [name] if scheduled else []).check(name)


def _imported(case: Case) -> ModuleOp:
    return import_model(case.content())


def judge(report: Report, runner: str, case: Case, expected: Mapping[str, Expected], run: Run) -> None:
    """Adds to the report how what `run` gives differs from what is expected, or that it raises."""
    try:
        outputs = run()
    except TreadleError as error:
        report.findings.append(Finding(runner, "", f"refused: {error}"))
        return
    except Exception as error:
        report.findings.append(Finding(runner, "", f"{type(error).__name__}: {error}"))
        return
    for name, actual in zip(case.outputs, outputs, strict=True):
        message = difference(actual, expected[name], *case.types[name])
        if message:
            report.findings.append(Finding(runner, name, message))


def judge_runtime(
    report: Report, runner: str, case: Case, expected: Mapping[str, Expected], outputs: dict[str, Array] | str
) -> None:
    """Adds to the report how ONNX Runtime's outputs differ from what is expected, or why they may, or are none."""
    if isinstance(outputs, str):
        report.skipped["ONNX Runtime"] = outputs
        return
    for name, actual in outputs.items():
        message = difference(actual, expected[name], *case.types[name])
        reason = runtime_differs(case, name) if message else None
        if reason:
            report.skipped["ONNX Runtime"] = reason
        elif message:
            report.findings.append(Finding(runner, name, message))


def difference(actual: Array, expected: Expected, dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    """How an output differs from what it must be; empty if it does not."""
    if actual.dtype != dtype or actual.shape != tuple(shape) or expected.value.shape != tuple(shape):
        return f"{actual.dtype}{list(actual.shape)}, not {dtype}{list(shape)}"
    with np.errstate(all="ignore"):
        value, wanted = actual, expected.value
        same = (value == wanted) | ((value != value) & (wanted != wanted))
        if dtype.kind == "f":
            value = actual.astype(np.float64)
            same |= np.isfinite(value) & np.isfinite(wanted) & (np.abs(value - wanted) <= expected.limit)
    wrong = np.argwhere(~(same | expected.undecided))
    if not len(wrong):
        return ""
    first = tuple(int(i) for i in wrong[0])
    limit = f" within {expected.limit[first]:.3g}" if dtype.kind == "f" else ""
    return f"{len(wrong)} of {actual.size} wrong, at {list(first)} {actual[first]!r}, not {wanted[first]!r}{limit}"


__all__ = ["Checker", "Finding", "Report", "check_case", "difference", "judge", "judge_runtime"]
