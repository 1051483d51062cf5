"""Tuning tasks of a model: its distinct groups, and the schedules that the templates have for each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp

from treadle.backends.buffers import TensorSpec
from treadle.dialects.graph import FusedOp
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError
from treadle.passes.schedule.anchor import anchor_of
from treadle.passes.schedule.group_program import GroupProgram, group_program
from treadle.passes.schedule.schedule_select import default_schedule
from treadle.schedules.default_template import is_allowed
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target
from treadle.tuning.candidates import Candidate


@dataclass(frozen=True)
class Task:
    """A group to be tuned, and the number of groups of the model that are equal to it.

    text:   the program as text, for other processes
    count:  equal groups, this one included
    constants: the numbers of the inputs that are weights
    """

    digest: str
    label: str
    text: str
    count: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    constants: tuple[int, ...]
    program: GroupProgram

    def __str__(self) -> str:
        shapes = " x ".join("x".join(map(str, spec.shape)) for spec in self.outputs)
        return f"{self.label} {shapes}"


def tasks_of(module: ModuleOp) -> list[Task]:
    """The tasks of a module after stage `fuse`, in the order of their first groups."""
    counts: Counter[str] = Counter()
    programs: dict[str, GroupProgram] = {}
    for fused in [op for op in module.walk() if isinstance(op, FusedOp)]:
        program = group_program(fused)
        digest = program.digest()
        counts[digest] += 1
        programs.setdefault(digest, program)
    return [_task(digest, program, counts[digest]) for digest, program in programs.items()]


def default_candidate(task: Task, target: Target) -> Candidate:
    """The schedule without a search. Raises what `default_schedule` raises."""
    use = default_schedule(task.program.fused, target)
    return Candidate(use.template.data, use.knobs())


def candidates_of(task: Task, target: Target) -> list[Candidate]:
    """Every combination of parameters of every template that fits and has the anchor's precision, without duplicates.

    Combinations that give the same kernel are duplicates. The order is that of the templates and their knobs.
    """
    anchor = anchor_of(task.program.fused)
    found: list[Candidate] = []
    for template in TEMPLATES.values():
        if not is_allowed(template, anchor, target) or not template.fits(anchor):
            continue
        found += [Candidate(template.name, choices) for choices in template.candidates(anchor, target)]
    return found


def canonical(task: Task, candidate: Candidate, target: Target) -> Candidate:
    """The candidate of `candidates_of` that gives the same kernel."""
    template = TEMPLATES[candidate.template]
    return Candidate(template.name, template.canonical(anchor_of(task.program.fused), candidate.choices, target))


def _task(digest: str, program: GroupProgram, count: int) -> Task:
    main = program.module.body.block.first_op
    if not isinstance(main, FuncOp):
        raise TreadleError("the program has no @main", "tune")
    inputs, outputs = (tuple(each.data) for each in (main.function_type.inputs, main.function_type.outputs))
    specs = [
        tuple(
            TensorSpec(f"{kind}{n}", type.get_shape(), numpy_dtype(type.get_element_type()))
            for n, type in enumerate(types)
            if isinstance(type, TensorType)
        )
        for kind, types in (("input", inputs), ("output", outputs))
    ]
    return Task(digest, program.label, program.text(), count, specs[0], specs[1], program.constants, program)


__all__ = ["Task", "candidates_of", "canonical", "default_candidate", "tasks_of"]
