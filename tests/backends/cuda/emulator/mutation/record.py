"""The mutants' verdicts on a model as a recorded summary, and all summaries as the documentation's tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.backends.cuda.emulator.mutation.equivalence import REASONS
from tests.backends.cuda.emulator.mutation.mutants import KINDS
from tests.backends.cuda.emulator.mutation.verdict import Examined, Outcome, verdicts_of

OUTCOMES: tuple[Outcome, ...] = ("finding", "result", "equivalent", "missed")

_TITLES = "| kernels | change | mutants | finding | result | equivalent | missed |"
_RULE = "|---|---|--:|--:|--:|--:|--:|"


@dataclass(frozen=True)
class Summary:
    """How many kernels of a model were mutated, by family; how many mutants, by family, kind and outcome; equivalent
    ones by reason; and every mutant without a finding: kernel, line, change, outcome, reason."""

    kernels: Mapping[str, int]
    mutants: Mapping[str, Mapping[str, Mapping[str, int]]]
    reasons: Mapping[str, int]
    silent: Sequence[str]

    def text(self) -> str:
        """The summary as JSON."""
        return json.dumps(vars(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def parse(text: str) -> Summary:
        """What `text` gave."""
        return Summary(**json.loads(text))


def summary(examined: Sequence[Examined]) -> Summary:
    """Counts what became of the mutants."""
    mutants: dict[str, dict[str, Counter[str]]] = {}
    verdicts = verdicts_of(examined)
    for verdict in verdicts:
        kinds = mutants.setdefault(verdict.kernel.family, {})
        kinds.setdefault(verdict.mutant.kind, Counter())[verdict.outcome] += 1
    reasons = Counter(verdict.detail for verdict in verdicts if verdict.outcome == "equivalent")
    silent = sorted(str(verdict) for verdict in verdicts if verdict.outcome != "finding")
    return Summary(Counter(each.kernel.family for each in examined), mutants, reasons, silent)


def tables(summaries: Mapping[str, Summary]) -> str:
    """The models by name; mutants by family of kernels, change and outcome; then the equivalent ones by reason."""
    kernels, reasons = Counter[str](), Counter[str]()
    mutants: dict[tuple[str, str], Counter[str]] = {}
    for each in summaries.values():
        kernels.update(each.kernels)
        reasons.update(each.reasons)
        for family, kinds in each.mutants.items():
            for kind, counts in kinds.items():
                mutants.setdefault((family, kind), Counter()).update(counts)
    order = sorted(mutants, key=lambda key: (key[0], [*map(str, KINDS)].index(key[1])))
    rows = [_row(f"{kernels[family]} × {family}", kind, mutants[family, kind]) for family, kind in order]
    whole = _row(f"{kernels.total()}", "", sum(mutants.values(), Counter[str]()))
    because = [f"| {reason} | {reasons[reason]} |" for reason in REASONS if reasons[reason]]
    names = f"Recorded from {', '.join(summaries)}:"
    return "\n".join(
        [names, "", _TITLES, _RULE, *rows, whole, "", "| equivalent, since | mutants |", "|---|--:|", *because, ""]
    )


def _row(title: str, kind: str, counts: Counter[str]) -> str:
    numbers = " | ".join(str(counts[outcome]) for outcome in OUTCOMES)
    return f"| {title} | {kind} | {counts.total()} | {numbers} |"
