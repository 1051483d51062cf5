"""The mutants' verdicts as tables: for the documentation, and the list of all that the checks are silent about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.backends.cuda.emulator.mutation.equivalence import REASONS
from tests.backends.cuda.emulator.mutation.mutants import KINDS
from tests.backends.cuda.emulator.mutation.verdict import Examined, Outcome, Verdict

OUTCOMES: tuple[Outcome, ...] = ("finding", "result", "equivalent", "missed")

_TITLES = "| kernels | change | mutants | finding | result | equivalent | missed |"
_RULE = "|---|---|--:|--:|--:|--:|--:|"


def tables(examined: Sequence[Examined]) -> str:
    """Mutants by family of kernels, change and outcome; then the equivalent ones by reason."""
    families: dict[str, list[Examined]] = {}
    for each in examined:
        families.setdefault(each.kernel.family, []).append(each)
    lines = [_TITLES, _RULE]
    for family, members in sorted(families.items()):
        title = f"{family}, {len(members)}"
        verdicts = [verdict for member in members for verdict in member.verdicts]
        for kind in KINDS:
            counts = Counter[str](verdict.outcome for verdict in verdicts if verdict.mutant.kind == kind)
            if counts:
                lines.append(_row(title, kind, counts))
    every = verdicts_of(examined)
    lines.append(_row(f"all, {len(examined)}", "", Counter[str](verdict.outcome for verdict in every)))
    reasons = Counter(verdict.detail for verdict in every if verdict.outcome == "equivalent")
    lines += ["", "| equivalent, because | mutants |", "|---|--:|"]
    lines += [f"| {reason} | {reasons[reason]} |" for reason in REASONS if reasons[reason]]
    return "\n".join([*lines, ""])


def silent(examined: Sequence[Examined]) -> str:
    """Every mutant without a finding: model, kernel, line, change, outcome, reason."""
    named = [str(verdict) for verdict in verdicts_of(examined) if verdict.outcome != "finding"]
    return "\n".join([*sorted(named), ""])


def verdicts_of(examined: Sequence[Examined]) -> list[Verdict]:
    """All verdicts, kernel after kernel."""
    return [verdict for each in examined for verdict in each.verdicts]


def _row(title: str, kind: str, counts: Counter[str]) -> str:
    numbers = " | ".join(str(counts[outcome]) for outcome in OUTCOMES)
    return f"| {title} | {kind} | {counts.total()} | {numbers} |"
