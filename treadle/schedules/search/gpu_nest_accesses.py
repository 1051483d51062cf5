"""The straight code of a nest's kernel for a GPU: what it accesses, and what `loop-vectorize-accesses` makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from treadle.schedules.search.gpu_places import Check, Place, Values
from treadle.schedules.search.nest_accesses import Branch, Code, Inside, Key, Loop

_MOST_BYTES, _MOST_TRIPS = 16, 16
"""Of an access, and iterations of a loop whose accesses are combined: the defaults of `loop-vectorize-accesses`."""


@dataclass(frozen=True, eq=False)
class GpuAccess:
    """An access to global or shared memory.

    place: in bytes from the beginning of the buffer; element: bytes of one; checks: its predicates that may not hold
    threads: what the block's threads begin with; is_data: where it is depends on data
    lanes: elements of one access; along: the loop of which each iteration of `starts` begins one, where they are
        combined
    """

    place: Place
    element: int
    is_store: bool
    is_shared: bool
    threads: Values
    checks: tuple[Check, ...] = ()
    is_data: bool = False
    is_async: bool = False
    lanes: int = 1
    along: Loop | None = None
    starts: Sequence[int] = (0,)

    @property
    def is_loaded(self) -> bool:
        """Whether it is a load from global memory, that a thread may wait for."""
        return not (self.is_store or self.is_shared)

    def widths(self, loop: Loop) -> list[int]:
        """Every number of a loop's iterations that one access may serve, largest first."""
        if self.is_data or not self.place.moves_by(loop, self.element):
            return []
        counts = [2**n for n in range(4, 0, -1) if 2**n * self.element <= _MOST_BYTES and loop.trips % 2**n == 0]
        return [n for n in counts if self.place.is_run(loop, n, self.element) and self._agrees(loop, n)]

    def _agrees(self, loop: Loop, lanes: int) -> bool:
        return all(check.agrees(loop, lanes) for check in self.checks)

    def combined(self, loop: Loop, lanes: int) -> GpuAccess:
        """One access for every `lanes` iterations of a loop."""
        return replace(self, lanes=lanes, along=loop, starts=range(0, loop.trips, lanes))

    def likely(self, first: int, blocks: tuple[Key, ...]) -> float:
        """How likely the access that begins with iteration `first` is made: combined ones are in a branch."""
        found = 1.0
        if self.along is not None:
            for check in self.checks:
                found *= check.probability(self.along, first, blocks)
        return found


@dataclass(eq=False)
class Straight(Code):
    """Straight code of one thread.

    touches: its accesses, loads first; uses: whether it uses what was loaded from global memory
    copies: whether it is a load and a store of what is loaded, and nothing else: to memory, or where one of the two is
        in registers
    registers: of arrays that are live in it beside those of the whole kernel
    is_barrier: of the block; pending: groups of asynchronous copies that are not waited for
    """

    touches: Sequence[GpuAccess] = ()
    uses: bool = False
    copies: Literal["", "memory", "registers"] = ""
    registers: int = 0
    is_barrier: bool = False
    pending: int | None = None
    after: bool = field(default=False)
    """Whether nothing of what was fetched ahead is live any more."""


def vectorised(inside: Sequence[Inside]) -> list[Inside]:
    """The same with accesses combined."""
    found: list[Inside] = []
    for each in inside:
        if isinstance(each, Branch):
            each.inside = vectorised(each.inside)
            found.append(each)
        elif isinstance(each, Loop):
            found += _of_loop(each)
        else:
            found.append(each)
    return found


def straight(inside: Sequence[Inside]) -> list[Straight]:
    """All straight code, that of loops and branches, too."""
    found: list[Straight] = []
    for each in inside:
        if isinstance(each, Straight):
            found.append(each)
        elif isinstance(each, Loop | Branch):
            found += straight(each.inside)
    return found


def _of_loop(loop: Loop) -> list[Inside]:
    """A loop, with the combined accesses of its own code around it; that code alone where it copies, and nothing is
    left of the loop."""
    alone = loop.inside[0] if len(loop.inside) == 1 else None
    own = [each for each in loop.inside if isinstance(each, Straight)]
    if alone is None or not own:
        loop.inside = vectorised(loop.inside)
    if not 1 < loop.trips <= _MOST_TRIPS or not any(each.touches for each in own):
        return [loop]
    every = straight(loop.inside)
    if any(each.is_barrier or each.pending is not None for each in every):
        return [loop]
    if isinstance(alone, Straight) and alone.copies:
        widths = [set(each.widths(loop)) for each in alone.touches]
        common = widths[0].intersection(*widths[1:])
        if common:
            alone.touches = [each.combined(loop, max(common)) for each in alone.touches]
            return [alone]
    before, behind = Straight(), Straight()
    for code in own:
        wide = [(each, counts[0]) for each in code.touches if (counts := each.widths(loop))]
        code.touches = [each for each in code.touches if each not in [one for one, _ in wide]]
        combined = [each.combined(loop, lanes) for each, lanes in wide]
        before.touches = [*before.touches, *(each for each in combined if not each.is_store)]
        behind.touches = [*behind.touches, *(each for each in combined if each.is_store)]
        behind.uses = behind.uses or code.uses
        before.after, behind.after = code.after, code.after
    found = [*before.touches, *behind.touches]
    if not found:
        return [loop]
    for code in every:
        code.registers += sum(-(-each.element * loop.trips // 4) for each in found)
    loop.indexes = True
    return [before, loop, behind]


__all__ = ["GpuAccess", "Straight", "straight", "vectorised"]
