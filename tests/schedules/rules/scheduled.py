"""Operators whose groups are scheduled by programs of rules, with values drawn by a seed."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr

from benchmarks.paper_operators import OPERATORS
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.rules import Draft, Rule
from treadle.schedules.rules.programs import drafts
from treadle.schedules.search.programs import replay
from treadle.schedules.template import Anchor
from treadle.target import Target

CPU = Target.parse("cpu")
GPU = Target.parse("sm_80")
MOST_STATEMENTS = 40
"""Terms of a nest that are unrolled, at most: they take the C compiler's time."""


def groups_of(module: ModuleOp, target: Target) -> list[FusedOp]:
    """The groups of a module, which is lowered up to stage `schedule`."""
    lower(treadle_context(), module, target, to="schedule")
    return [op for op in module.walk() if isinstance(op, FusedOp)]


def anchor(name: str, target: Target = CPU, *, small: bool = True) -> Anchor:
    """The anchor of the last group of one of the twelve operators: its product, if it has one."""
    return anchor_of(groups_of(OPERATORS[name].module(small=small), target)[-1])


def take(module: ModuleOp, fused: FusedOp, draft: Draft, name: str) -> None:
    """Lets a draft, with the values that its samples have taken, schedule a group."""
    module.body.block.add_op(draft.program(name, with_decisions=True))
    fused.schedule = SymbolRefAttr(name)


def scheduled(module: ModuleOp, target: Target, rules: Sequence[Rule], number: int) -> ModuleOp:
    """The module after stage `schedule`, each group by the draft of that number, counted around."""
    for n, fused in enumerate(groups_of(module, target)):
        take(module, fused, drawn(anchor_of(fused), target, rules, number), f"p{n}")
    module.verify()
    return module


def drawn(of: Anchor, target: Target, rules: Sequence[Rule], number: int) -> Draft:
    """One draft for an anchor, with values that are legal: of some runs the first that is soon compiled, or that is
    compiled soonest."""
    best: tuple[int, Draft] | None = None
    for seed in range(12):
        legal = [draft for draft in drafts(of, target, rules, f"{number} {seed}") if _is_legal(draft)]
        chosen = [legal[number % len(legal)]] if legal else []
        for draft in chosen:
            if best is None or _statements(draft) < best[0]:
                best = _statements(draft), draft
        if best is not None and best[0] <= MOST_STATEMENTS:
            break
    assert best is not None, "no draft is legal"
    return best[1]


def _statements(draft: Draft) -> int:
    """Terms that are unrolled."""
    if draft.nest is None:
        return 0
    return draft.nest.accumulators * prod(level.trips for level in draft.nest.levels if level.unroll)


def _is_legal(draft: Draft) -> bool:
    """Of a template this is found out by replaying."""
    try:
        replay(draft.program("p"), draft.decisions, draft.anchor, draft.target)
    except TreadleError:
        return False
    return True
