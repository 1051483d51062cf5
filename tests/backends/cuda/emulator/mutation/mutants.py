"""Mutants of a printed kernel: a barrier, a wait for asynchronous copies, or one predicate is taken away or moved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from tests.backends.cuda.emulator.mutation.guards import Guard, guards, mutable
from tests.backends.cuda.emulator.mutation.statements import BARRIER, COMMIT, WAIT, KernelText, Statement

MutantKind = Literal["barrier removed", "barrier moved", "wait moved", "predicate dropped"]
KINDS: tuple[MutantKind, ...] = ("barrier removed", "barrier moved", "wait moved", "predicate dropped")


@dataclass(frozen=True)
class Mutant:
    """A kernel's text with one change; `line` counts from 1, `what` says what was changed there, if the
    kind does not.

    `guard` and `dropped` are the condition and the number of its conjunct, where a predicate was dropped. `orders` are
    lines (from 0) of the unchanged text: the statement that was removed or moved and the one that it was moved
    across, where either begins to run. If one of them never runs, the change is none.
    """

    kind: MutantKind
    line: int
    what: str
    text: str
    orders: tuple[int, ...] = ()
    guard: Guard | None = None
    dropped: int = 0


def mutants(text: str) -> list[Mutant]:
    """Every mutant of a kernel, in the order of the kinds and lines."""
    kernel = KernelText(text)
    found = [*_barriers(kernel), *_waits(kernel), *_predicates(kernel)]
    return sorted(found, key=lambda mutant: (KINDS.index(mutant.kind), mutant.line))


def pattern(text: str) -> tuple[tuple[MutantKind, str], ...]:
    """What is changed by a kernel's mutants, numbers aside: kernels of one pattern are mutated alike."""
    return tuple((mutant.kind, re.sub(r"\d+", "#", mutant.what)) for mutant in mutants(text))


def _barriers(kernel: KernelText) -> Iterator[Mutant]:
    """Each barrier removed, and moved across the nearest statement before and behind it that touches shared memory."""
    for statements, index in _matching(kernel, BARRIER):
        barrier = statements[index]
        lines = list(kernel.lines)
        del lines[barrier.first]
        yield Mutant("barrier removed", barrier.first + 1, "", _joined(lines), (barrier.first,))
        yield from _moves(kernel, "barrier moved", statements, index, kernel.touches_shared)


def _waits(kernel: KernelText) -> Iterator[Mutant]:
    """Each wait for one group fewer, moved behind what follows it, and moved before the commit that precedes it."""

    def behind(statement: Statement) -> bool:
        return kernel.touches_shared(statement) or _is(kernel, statement, BARRIER)

    for statements, index in _matching(kernel, WAIT):
        number = statements[index].first
        lines = list(kernel.lines)
        lines[number] = WAIT.sub(lambda match: match[0].replace(match[1], str(int(match[1]) + 1)), lines[number])
        yield Mutant("wait moved", number + 1, "waits for one group fewer", _joined(lines), (number,))
        yield from _moves(kernel, "wait moved", statements, index, behind, before=False)
        yield from _moves(kernel, "wait moved", statements, index, lambda s: _is(kernel, s, COMMIT), behind=False)


def _predicates(kernel: KernelText) -> Iterator[Mutant]:
    """Each conjunct of each guard of a load or store, dropped."""
    for guard in guards(kernel):
        for index in mutable(kernel, guard):
            text = replaced(kernel, guard, guard.rest(index))
            what = f"`{guard.conjuncts[index]}` dropped"
            yield Mutant("predicate dropped", guard.line + 1, what, text, (), guard, index)


def replaced(kernel: KernelText, guard: Guard, condition: str, value: str | None = None) -> str:
    """The text with another condition for a guard, and another value for what it guards."""
    lines = list(kernel.lines)
    edits = [(guard.start, guard.end, condition)]
    if value is not None:
        edits.append((guard.value_end - len(guard.value), guard.value_end, value))
    for start, end, new in sorted(edits, reverse=True):
        lines[guard.line] = lines[guard.line][:start] + new + lines[guard.line][end:]
    return _joined(lines)


def _matching(kernel: KernelText, pattern: re.Pattern[str]) -> Iterator[tuple[tuple[Statement, ...], int]]:
    for statements in kernel.lists():
        for index, statement in enumerate(statements):
            if _is(kernel, statement, pattern):
                yield statements, index


def _is(kernel: KernelText, statement: Statement, pattern: re.Pattern[str]) -> bool:
    return statement.first == statement.last and pattern.fullmatch(kernel.lines[statement.first].strip()) is not None


def _moves(
    kernel: KernelText,
    kind: MutantKind,
    statements: tuple[Statement, ...],
    index: int,
    crosses: Callable[[Statement], bool],
    *,
    before: bool = True,
    behind: bool = True,
) -> Iterator[Mutant]:
    """The statement moved across the nearest one for which `crosses` holds, either way."""
    moved, lines = statements[index].first, kernel.lines
    own = lines[moved]
    others = lines[:moved] + lines[moved + 1 :]
    earlier = _nearest(lines, own, statements[:index][::-1], crosses) if before else None
    if earlier is not None:
        text = _joined([*others[: earlier.first], own, *others[earlier.first :]])
        orders = (moved, kernel.inside(earlier))
        yield Mutant(kind, moved + 1, f"moved before line {earlier.first + 1}", text, orders)
    later = _nearest(lines, own, statements[index + 1 :], crosses) if behind else None
    if later is not None:
        text = _joined([*others[: later.last], own, *others[later.last :]])
        orders = (moved, kernel.inside(later))
        yield Mutant(kind, moved + 1, f"moved behind line {later.last + 1}", text, orders)


def _nearest(
    lines: list[str], own: str, statements: tuple[Statement, ...], crosses: Callable[[Statement], bool]
) -> Statement | None:
    """The first statement that is crossed; None if the moved one would come to stand beside another of its sort.

    A barrier beside a barrier is as good as removed, which is a mutant of its own.
    """
    crossed: Statement | None = None
    for statement in statements:
        if lines[statement.first].strip() == own.strip():
            return None
        if crossed is not None and crosses(statement):
            return crossed
        if crosses(statement):
            crossed = statement
    return crossed


def _joined(lines: list[str]) -> str:
    return "\n".join([*lines, ""])
