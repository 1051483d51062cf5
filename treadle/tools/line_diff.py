"""Which lines of two texts differ: neither by their indentation nor, of IR, by the numbers of equal values alone."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import NamedTuple

_VALUE = re.compile(r'("(?:[^"\\]|\\.)*")|%(?:\d+|([\w$.-]+?)(?:_\d+)?)(?![\w$.-])')
_SMALL = 250_000
"""Pairs of lines up to which `difflib` compares what has no line of its own: it takes quadratic time, and more."""


@dataclass(frozen=True)
class Lines:
    """A text's lines, and for IR the values that stand in each of them.

    values: for each line the numbers of its values, in order; empty for a text that is no IR
    """

    lines: Sequence[str]
    values: Sequence[Sequence[int]] = ()
    masked: list[str] = field(default_factory=list[str], init=False)

    def __post_init__(self) -> None:
        self.masked.extend(_masked(line) if self.values else line.strip() for line in self.lines)

    def at(self, line: int) -> Sequence[int]:
        """The values of a line."""
        return self.values[line] if line < len(self.values) else ()


class Block(NamedTuple):
    """Lines of a text and what they are in the other one: the same, or something else; from, to."""

    equal: bool
    before: int
    before_end: int
    after: int
    after_end: int

    @property
    def removed(self) -> int:
        """Lines of the first text that the second one lacks."""
        return 0 if self.equal else self.before_end - self.before

    @property
    def added(self) -> int:
        """Lines of the second text that the first one lacks."""
        return 0 if self.equal else self.after_end - self.after


def difference(before: Lines, after: Lines) -> list[Block]:
    """The texts as blocks, which cover both in order; equal and different ones alternate.

    Patience diff (B. Cohen, 2008): lines that occur once in both texts are aligned first. Of aligned lines of IR each
    value has to be the one that its definition was aligned with, by whatever number, or that was in its place wherever
    the definition itself differs: else the line differs.
    """
    pairs = sorted(_aligned(before.masked, after.masked))
    same = _equal_values(before, after, pairs)
    found: list[Block] = []
    a = b = 0
    for (i, j), equal in zip([*pairs, (len(before.lines), len(after.lines))], [*same, False], strict=True):
        if i > a or j > b:
            _add(found, Block(False, a, i, b, j))
        if i < len(before.lines) and j < len(after.lines):
            _add(found, Block(equal, i, i + 1, j, j + 1))
        a, b = i + 1, j + 1
    return found


def _masked(line: str) -> str:
    """A line of IR without the numbers of its values; texts in quotes stay."""
    return _VALUE.sub(lambda found: found[1] or f"%{found[2] or ''}", line.strip())


def _add(blocks: list[Block], new: Block) -> None:
    """Appends a block, or lengthens the last one of its kind, which ends where it begins."""
    last = blocks[-1] if blocks else None
    if last is None or last.equal != new.equal:
        blocks.append(new)
    else:
        blocks[-1] = Block(last.equal, last.before, new.before_end, last.after, new.after_end)


def _equal_values(before: Lines, after: Lines, pairs: Sequence[tuple[int, int]]) -> Iterator[bool]:
    """For each aligned pair of lines whether their values are the same ones."""
    known: dict[int, int] = {}
    taken: set[int] = set()
    for i, j in pairs:
        ours, theirs = before.at(i), after.at(j)
        equal = len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=False):
            if one not in known and other not in taken:
                known[one] = other
                taken.add(other)
            equal = equal and known.get(one) == other
        yield equal


def _aligned(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of equal lines, no two of which cross."""
    waiting = [(0, len(a), 0, len(b))]
    while waiting:
        low, high, start, end = waiting.pop()
        while low < high and start < end and a[low] == b[start]:
            yield low, start
            low, start = low + 1, start + 1
        while low < high and start < end and a[high - 1] == b[end - 1]:
            high, end = high - 1, end - 1
            yield high, end
        anchors = _anchors(a, b, range(low, high), range(start, end))
        if anchors:
            for i, j in [*anchors, (high, end)]:
                waiting.append((low, i, start, j))
                low, start = i, j
        elif (high - low) * (end - start) <= _SMALL:
            for block in SequenceMatcher(None, a[low:high], b[start:end], autojunk=False).get_matching_blocks():
                yield from ((low + block.a + n, start + block.b + n) for n in range(block.size))


def _anchors(a: Sequence[str], b: Sequence[str], ours: range, theirs: range) -> list[tuple[int, int]]:
    """The longest increasing sequence of lines that occur once in both parts."""
    once = {line for line, count in Counter(a[i] for i in ours).items() if count == 1}
    counts = Counter(b[j] for j in theirs)
    places = {b[j]: j for j in theirs if b[j] in once and counts[b[j]] == 1}
    ends: list[int] = []
    chains: list[tuple[int, int, int]] = []  # a line, its partner, and the number of the chain's last but one
    tails: list[int] = []
    for i in ours:
        j = places.get(a[i], -1)
        if j < 0:
            continue
        at = bisect_left(ends, j)
        chains.append((i, j, tails[at - 1] if at else -1))
        ends[at : at + 1], tails[at : at + 1] = [j], [len(chains) - 1]
    found: list[tuple[int, int]] = []
    number = tails[-1] if tails else -1
    while number >= 0:
        i, j, number = chains[number]
        found.append((i, j))
    return found[::-1]


__all__ = ["Block", "Lines", "difference"]
