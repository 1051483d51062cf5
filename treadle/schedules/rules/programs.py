"""Rules one after the other: from an anchor to the programs that a search looks at.

Source: MetaSchedule (NeurIPS 2022), section 3.2 and figure 5, whose transformation modules these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from treadle.dialects.graph import MatmulOp
from treadle.dialects.schedule import ProgramOp, TemplateOp
from treadle.errors import TreadleError
from treadle.schedules.nest.workload import Workload, workload_of
from treadle.schedules.rules.draft import Draft
from treadle.schedules.template import Anchor, has_elements
from treadle.target import Target

Rule: TypeAlias = Callable[[Draft], Sequence[Draft]]
"""Goes on from a draft: in one way, or in several, which are alternatives. No result: the rule does not apply, and the
draft stays as it is; to offer something beside the draft as it is, a rule returns that, too."""

RUNS, _MOST_RUNS = 2, 8
"""Executions of all rules, each with other values taken, until so many in a row give nothing new, and at most: programs
differ where a rule looks at a value, or took only values beyond a limit. Assumed, not measured, as the next one."""
_ATTEMPTS = 4
"""Executions of one rule on a draft, with other values each, until its error stands."""


def programs(anchor: Anchor, target: Target, rules: Sequence[Rule], seed: int = 0) -> tuple[ProgramOp, ...]:
    """The programs that some rules write for an anchor, in order, each once; programs that differ in the values taken
    are one.

    Raises what a rule raises if there is no program.
    """
    found: dict[str, Draft] = {}
    errors: list[TreadleError] = []
    in_vain = 0
    for run in range(_MOST_RUNS):
        before = len(found)
        for draft in drafts(anchor, target, rules, f"{seed} {run}", errors):
            found.setdefault(str(draft.program("schedule")), draft)
        in_vain = in_vain + 1 if len(found) == before and (found or not errors) else 0
        if in_vain == RUNS:
            break
    if errors and not found:
        raise errors[-1]
    return tuple(draft.program(_name(draft, n)) for n, draft in enumerate(found.values()))


def _name(draft: Draft, number: int) -> str:
    """A template's program is called as the template, as `template_program` calls it."""
    last = draft.instructions[-1]
    return last.template.data if isinstance(last, TemplateOp) else f"nest{number}"


def drafts(
    anchor: Anchor, target: Target, rules: Sequence[Rule], seed: str, errors: list[TreadleError] | None = None
) -> list[Draft]:
    """One execution of some rules: the drafts that are complete.

    errors: receives those of rules whose drafts came to nothing
    """
    found = [Draft(anchor, target, _workload(anchor), seed)]
    for rule in rules:
        found = [after for draft in found for after in _applied(rule, draft, [] if errors is None else errors)]
    return [draft for draft in found if draft.is_complete]


def _applied(rule: Rule, draft: Draft, errors: list[TreadleError]) -> Sequence[Draft]:
    found: list[TreadleError] = []
    for attempt in range(_ATTEMPTS):
        try:
            return rule(draft if attempt == 0 else draft.again(f"{draft.seed} {attempt}")) or [draft]
        except TreadleError as error:
            found = [error]
    errors += found
    return []


def _workload(anchor: Anchor) -> Workload | None:
    """None for a definition of several reductions, or without elements, and for a product of bytes: the works of nests,
    which count operations on floats, would take its multiplications for nothing."""
    if not has_elements(anchor) or (isinstance(anchor, MatmulOp) and anchor.sums is not None):
        return None
    try:
        return workload_of(anchor)
    except TreadleError:
        return None


__all__ = ["RUNS", "Rule", "drafts", "programs"]
