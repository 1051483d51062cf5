"""A model while it is explored: compiled, with decisions edited one after the other, each timed and checked again.

What an edit leads to is run in a process of its own: a schedule that is legal may still be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.backends.launch_names import has_choices
from treadle.bench.interleave import Disturbance, interleave
from treadle.bench.model import called, points_of, repeated
from treadle.compiler.artifact_writer import write_artifact
from treadle.compiler.pipeline import STAGE_NAMES, record_stage, stage_of
from treadle.compiler.request import CompileRequest, is_ir_file, lowered_module, read_module
from treadle.dialects.graph import FusedOp
from treadle.dialects.location import ir_text, location_of, name_nodes
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import DispatchAttr, UseAttr, choice_text
from treadle.errors import TreadleError
from treadle.model import CompiledModel, load
from treadle.passes.schedule.instance import anchor_of, group_program
from treadle.passes.schedule.schedule_select import check_use, default_schedule
from treadle.runtime.inputs import Given, empty_lengths, empty_states, inputs_at, inputs_of
from treadle.schedules.template import Anchor, Template
from treadle.shapes.dynamic import ExtentExpression
from treadle.support.progress import Progress, no_progress
from treadle.target import Target
from treadle.tools.bisect_search import SECONDS
from treadle.tools.compile_command import outputs_of_artifact
from treadle.tools.explore_record import Code, Documents, Json, Recorder, code_of
from treadle.tools.explore_values import Evaluator
from treadle.tools.oracle import Definition, Expected, compare_all
from treadle.tools.schedules_command import knob_note, templates_of
from treadle.tuning.child import CallEndedError, Child
from treadle.tuning.in_model import ModelTimes, Ratio, model_times

Array = NDArray[Any]

SCHEDULE = "schedule"
"""The stage whose decisions are edited."""
_ROUND_SECONDS = 0.02
_FEWEST_ROUNDS = 6
_POINTS = 3
"""Calls of a range that are compared with their definitions."""


@dataclass(frozen=True)
class Verdict:
    """What the comparison of an output with the definition says; where: the values of a range's symbols."""

    where: str
    text: str
    agrees: bool


@dataclass
class Version:
    """The model with some decisions.

    change: what was edited of the version before; groups: the numbers of those groups
    seconds: what printing and compiling the text took
    timed: it beside the version before, in turn; None where that was not measured, and `note` says why
    """

    number: int
    change: str
    groups: tuple[int, ...]
    recorder: Recorder
    code: list[Code]
    folder: Path
    seconds: float
    chooses: bool
    timed: ModelTimes | None = None
    note: str = ""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def scheduled(self) -> int:
        """The number of the text with the decisions."""
        return self.recorder.last_of(SCHEDULE)


@dataclass(frozen=True)
class Settings:
    """How versions are timed and checked.

    seconds: of a timing; threads: of a call; check: whether outputs are compared with the definition
    """

    seconds: float = 2.0
    threads: int = 1
    seed: int = 0
    check: bool = True


@dataclass
class Session:
    """A model and what became of it. Not for several threads at once.

    request: of a file; given: what is given of its inputs
    """

    request: CompileRequest
    given: Given
    settings: Settings
    documents: Documents = field(default_factory=Documents)
    versions: list[Version] = field(default_factory=list[Version])
    progress: Progress = no_progress
    _made: int = 0

    def __post_init__(self) -> None:
        self._scratch = TemporaryDirectory(prefix="treadle-explore-")
        self._child = Child()

    def close(self) -> None:
        """Ends what runs, and removes what was compiled."""
        self._child.close()
        self._scratch.cleanup()

    @property
    def target(self) -> Target:
        """What the model is compiled for."""
        return self.request.target

    @property
    def path(self) -> Path:
        """The model's file."""
        assert isinstance(self.request.model, Path)
        return self.request.model

    @property
    def current(self) -> Version:
        """The last version."""
        return self.versions[-1]

    @cached_property
    def model(self) -> CompiledModel:
        """The first version, for its inputs and outputs: they are those of all."""
        return load(self.versions[0].folder, None if self.target.kind == "cuda" else self.settings.threads)

    @cached_property
    def inputs(self) -> dict[str, Array]:
        """Of a call at the largest shape."""
        return inputs_of(self.model, self.given.arrays, self.settings.seed)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Values of all texts, at the largest shape. States hold zeros, as many as there is room for."""
        manifest, given = self.model.manifest, self.given.arrays
        greatest = {dim.name: dim.greatest for dim in self.model.symbols}
        full = inputs_at(self.model.inputs, greatest, given, self.settings.seed)
        count = len(manifest.inputs) - len(manifest.extents)
        arrays = [full.get(each.name, np.zeros(each.shape, np.dtype(each.dtype))) for each in manifest.inputs[:count]]
        values = (ExtentExpression(text, list(greatest)).value(greatest) for text in manifest.extents)
        arrays += [np.array(value, np.int64) for value in values]
        return Evaluator(self.documents, arrays, self.versions[0].scheduled)

    # Versions.

    def begin(self) -> Version:
        """Compiles the model as it is; raises what that raises, and TreadleError for IR beyond stage `schedule`."""
        module: Any = self.request.model
        if is_ir_file(self.path):
            module = read_module(self.path.read_text(), str(self.path))
        at = stage_of(module, self.request.after) if isinstance(module, ModuleOp) else None
        first = STAGE_NAMES[0] if at is None else at
        if STAGE_NAMES.index(first) > STAGE_NAMES.index(SCHEDULE):
            message = f"the IR after stage '{first}' has no decisions to edit"
            raise TreadleError(message, self.path, f"an .onnx file, or IR up to stage '{SCHEDULE}'")
        module = lowered_module(replace(self.request, model=module, progress=self.progress), first)
        return self._keep(self._compiled(module, first, "as compiled", ()))

    def edit(self, number: int, text: str, *, equal: bool = False) -> Version:
        """A version with another schedule of a group, and with `equal` of all groups that are equal to it.

        text: as IR has it, `#schedule.use<...>`. TreadleError for one that is none, and what the compiler rejects.
        """
        module = self.module()
        groups = groups_of(module)
        fused = _group(groups, number)
        old = str(fused.schedule)
        digest = group_program(fused).digest() if equal else ""
        numbers = [n for n, each in enumerate(groups) if n == number or digest == _digest(each, equal)]
        for each in numbers:
            groups[each].schedule = parsed_schedule(text, groups[each], self.target)
        if str(fused.schedule) == old:
            raise TreadleError("it has this schedule already", _where(fused), "another one")
        several = f"{len(numbers)} groups like {fused.label.data}" if len(numbers) > 1 else fused.label.data
        change = f"{several}: {old} became {fused.schedule}"
        version = self._compiled(module, SCHEDULE, change, tuple(numbers))
        self._keep(version)
        self.measure()
        return version

    def undo(self) -> Version:
        """Drops the last version, and gives the one before; TreadleError if there is none."""
        if len(self.versions) < 2:
            raise TreadleError("nothing was edited", "undo", "a version that an edit made")
        self.versions.pop()
        return self.current

    def measure(self) -> None:
        """Times the last version beside the one before, and compares its outputs with the definition."""
        version = self.current
        if len(self.versions) > 1:
            version.timed, version.note = self._timed(self.versions[-2], version)
        try:
            version.verdicts = tuple(self._verdicts(version))
        except TreadleError as error:  # of a definition that cannot be evaluated; the version stays
            version.verdicts = (Verdict("", f"not compared with the definition: {error}", False),)

    def module(self, version: Version | None = None) -> ModuleOp:
        """A version's module with its decisions; of the last one unless another is given."""
        number = (self.current if version is None else version).scheduled
        return read_module(self.documents.get(f"text-{number}")["text"], "the decisions")

    def text(self) -> str:
        """The same as text that `treadle-opt` and `treadle run` resume."""
        module = self.module()
        record_stage(module, SCHEDULE)
        return ir_text(module)

    def options(self, number: int) -> Json:
        """What may be chosen for a group, as `treadle schedules` says it."""
        fused = _group(groups_of(self.module()), number)
        anchor = anchor_of(fused)
        return {
            "default": str(default_schedule(fused, self.target)),
            "templates": [_template(each, anchor, self.target) for each in templates_of(anchor, self.target)],
        }

    def _keep(self, version: Version) -> Version:
        self.versions.append(version)
        return version

    def _compiled(self, module: ModuleOp, after: str, change: str, groups: tuple[int, ...]) -> Version:
        recorder = Recorder(self.documents)
        if self.versions:
            recorder.resume(self.current.recorder, SCHEDULE, module, change)
        else:
            recorder.start(module)
        given = replace(
            self.request, model=module, after=after, shapes={}, constants=None, states=None, progress=self.progress
        )
        lowered_module(given, instruments=[recorder])
        code = code_of(module, self.target.kind, self.documents)
        chooses = has_choices(module)
        number = self._made
        self._made += 1
        folder = Path(self._scratch.name) / str(number)
        folder.mkdir()
        start = time.perf_counter()
        write_artifact(replace(given, after=STAGE_NAMES[-1], cubins=False, content=None, trace_dir=None), folder)
        seconds = time.perf_counter() - start
        return Version(number, change, groups, recorder, code, folder, seconds, chooses)

    # Times and checks.

    def _timed(self, before: Version, after: Version) -> tuple[ModelTimes | None, str]:
        if self.target.kind == "cuda":
            return None, f"not timed: {self.target.name} is not this machine's processor"
        self.progress("timing the versions in turn", 1.0)
        folders, seconds = (before.folder, after.folder), self.settings.seconds
        call: Callable[[], ModelTimes] = partial(model_times, folders, self.settings.threads, seconds)
        if before.chooses or after.chooses or self.model.manifest.states:
            call = partial(call_times, folders, self.settings.threads, seconds, self.inputs)
        try:
            return self._child.call(call, 2 * seconds + SECONDS), ""
        except CallEndedError as error:
            return None, f"not timed: {error}"

    def _verdicts(self, version: Version) -> Iterator[Verdict]:
        if not self.settings.check:
            return
        names = [tensor.name for tensor in self.model.outputs]
        for where, inputs, expected in self._calls:
            self.progress("comparing with the definition", 1.0)
            ordered = tuple(inputs[tensor.name] for tensor in self.model.inputs)
            call = partial(outputs_of_artifact, str(version.folder), self.target.kind == "cuda", ordered)
            try:
                outputs = self._child.call(call, SECONDS)
            except CallEndedError as error:
                yield Verdict(where, f"the compiled code gave no outputs: {error}", False)
                continue
            for each in compare_all(dict(zip(names, outputs, strict=True)), expected):
                yield Verdict(where, str(each), each.agrees)

    @cached_property
    def _calls(self) -> list[tuple[str, dict[str, Array], Expected]]:
        """Calls with what the definition says of them: one, or a few along a range."""
        model, found = self.model, list[tuple[str, dict[str, Array], Expected]]()
        calls = [("", self.inputs)]
        if model.symbols and not self.given.arrays:
            points = [{**point, **empty_lengths(model)} for point in points_of(model.symbols, _POINTS)]
            calls = [
                (
                    ", ".join(f"{name} = {value}" for name, value in point.items()),
                    inputs_at(model.inputs, point, {}, self.settings.seed),
                )
                for point in points
            ]
        for where, inputs in calls:
            self.progress(f"evaluating the definition {where}".strip(), 1.0)
            options = self.request.options
            definition = Definition.of_file(
                self.path, inputs, options.precision, self.given.constants, options.weights, empty_states(model)
            )
            found.append((where, inputs, definition.outputs()))
        return found


def call_times(folders: Sequence[Path], threads: int, seconds: float, inputs: dict[str, Array]) -> ModelTimes:
    """As `model_times`, of calls alone: of models whose launches are not the same in every call."""
    before, after = folders
    models = {name: load(folder, threads) for name, folder in (("0", before), ("1", after), ("2", before))}
    disturbance = Disturbance(threads)
    sides = {name: repeated(called(model, inputs)) for name, model in models.items()}
    rounds = max(_FEWEST_ROUNDS, int(seconds / (_ROUND_SECONDS * len(sides))))
    times = interleave(sides, rounds, _ROUND_SECONDS)
    waited = disturbance.part()
    for model in models.values():
        model.close()
    return ModelTimes((times["0"].seconds, times["1"].seconds), ({}, {}), times["2"].seconds, waited)


# Groups and their schedules.


def groups_of(module: ModuleOp) -> list[FusedOp]:
    """The groups of a module, in order; a group's number is its position."""
    return [op for op in module.walk() if isinstance(op, FusedOp)]


def ratio_of(version: Version, groups: Sequence[FusedOp]) -> Ratio | None:
    """How many times as fast the launches of a version's edited groups became; None where they were not timed."""
    if version.timed is None or not version.timed.launches[0]:
        return None
    return version.timed.of_nodes([name_nodes(groups[number].location) for number in version.groups])


def parsed_schedule(text: str, fused: FusedOp, target: Target) -> UseAttr | DispatchAttr | SymbolRefAttr:
    """A schedule that is legal for a group; TreadleError for text that is none, and for one that a limit rejects."""
    where = _where(fused)
    parser = Parser(treadle_context(), text, "schedule")
    try:
        found = parser.parse_attribute()
        rest = text[parser.pos :].strip()
    except (ParseError, VerifyException) as error:
        message = error.msg if isinstance(error, ParseError) else str(error)
        raise TreadleError(
            " ".join(message.split()), where, '#schedule.use<"template", {knob = value, ...}>'
        ) from error
    if rest or not isinstance(found, UseAttr | DispatchAttr | SymbolRefAttr):
        accepted = "#schedule.use<...>, #schedule.dispatch<...>, or the symbol of a program of the module"
        raise TreadleError(f"'{rest or found}' is no schedule", where, accepted)
    for use in found.alternatives.data if isinstance(found, DispatchAttr) else (found,):
        if isinstance(use, UseAttr):
            check_use(fused, use, target, where)
    return found


def _where(fused: FusedOp) -> str:
    return f"group {fused.label.data!r}" + (f", {place}" if (place := location_of(fused)) else "")


def _group(groups: Sequence[FusedOp], number: int) -> FusedOp:
    if not 0 <= number < len(groups):
        raise TreadleError(f"there is no group {number}", "edit", f"0 to {len(groups) - 1}")
    return groups[number]


def _digest(fused: FusedOp, wanted: bool) -> str | None:
    return group_program(fused).digest() if wanted else None


def _template(template: Template, anchor: Anchor, target: Target) -> Json:
    """A template's knobs, with the values of its space and how they are decided."""
    space, decided = template.space(anchor, target), template.decided(anchor, target)
    return {
        "name": template.name,
        "default": str(UseAttr.get(template.name, template.default(anchor, target))),
        "knobs": [
            {
                "name": knob.name,
                "meaning": knob.meaning + knob_note(knob, space, decided),
                "values": [choice_text(value) for value in knob.values],
            }
            for knob in space.knobs
        ],
    }


__all__ = ["SCHEDULE", "Session", "Settings", "Verdict", "Version", "groups_of", "parsed_schedule", "ratio_of"]
