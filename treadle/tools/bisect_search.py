"""Which pass changed what a model computes: the interpreter runs the IR after every pass, a process the compiled code.

What is computed is compared with the imported graph in float64, each element within its limit (`treadle.tools.oracle`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from treadle.backends.reference.run_module import find_function, run_module, within_extents
from treadle.compile_options import CompileOptions
from treadle.compiler import STAGE_NAMES, STAGES, lower, passes_of
from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.instruments import Instrument, ir_text, verify
from treadle.passes.schedule.schedule_instantiate import operations_of
from treadle.progress import Progress, no_progress
from treadle.target import Target
from treadle.tools.bisect_code import CodeError, code_outputs
from treadle.tools.oracle import Array, Definition, Expected, compare_all

IMPORT = -1
"""The number of the imported graph, before the first pass."""
INTERPRETED = 1 << 22
"""The most arithmetic operations of a model whose kernels the interpreter runs after every pass. A product of 128x128
by 128x128 (4.2 million) takes 21 s for all passes of a CPU, and 69 s for those of sm_80."""
_KERNELS = STAGE_NAMES.index("kernels")


@dataclass(frozen=True)
class Judgement:
    """What became of the outputs: `worst` is the largest error in parts of its element's limit; `problem` is empty if
    all outputs agree."""

    worst: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Case:
    """A model with inputs, and what it is compiled for.

    The pipeline's passes are numbered from 0; IMPORT is the graph before them, and the last pass is judged together
    with the printer and the compiler of its text, since nothing but the compiled code runs what it leaves.
    """

    definition: Definition
    target: Target
    options: CompileOptions

    @cached_property
    def steps(self) -> tuple[tuple[str, ModulePass], ...]:
        """The passes in order, each with its stage."""
        return tuple((stage.name, each) for stage in STAGES for each in passes_of(stage, self.target, self.options))

    @property
    def code(self) -> int:
        """The number of the last pass, which stands for the compiled code."""
        return len(self.steps) - 1

    @cached_property
    def last_of_graphs(self) -> int:
        """The number of the last pass before there are kernels."""
        graphs = STAGE_NAMES[:_KERNELS]
        return sum(stage in graphs for stage, _ in self.steps) - 1

    @cached_property
    def expected(self) -> Expected:
        """The outputs by the definition."""
        return self.definition.outputs()

    def judge(self, module: ModuleOp) -> Judgement:
        """What the interpreter makes of the module after some pass; IR that it rejects disagrees, too."""
        try:
            verify(module, "after the pass")
            results = run_module(module, self.definition.inputs)
            return self._compared(within_extents(find_function(self.definition.module, "main"), results))
        except TreadleError as error:
            return Judgement(float("inf"), str(error))

    def judge_code(self, module: ModuleOp) -> Judgement:
        """What the code of a module after the last pass makes of it. Raises what compiling it raises."""
        try:
            return self._compared(code_outputs(module, self.target, self.options, self.definition.inputs))
        except CodeError as error:
            return Judgement(float("inf"), str(error))

    def _compared(self, results: Sequence[Array]) -> Judgement:
        """Outputs of their own extents, as a compiled model gives them."""
        comparisons = compare_all(dict(zip(self.expected, results, strict=True)), self.expected)
        problem = next((str(each).replace(": DIFFERS", "", 1) for each in comparisons if not each.agrees), "")
        return Judgement(max((each.worst for each in comparisons), default=0.0), problem)


@dataclass(frozen=True)
class Divergence:
    """The outputs agree after pass `before`, and no longer after `after`; nothing between them was judged."""

    before: int
    after: int
    problem: str


Report = Callable[[str, str, str], None]
"""Called with a stage, a pass, and what was found."""


class _StoppedError(Exception):
    """Ends the pipeline after a pass."""

    def __init__(self, number: int, problem: str):
        super().__init__(problem)
        self.number = number
        self.problem = problem


class _Watch(Instrument):
    """Judges the module after each pass that changed it; stops the pipeline at the first that disagrees."""

    def __init__(self, case: Case, module: ModuleOp, report: Report, most: int, progress: Progress):
        self._case = case
        self._progress = progress
        self._report = report
        self._most = most
        self._text = ir_text(module)
        self._number = IMPORT
        self.skipped = 0

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        self._number += 1
        number = self._number
        if number == self._case.code or self.skipped:
            return
        text, old = ir_text(module), self._text
        self._text = text
        if text == old:
            self._report(stage, step.name, "unchanged")
        else:
            self._progress(f"running the IR after {step.name}", (number + 1) / len(self._case.steps))
            found = self._case.judge(module)
            self._report(stage, step.name, told(found))
            if found.problem:
                raise _StoppedError(number, found.problem)
        if number == self._case.last_of_graphs:
            operations = sum(operations_of(op) for op in module.walk() if isinstance(op, FusedOp))
            self.skipped = operations if operations > self._most else 0
            if not self.skipped:
                self._report("", f"{operations} operations", "the interpreter runs the kernels after each pass")


def first_divergence(
    case: Case, report: Report, most: int = INTERPRETED, progress: Progress = no_progress
) -> Divergence | None:
    """The first pass after which an output is beyond its limit; None if all agree, and the compiled code, too.

    Kernels of a model of more than `most` operations are not interpreted: then only its graphs and its compiled code
    are judged. Raises what the passes and the compilers raise.
    """
    module = case.definition.module.clone()
    progress("evaluating the definition", 0.0)
    found = case.judge(module)
    report("import", "the model as it is", told(found))
    if found.problem:
        return Divergence(IMPORT, IMPORT, found.problem)
    watch = _Watch(case, module, report, most, progress)
    try:
        lower(treadle_context(), module, case.target, instruments=[watch], options=case.options)
    except _StoppedError as error:
        return Divergence(error.number - 1, error.number, error.problem)
    before = case.code - 1
    if watch.skipped:
        before = case.last_of_graphs
        skipped = f"{watch.skipped} operations, more than {most}: judged by the compiled code only"
        report("", f"{case.code - before - 1} passes on kernels", skipped)
    progress("compiling and running the code", 1.0)
    found = case.judge_code(module)
    stage, last = case.steps[case.code]
    report(stage, f"{last.name}, and the code", told(found))
    return Divergence(before, case.code, found.problem) if found.problem else None


def still_diverges(case: Case, before: int, after: int) -> bool:
    """Whether the outputs agree after pass `before`, and not after `after`; False where anything fails on the way."""
    module = case.definition.module.clone()
    keep = _Keep(before, after if after < case.code else None, module.clone() if before == IMPORT else None)
    try:
        lower(treadle_context(), module, case.target, instruments=[keep], options=case.options)
        judged = case.judge_code(module)
    except _StoppedError:
        judged = case.judge(module)
    except Exception:  # another fault than the one that is looked for
        return False
    return bool(judged.problem) and keep.kept is not None and not case.judge(keep.kept).problem


def module_after(case: Case, number: int) -> ModuleOp:
    """The module after a pass; raises what the passes raise."""
    module = case.definition.module.clone()
    if number == IMPORT:
        return module
    with suppress(_StoppedError):
        lower(treadle_context(), module, case.target, instruments=[_Keep(None, number, None)], options=case.options)
    return module


class _Keep(Instrument):
    """Keeps a copy of the module after pass `before`, and stops the pipeline after pass `stop`."""

    def __init__(self, before: int | None, stop: int | None, kept: ModuleOp | None):
        self._before = before
        self._stop = stop
        self._number = IMPORT
        self.kept = kept

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        self._number += 1
        if self._number == self._before:
            self.kept = module.clone()
        if self._number == self._stop:
            raise _StoppedError(self._number, "")


def told(found: Judgement) -> str:
    """A judgement in words."""
    return f"DIFFERS: {found.problem}" if found.problem else f"agrees, {found.worst:.3g} of a limit"


__all__ = [
    "IMPORT", "INTERPRETED", "Case", "Divergence", "Judgement", "first_divergence", "module_after", "still_diverges",
]  # fmt: skip
