"""`treadle schedules`: the templates for a model's groups, and what may be chosen for each of their knobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from treadle.api import resolve_target
from treadle.dialects.schedule import choice_text
from treadle.passes.schedule.instance import anchor_of
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.default_template import is_allowed
from treadle.schedules.search.candidate import Candidate
from treadle.schedules.search.rejections import Ledger, rejection, rejection_lines
from treadle.schedules.template import Anchor, Choices, Knob, Space, Template, values_text
from treadle.schedules.templates import TEMPLATES
from treadle.shapes.dim import normalized
from treadle.target import Target
from treadle.target.options import CompileOptions, parse_precision
from treadle.tools.arguments import parse_shapes, read_constants
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask


def schedules_command(args: argparse.Namespace) -> int:
    """Prints the groups whose names contain one of the words, equal groups once; all without any word."""
    target = resolve_target(args.target or "cpu")
    options = CompileOptions(parse_precision(args.precision or "f32"))
    shapes, constants = normalized(parse_shapes(args.shape)), read_constants(args.input)
    tasks = tasks_of_model(Path(args.model), target, shapes, options, args.words, constants=constants)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for task in tasks:
        for line in _lines(task, target, limits=args.limits):
            console.print(line)
    return 0


def _lines(task: GroupTask, target: Target, *, limits: bool) -> Iterator[str]:
    anchor = anchor_of(task.program.fused)
    yield f"{task}, {task.count} {'group' if task.count == 1 else 'groups'}"
    yield f"  default {default_schedule(task.program.fused, target)}"
    for template in templates_of(anchor, target):
        yield from _of_template(template, anchor, target, limits=limits)
    yield ""


def templates_of(anchor: Anchor, target: Target) -> list[Template]:
    """The templates that schedule an anchor, in the order in which they are tried for a default."""
    return [each for each in TEMPLATES.values() if is_allowed(each, anchor, target) and each.fits(anchor)]


def knob_note(knob: Knob, space: Space, decided: Choices) -> str:
    """Who decides a knob, in brackets; empty where a search does."""
    if knob.unless_given is not None:
        return f" ({choice_text(knob.unless_given)} unless given)"
    if knob.name in space.dependent:
        return " (the other knobs decide)"
    return " (the anchor decides)" if knob.name in decided else ""


def _of_template(template: Template, anchor: Anchor, target: Target, *, limits: bool) -> Iterator[str]:
    """A template's knobs with the values that its space has, and how many different kernels that makes."""
    space, decided = template.space(anchor, target), template.decided(anchor, target)
    kernels = sum(1 for _ in template.candidates(anchor, target))
    yield f"  {template.name}: {kernels} different kernels of {space.combinations} combinations"
    width = max(len(knob.name) for knob in space.knobs) if space.knobs else 0
    for knob in space.knobs:
        how = knob_note(knob, space, decided)
        yield f"    {knob.name:{width}}  {values_text(knob.values)}{how}: {knob.meaning}"
    if not limits:
        return
    ledger = Ledger()
    for choices, error in space.excluded():
        ledger.reject(rejection(Candidate(template.name, choices), error))
    ledger.accept(template.name, space.combinations - ledger.rejected)
    yield from rejection_lines(ledger, template.name)


__all__ = ["knob_note", "schedules_command", "templates_of"]
