"""The spaces of templates as schedule programs: a sample for each knob that is free, and one instruction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from xdsl.ir import SSAValue

from treadle.dialects.schedule import Choice, ProgramOp, SampleOp, SampleTileOp, TemplateOp, UseAttr
from treadle.errors import TreadleError
from treadle.schedules.template import Anchor, Template
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

Decisions = Mapping[str, Choice]
"""What was taken, by the names of the samples."""


def template_program(template: Template, anchor: Anchor, target: Target, name: str = "schedule") -> ProgramOp:
    """The program whose schedules are those of the template's space: knobs that the anchor or other knobs decide are
    left out."""
    decided, dependent = template.decided(anchor, target), template.dependent(anchor, target)
    free = [knob for knob in template.knobs if knob.name not in decided and knob.name not in dependent]
    samples = [SampleOp(knob.name, knob.values) for knob in free]
    knobs: list[tuple[str, Choice | SSAValue]] = []
    for knob, sample in zip(free, samples, strict=True):
        sample.param.name_hint = knob.name
        knobs.append((knob.name, sample.param))
    return ProgramOp(name, target.kind, [*samples, TemplateOp(template.name, knobs)])


def replay(program: ProgramOp, decisions: Decisions, anchor: Anchor, target: Target) -> UseAttr:
    """The schedule that a program gives for some decisions.

    TreadleError for a sample without a decision or with one out of its support, and for what the template rejects of
    the anchor: limits are named with the margin.
    """
    where = f"schedule program @{program.sym_name.data}"
    instruction = program.template
    if instruction is None:
        raise TreadleError("it has no schedule.template", where, "a program of one template")
    values: dict[SSAValue, Choice] = {}
    for sample in program.samples:
        values |= _decided(sample, decisions, where)
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


def decisions_of(program: ProgramOp) -> dict[str, Choice]:
    """What the program's samples have taken; those that are open are left out."""
    return {sample.label.data: sample.decision for sample in program.samples if sample.decision is not None}


def enumerate_program(program: ProgramOp, anchor: Anchor, target: Target) -> Iterator[dict[str, Choice]]:
    """Every list of decisions that replays, the last sample changing fastest."""
    samples = program.samples
    supports = [list(sample.support()) if isinstance(sample, SampleTileOp) else sample.support for sample in samples]
    for values in product(*supports):
        decisions = {sample.label.data: value for sample, value in zip(samples, values, strict=True)}
        try:
            replay(program, decisions, anchor, target)
        except TreadleError:
            continue
        yield decisions


def _decided(sample: SampleOp | SampleTileOp, decisions: Decisions, where: str) -> dict[SSAValue, Choice]:
    """The parameters of a sample with their values."""
    label = sample.label.data
    if label not in decisions:
        raise TreadleError(f"sample {label!r} is open", where, "a decision for each sample")
    taken = decisions[label]
    if isinstance(sample, SampleOp):
        if not any(taken == value and isinstance(taken, bool) == isinstance(value, bool) for value in sample.support):
            raise TreadleError(f"sample {label!r} takes {taken}", where, [str(value) for value in sample.support])
        return {sample.param: taken}
    if not isinstance(taken, tuple) or taken not in sample.support():
        raise TreadleError(f"sample {label!r} takes {taken}", where, "factors whose product is within its bounds")
    return dict(zip(sample.params, taken, strict=True))


__all__ = ["Decisions", "decisions_of", "enumerate_program", "replay", "template_program"]
