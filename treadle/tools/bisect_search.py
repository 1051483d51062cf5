"""Which pass changed what a model computes: the interpreter runs the IR after every pass, a process the compiled code.

What is computed is compared with the imported graph in float64, each element within its limit (`treadle.tools.oracle`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from treadle.backends.reference.run_module import arguments, find_function, run_module, within_extents
from treadle.compiler.artifact_writer import write_artifact
from treadle.compiler.pipeline import STAGE_NAMES, STAGES, lower, passes_of
from treadle.compiler.request import CompileRequest
from treadle.dialects.graph import ConstantOp, FusedOp
from treadle.dialects.graph.evaluate import evaluate_results
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.instruments import Instrument, ir_text, verify
from treadle.passes.schedule.schedule_instantiate import operations_of
from treadle.support.progress import Progress, no_progress
from treadle.target import Target
from treadle.target.options import CompileOptions
from treadle.tools.compile_command import outputs_of_artifact
from treadle.tools.oracle import Array, Definition, Expected, compare_all
from treadle.tuning.child import CallEndedError, Child

# What the compiled code of a module computes, in a process of its own: wrong code may end it.

SECONDS = 600.0
"""After which code counts as hanging: the emulator gives each kernel 60."""


class CodeError(Exception):
    """Code that ended its process, or did not end; the text says which."""


def code_outputs(
    module: ModuleOp, target: Target, options: CompileOptions, inputs: Sequence[Array]
) -> tuple[Array, ...]:
    """The outputs of a module after the last pass: of C on this machine, of CUDA on the emulator.

    CodeError if the code does not give any. Raises what printing and compiling raises.
    """
    with TemporaryDirectory(prefix="treadle-") as folder:
        write_artifact(
            CompileRequest(module, target, options=options, cubins=False, after=STAGE_NAMES[-1]), Path(folder)
        )
        child = Child()
        try:
            return child.call(partial(outputs_of_artifact, folder, target.is_cuda, tuple(inputs)), SECONDS)
        except CallEndedError as error:
            raise CodeError(f"the compiled code gave no outputs: {error}") from error
        finally:
            child.close()


# The smallest part of a graph on which a fault remains: fewer outputs first, then values in place of what computes
# them.
#
# After A. Zeller and R. Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28 (2002): whatever
# is left out, the rest is tried, and kept only if it still fails. What is left is minimal in that no single cut is
# possible.

Differs = Callable[[Definition], bool]


class Parts:
    """The values of a definition's graph, of which parts can be made."""

    def __init__(self, definition: Definition):
        self.definition = definition
        self._main = find_function(definition.module, "main")
        block = self._main.body.block
        self.values: dict[SSAValue, Array] = arguments(block, definition.inputs)
        for op in block.ops:
            if not isinstance(op, ReturnOp):
                self.values.update(zip(op.results, evaluate_results(op, self.values), strict=True))
        end = block.last_op
        assert end is not None
        self.outputs = tuple(end.operands)
        self._names = self._given_names()

    def operators(self, outputs: Collection[SSAValue], cuts: Collection[SSAValue]) -> list[Operation]:
        """The operators, without constants, that outputs need if `cuts` are given, in order."""
        needed, _ = self._needed(outputs, cuts)
        return [op for op in needed if not isinstance(op, ConstantOp)]

    def constants(self) -> frozenset[SSAValue]:
        """The values that depend on no input."""
        block = self._main.body.block
        found: set[SSAValue] = set()
        for op in block.ops:
            read = (v for inner in op.walk() for v in inner.operands if v.owner is block or v.owner.parent is block)
            if all(value in found for value in read):
                found.update(op.results)
        return frozenset(found)

    def part(self, outputs: Sequence[SSAValue], cuts: Collection[SSAValue]) -> Definition:
        """The graph that computes `outputs`, with `cuts` as inputs that have the values they had."""
        needed, inputs = self._needed(outputs, cuts)
        block = Block(arg_types=[value.type for value in inputs])
        mapper: dict[SSAValue, SSAValue] = dict(zip(inputs, block.args, strict=True))
        for value, arg in zip(inputs, block.args, strict=True):
            arg.name_hint = value.name_hint
        for op in needed:
            copy = op.clone(mapper)
            copy.location = op.location
            block.add_op(copy)
        block.add_op(ReturnOp(*(mapper[value] for value in outputs)))
        types = [value.type for value in inputs], [value.type for value in outputs]
        main = FuncOp("main", types, Region(block))
        main.attributes["input_names"] = self._unique(inputs)
        main.attributes["output_names"] = self._unique(outputs)
        arrays = [np.ascontiguousarray(self.values[value]) for value in inputs]
        arrays = [a.reshape(self.values[value].shape) for a, value in zip(arrays, inputs, strict=True)]
        return Definition(ModuleOp([main]), arrays, self.definition.precision)

    def _needed(
        self, outputs: Collection[SSAValue], cuts: Collection[SSAValue]
    ) -> tuple[list[Operation], list[SSAValue]]:
        """Operations in order, and the values that they are given in the order of the graph."""
        block = self._main.body.block
        wanted = set(outputs)
        needed: list[Operation] = []
        for op in reversed(list(block.ops)):
            if not any(result in wanted and result not in cuts for result in op.results):
                continue
            needed.append(op)
            for inner in op.walk():
                wanted.update(v for v in inner.operands if v.owner is block or v.owner.parent is block)
        return needed[::-1], [v for v in self.values if v in wanted and (v in cuts or v.owner is block)]

    def _given_names(self) -> dict[SSAValue, str]:
        """The model's names of inputs and outputs, where they are known."""
        names: dict[SSAValue, str] = {}
        sides = ("output_names", self.outputs), ("input_names", self._main.body.block.args)
        for attribute, values in sides:
            given = self._main.attributes.get(attribute)
            if isinstance(given, ArrayAttr):
                texts = [each.data for each in given if isinstance(each, StringAttr)]
                names.update(zip(values, texts, strict=True))
        return names

    def _unique(self, values: Sequence[SSAValue]) -> ArrayAttr[StringAttr]:
        taken: list[str] = []
        for n, value in enumerate(values):
            name = self._names.get(value) or value.name_hint or f"v{n}"
            taken.append(name if name not in taken else f"{name}.{n}")
        return ArrayAttr([StringAttr(name) for name in taken])


def reduced(parts: Parts, differs: Differs, *, folded: bool) -> Definition:
    """The smallest part that was found on which `differs` holds, which it does for the whole.

    folded: whether an output may be a value that depends on no input. Kernels only copy it, once it is folded: what
            they do wrong then has little to do with its operator.
    """
    search = _Search(parts, differs, frozenset() if folded else parts.constants())
    search.one_output()
    search.earlier_output()
    search.later_start()
    while search.one_cut() or search.other_output():
        pass
    return parts.part(search.outputs, search.cuts)


class _Search:
    def __init__(self, parts: Parts, differs: Differs, excluded: frozenset[SSAValue]):
        self._parts = parts
        self._excluded = excluded
        self._differs = differs
        self.outputs: tuple[SSAValue, ...] = parts.outputs
        self.cuts: frozenset[SSAValue] = frozenset()

    def one_output(self) -> None:
        """One output alone, if one fails alone."""
        for value in self._parts.outputs if len(self.outputs) > 1 else ():
            if self._parts.operators([value], ()) and self._accept((value,), frozenset()):
                return

    def earlier_output(self) -> None:
        """The first value that fails, by halves: most of what is computed from a wrong value is wrong, too."""
        values = self._possible_outputs()
        low, high = 0, len(values)
        while low < high:
            middle = (low + high) // 2
            if self._accept((values[middle],), self.cuts):
                high = middle
            else:
                low = middle + 1

    def later_start(self) -> None:
        """As many operators as possible replaced by their values from the first on, by halves."""
        values = self._inner()
        low, high = 0, len(values)
        while low < high:
            middle = (low + high + 1) // 2
            if self._accept(self.outputs, self.cuts.union(values[:middle])):
                low = middle
            else:
                high = middle - 1

    def one_cut(self) -> bool:
        """Single values in place of what computes them, the last first; whether there was one."""
        before = self.cuts
        for value in reversed(self._inner()):
            if value in self._inner():
                self._accept(self.outputs, self.cuts | {value})
        return self.cuts != before

    def other_output(self) -> bool:
        """An inner value as the output, the first first; whether there was one."""
        return any(self._accept((value,), self.cuts) for value in self._possible_outputs())

    def _possible_outputs(self) -> list[SSAValue]:
        return [value for value in self._inner() if value not in self._excluded]

    def _inner(self) -> list[SSAValue]:
        """The values between inputs and outputs, in order."""
        operators = self._parts.operators(self.outputs, self.cuts)
        return [
            value for op in operators for value in op.results if value not in self.outputs and value not in self.cuts
        ]

    def _accept(self, outputs: tuple[SSAValue, ...], cuts: frozenset[SSAValue]) -> bool:
        if not self._differs(self._parts.part(outputs, cuts)):
            return False
        self.outputs, self.cuts = outputs, cuts
        return True


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
