"""Correct kernels and the edits that make them wrong: every launch is repeated, so that no schedule decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from treadle.backends.cuda.emulator import Emulator, Finding, Report

Edit = tuple[str, str]
REPETITIONS = 4


@dataclass(frozen=True)
class Kernel:
    """A correct body; the edits that make it wrong and, in `also`, those that leave it correct.

    A finding must name lines that end with `// READ` or `// WRITE`. The body knows `t`, the thread, `g`, the thread of
    the grid, `a` (64 numbers), `b` (1024 zeros) and `c` (8 integer zeros).
    """

    body: str
    faults: dict[str, Edit]
    also: dict[str, Edit] = field(default_factory=dict[str, Edit])
    grid: int = 8

    @property
    def bodies(self) -> dict[str, str]:
        """The body and, by name, all that edits make of it."""
        for old, _ in (*self.faults.values(), *self.also.values()):
            assert old in self.body, old
        return {"": self.body} | {name: self.body.replace(*edit) for name, edit in (self.faults | self.also).items()}


class Variants:
    """Kernels with all their edits, compiled as one text: compiling each would take most of the tests' time."""

    def __init__(self, emulate: Callable[..., Emulator], kernels: Mapping[str, Kernel]):
        self._text = '#include "treadle_cuda.h"\n'
        self._names: dict[tuple[str, str], str] = {}
        self._kernels = kernels
        for name, kernel in kernels.items():
            for edit, body in kernel.bodies.items():
                self._names[name, edit] = f"k{len(self._names)}"
                self._text += (
                    f'extern "C" __global__ void {self._names[name, edit]}(const float *a, float *b, int *c) {{\n'
                    "  const int t = threadIdx.x, g = blockIdx.x * blockDim.x + t;\n"
                    f"  {body}\n}}\n"
                )
        self._emulators = [emulate(self._text, workers=workers) for workers in (1, 2)]

    def launches(self, name: str, edit: str = "") -> list[Report]:
        """The reports of launches with one worker and with two."""
        entry, grid = self._names[name, edit], (self._kernels[name].grid, 1, 1)
        reports: list[Report] = []
        for emulator in self._emulators:
            for _ in range(REPETITIONS):
                args = [np.arange(64, dtype=np.float32), np.zeros(1024, np.float32), np.zeros(8, np.int32)]
                reports.append(emulator.launch(entry, grid, (64, 1, 1), args))
        return reports

    def assert_silent(self, name: str, edit: str) -> None:
        """A correct body has no findings."""
        for report in self.launches(name, edit):
            assert not report.findings, str(report)

    def assert_race(self, name: str, fault: str) -> None:
        """Every launch of a wrong body shows a race between marked lines of it."""
        lines = enumerate(self._text.splitlines(), 1)
        marked = {number for number, line in lines if line.endswith(("// READ", "// WRITE"))}
        assert "// READ" in self._kernels[name].body

        def found(finding: Finding) -> bool:
            return finding.kind == "race" and {finding.line, finding.other_line} <= marked

        for report in self.launches(name, fault):
            assert any(map(found, report.findings)), str(report)


def every_fault(kernels: Mapping[str, Kernel]) -> list[tuple[str, str]]:
    """The name of a kernel and of an edit, for each fault."""
    return [(name, fault) for name, kernel in kernels.items() for fault in kernel.faults]


def every_correct(kernels: Mapping[str, Kernel]) -> list[tuple[str, str]]:
    """The name of a kernel and of an edit, "" for none, for each correct body."""
    return [(name, edit) for name, kernel in kernels.items() for edit in ("", *kernel.also)]
