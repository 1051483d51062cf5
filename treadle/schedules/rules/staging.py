"""Rules that send reads through faster memory, and say where it is filled.

Source: MetaSchedule (NeurIPS 2022), figure 3's Sample-Compute-Location, for what a kernel reads. What it writes needs
no rule: an epilogue is computed where the result is stored, and a producer where it is staged.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from treadle.dialects.schedule.sampling import Size
from treadle.dialects.schedule.staging import Memory
from treadle.errors import TreadleError
from treadle.schedules.rules.draft import Draft
from treadle.schedules.rules.programs import Rule
from treadle.schedules.template import LimitError

_BUFFERS, _AHEAD = (1, 2), (2, 3, 4)
"""Buffers that are filled through registers, and by asynchronous copies."""


def staged(memory: Memory, *, places: int = 1, alone: bool = False, ahead: bool = False) -> Rule:
    """The draft as it is, and with the reads of its terms staged at each of the `places` outermost reduction loops,
    where tiles are read several times.

    alone: also with the last reads only: of a product its right operand, whose elements vectors run along. What has no
    box at a level, given the values taken, is not staged there. ahead: also by asynchronous copies.

    ```mlir
    schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2)
    ```
    becomes that, and by `staged("shared")`
    ```mlir
    schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2)
    %vector = schedule.sample "vector" from [1, 2, 4]
    %buffers = schedule.sample "buffers" from [1, 2]
    schedule.stage 0 at %k0 in "shared" vector %vector buffers %buffers
    schedule.stage 1 at %k0 in "shared" vector %vector buffers %buffers
    ```
    """

    def rule(draft: Draft) -> Sequence[Draft]:
        loops, terms = _reused(draft)
        if not loops:
            return ()
        chosen = [terms[n:] for n in (range(len(terms) - 1, -1, -1) if alone else range(bool(terms)))]
        ways = (False, True) if ahead and draft.target.copies_asynchronously else (False,)
        places_and_reads = [(level, reads) for level in loops[:places] for reads in chosen]
        tried = [_staged(draft, reads, level, memory, way) for level, reads in places_and_reads for way in ways]
        found = {str(each): each for each in tried if each is not None}
        return [draft, *found.values()]

    return rule


def located(memory: Memory) -> Rule:
    """The draft with the reads of its terms staged at a place that is sampled, the same for all: one of the reduction
    loops, or none. It applies where tiles are read several times.

    ```mlir
    schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2)
    ```
    becomes, by `located("shared")`,
    ```mlir
    schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2)
    %place = schedule.sample "place" from [0, 1, 2]
    %vector = schedule.sample "vector" from [1, 2, 4]
    schedule.stage 0 at %place of (%k0, %k1) in "shared" vector %vector
    schedule.stage 1 at %place of (%k0, %k1) in "shared" vector %vector
    ```
    Source: MetaSchedule (NeurIPS 2022), Sample-Compute-Location and figure 5's Random-Compute-Location.
    """

    def rule(draft: Draft) -> Sequence[Draft]:
        loops, terms = _reused(draft)
        if not loops:
            return ()
        draft, place = draft.sample("place", list(range(len(loops) + 1)))
        sizes: tuple[Size, ...] = ()
        if memory == "shared":
            draft, vector = draft.sample("vector", _vectors(draft, terms))
            sizes = (vector,)
        for read in terms:
            draft = draft.stage(read, loops, memory, *sizes, place=place)
        return [draft]

    return rule


def _reused(draft: Draft) -> tuple[list[SSAValue], list[int]]:
    """The reduction loops, outermost first, and the reads of terms that can be staged at them; none where no tile is
    read several times."""
    loops = [levels[-1] for role, levels in draft.groups if role == "loop"]
    if draft.workload is None or not draft.workload.has_reuse:
        return [], []
    return loops, [n for n, read in enumerate(draft.workload.reads) if read.is_term and read.obstacle is None]


def _vectors(draft: Draft, reads: Sequence[int]) -> list[int]:
    """Elements of one copy to shared memory: up to 16 bytes of the widest of some reads."""
    assert draft.workload is not None
    most = draft.target.vector_bytes // max(draft.workload.reads[n].bytes for n in reads)
    return [1 << n for n in range(most.bit_length())]


def _staged(draft: Draft, reads: Sequence[int], level: SSAValue, memory: Memory, is_async: bool) -> Draft | None:
    """With some reads staged at a level; None if none of them can be, or the values taken are beyond a limit."""
    sizes: tuple[Size, ...] = ()
    if memory == "shared":
        draft, vector = draft.sample("vector", _vectors(draft, reads))
        draft, buffers = draft.sample("buffers", _AHEAD if is_async else _BUFFERS)
        sizes = (vector, buffers)
    sampled = draft
    for read in reads:
        try:
            draft = draft.stage(read, level, memory, *sizes, is_async=is_async)
        except LimitError:
            return None
        except TreadleError:
            continue
    return None if draft is sampled else draft
