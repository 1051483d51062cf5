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

# Which factors are worth trying along an axis.

_FEW, _MOST_SIZES = 3, 12
"""Divisors that are enough for a choice; sizes of one list: three lists of 12 have 1728 products, enumerated in about a
millisecond. Assumed, not measured."""


def sizes_of(extent: int, most: int) -> list[int]:
    """Factors from 1 to `most` for an axis: its divisors; 1, 2, 3, 4, 6, 8, 12, ... too, if there are few of them.

    Odd ones are among them: tiles need not be powers of two, nor need they divide the extent. Where both can be had,
    tiles that do not overhang are cheaper. The smallest ones are dropped where there are too many, except for 1, 2, 4.
    """
    most = max(1, min(most, extent))
    divisors = {d for d in range(1, most + 1) if extent % d == 0}
    doubling = {base << n for base in (1, 3) for n in range(most.bit_length()) if base << n <= most}
    found = sorted(divisors if len(divisors) >= min(_FEW, most) else doubling | divisors)
    kept = [size for size in found if size in (1, 2, 4)]
    rest = [size for size in found if size not in kept]
    return sorted([*kept, *rest[-(_MOST_SIZES - len(kept)) :]])


def vector_sizes(extent: int, target: Target) -> list[int]:
    """Lengths of the innermost level on a CPU: up to four vectors, or a half or a quarter of one on a short axis.

    They are whole vectors, whose last lanes may be masked: of one convolution, 28 elements in vectors of 16 and 12 took
    7.4 ms, in two of 16 1.8 ms (two cores beside other jobs).
    """
    lanes = target.lanes
    parts = [lanes // 4, lanes // 2] if extent < lanes else []
    vectors = [count * lanes for count in (1, 2, 3, 4) if (count - 1) * lanes < extent]
    found = {size for size in parts if 0 < size < 2 * extent} | {size for size in vectors if size < 4 * extent}
    return sorted(found) or [extent]


def thread_sizes(extent: int, target: Target) -> list[int]:
    """Threads along the innermost axis: powers of two up to what covers the extent, but at least to a warp."""
    most = max(target.warp_size, 1 << max(extent - 1, 0).bit_length())
    return [1 << n for n in range(most.bit_length()) if 1 << n <= min(most, 256)]


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
    """One execution of some rules: the drafts that are finished.

    errors: receives those of rules whose drafts came to nothing
    """
    found = [Draft(anchor, target, _workload(anchor), seed)]
    for rule in rules:
        found = [after for draft in found for after in _applied(rule, draft, [] if errors is None else errors)]
    return [draft for draft in found if draft.is_finished]


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
