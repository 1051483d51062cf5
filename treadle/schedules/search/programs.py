"""Schedule programs and decisions: what they give, with which decisions they do, and templates' spaces as programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, i64
from xdsl.ir import SSAValue

from treadle.dialects.schedule import Choice, ProgramOp, SampleOp, SampleTileOp, TemplateOp, UseAttr
from treadle.dialects.schedule.attributes import choice_attribute
from treadle.errors import TreadleError
from treadle.schedules.default_template import is_allowed
from treadle.schedules.nest.nest import Nest
from treadle.schedules.nest.replay import nest_of
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.schedules.template import Anchor, Template, has_elements
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

Decisions: TypeAlias = Mapping[str, Choice]
"""What was taken, by the names of the samples."""
Replayed: TypeAlias = Nest | UseAttr
"""What a kernel is written from: a nest of levels, or a template with its choices."""


def template_program(template: Template, anchor: Anchor, target: Target) -> ProgramOp:
    """The program, called as the template, whose schedules are the template's candidates: knobs that the anchor or
    other knobs decide, and those that may be left out, are left out, and values that no candidate has."""
    decided, dependent = template.decided(anchor, target), template.dependent(anchor, target)
    searched = (knob for knob in template.knobs if knob.unless_given is None)
    free = [knob for knob in searched if knob.name not in decided and knob.name not in dependent]
    values = template.values(anchor, target)
    samples = [SampleOp(knob.name, values.get(knob.name, knob.values)) for knob in free]
    knobs: list[tuple[str, Choice | SSAValue]] = []
    for knob, sample in zip(free, samples, strict=True):
        sample.param.name_hint = knob.name
        knobs.append((knob.name, sample.param))
    return ProgramOp(template.name, target.kind, [*samples, TemplateOp(template.name, knobs)])


def replay(
    program: ProgramOp, decisions: Decisions, anchor: Anchor, target: Target, workload: Workload | None = None
) -> Replayed:
    """What a program gives for some decisions; `workload` is the anchor's, where the caller knows it.

    TreadleError for a sample without a decision, for one out of its support, and for what the
    template or the nest rejects of the anchor: a limit that is exceeded is named with the margin. The samples of
    `template_program` have the values that a search tries; others that the template takes are legal, too.
    """
    where = f"schedule program @{program.sym_name.data}"
    if program.template is not None:
        return _use(program, program.template, decisions, anchor, target)
    if not has_elements(anchor):
        raise TreadleError("it schedules no empty tensor", where, "extents from 1 upwards")
    return nest_of(program, decisions, workload_of(anchor) if workload is None else workload, target)


def _use(program: ProgramOp, instruction: TemplateOp, decisions: Decisions, anchor: Anchor, target: Target) -> UseAttr:
    """A template with the choices that are decided, and those that follow."""
    where, values = f"schedule program @{program.sym_name.data}", dict[SSAValue, Choice]()
    for sample in program.samples:
        values |= _decided(sample, decisions, where, every=_is_of_template(program))
    template = TEMPLATES.get(instruction.template.data)
    if template is None:
        raise TreadleError(f"unknown template {instruction.template.data!r}", where, sorted(TEMPLATES))
    given = instruction.choices(values)
    choices: dict[str, Choice] = {**template.decided(anchor, target), **given}
    choices |= {
        name: follows(choices) for name, follows in template.dependent(anchor, target).items() if name not in given
    }
    ordered = {knob.name: choices[knob.name] for knob in template.knobs if knob.name in choices}
    template.check(anchor, {**ordered, **choices}, target, where)
    return UseAttr.get(template.name, ordered)


def _is_of_template(program: ProgramOp) -> bool:
    """Whether it is a template's own program, by its name."""
    return program.template is not None and program.template.template.data == program.sym_name.data


def decisions_of(program: ProgramOp) -> dict[str, Choice]:
    """What the program's samples have taken; those that are open are left out."""
    return {sample.label.data: sample.decision for sample in program.samples if sample.decision is not None}


def taken(program: ProgramOp, decisions: Decisions) -> ProgramOp:
    """A copy of a program whose samples have taken the decisions; those without one stay open. A sample of
    `template_program` gets a value that a search would not try."""
    copy = program.clone()
    for sample in copy.samples:
        decision = decisions.get(sample.label.data)
        if decision is None:
            continue
        if isinstance(sample, SampleOp):
            sample.taken = choice_attribute(decision)
            if _is_of_template(program) and sample.taken not in sample.values.data:
                sample.values = ArrayAttr([*sample.values.data, sample.taken])
        elif isinstance(decision, tuple):
            sample.taken = DenseArrayBase.from_list(i64, list(decision))
    return copy


def _decided(
    sample: SampleOp | SampleTileOp, decisions: Decisions, where: str, *, every: bool = False
) -> dict[SSAValue, Choice]:
    """The parameters of a sample with their values; those out of its support only if `every` value is taken."""
    label = sample.label.data
    if label not in decisions:
        raise TreadleError(f"sample {label!r} is open", where, "a decision for each sample")
    taken = decisions[label]
    if isinstance(sample, SampleOp):
        if not every and choice_attribute(taken) not in sample.values.data:
            raise TreadleError(f"sample {label!r} takes {taken}", where, [str(value) for value in sample.support])
        return {sample.param: taken}
    if not isinstance(taken, tuple) or taken not in sample.support():
        raise TreadleError(f"sample {label!r} takes {taken}", where, "factors whose product is within its bounds")
    return dict(zip(sample.params, taken, strict=True))


def template_programs(anchor: Anchor, target: Target) -> list[ProgramOp]:
    """A program for each template that fits the anchor and is as exact as the anchor asks for."""
    return [
        template_program(template, anchor, target)
        for template in TEMPLATES.values()
        if is_allowed(template, anchor, target) and has_elements(anchor) and template.fits(anchor)
    ]


__all__ = [
    "Decisions", "Replayed", "decisions_of", "replay", "taken", "template_program",
    "template_programs",
]  # fmt: skip
