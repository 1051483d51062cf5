"""The counters of a launch, line by line of the CUDA text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from treadle.backends.cuda.emulator.instrument import Row
from treadle.backends.cuda.emulator.native import NativeCount


@dataclass(frozen=True)
class LineCounters:
    """The counters of one line of a text, summed over all warps and blocks of a launch.

    A *request* is one access of a warp: of those lanes that execute an access of the text together. Bytes are counted
    for each lane. An atomic operation reads and writes.
    """

    line: int
    """Counted from 1; 0 is the total, or where the line is not known."""
    global_requests: int = 0
    global_sectors: int = 0
    """Aligned pieces of 32 bytes of global memory that requests touch, each request by itself."""
    global_ideal: int = 0
    """The fewest sectors that could hold as many different bytes as each request asks for."""
    global_read: int = 0
    global_written: int = 0
    shared_requests: int = 0
    shared_phases: int = 0
    """Parts of requests to shared memory that are served together: a warp's lanes, as far as they ask for 128 bytes."""
    shared_wavefronts: int = 0
    """Passes through the 32 banks of 4 bytes: for each phase, the most different words that one bank is asked for."""
    shared_read: int = 0
    shared_written: int = 0
    operations: int | None = 0
    """Floating-point operations of threads; None where this machine's instructions are not known."""
    special: int | None = 0
    """Calls of `exp`, `sin`, `tanh`, `pow` and their kin, by threads; None as for `operations`."""
    barriers: int = 0
    """Barriers of whole blocks that opened."""
    waits: int = 0
    """Waits of warps for asynchronous copies."""

    @property
    def bank_conflicts(self) -> int:
        """Passes through the banks beyond the one that each phase needs."""
        return self.shared_wavefronts - self.shared_phases

    def __add__(self, other: LineCounters) -> LineCounters:
        """The sum, which is of no line unless both are of one."""
        return LineCounters(
            line=self.line if self.line == other.line else 0,
            global_requests=self.global_requests + other.global_requests,
            global_sectors=self.global_sectors + other.global_sectors,
            global_ideal=self.global_ideal + other.global_ideal,
            global_read=self.global_read + other.global_read,
            global_written=self.global_written + other.global_written,
            shared_requests=self.shared_requests + other.shared_requests,
            shared_phases=self.shared_phases + other.shared_phases,
            shared_wavefronts=self.shared_wavefronts + other.shared_wavefronts,
            shared_read=self.shared_read + other.shared_read,
            shared_written=self.shared_written + other.shared_written,
            operations=_sum(self.operations, other.operations),
            special=_sum(self.special, other.special),
            barriers=self.barriers + other.barriers,
            waits=self.waits + other.waits,
        )


@dataclass(frozen=True)
class Counters:
    """The counters of a launch by line; lines at which nothing was counted have no entry."""

    source: str = field(repr=False)
    """The text."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    lines: tuple[LineCounters, ...]
    """In the text's order."""

    def line(self, number: int) -> LineCounters:
        """The counters of a line; zeros where nothing was counted."""
        return next((each for each in self.lines if each.line == number), LineCounters(number))

    @property
    def total(self) -> LineCounters:
        """The sum over all lines."""
        total = LineCounters(0)
        for entry in self.lines:
            total += entry
        return total

    def text(self, number: int) -> str:
        """What stands in a line of the text, without the blanks around it."""
        lines = self.source.splitlines()
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def by_line(
    counts: Sequence[NativeCount],
    runs: Sequence[int],
    instructions: Sequence[Row],
    known: bool,
    lines_of: Callable[[Iterable[int]], dict[int, int]],
) -> tuple[LineCounters, ...]:
    """What the runtime counted, by line.

    `runs` are the executions of each run of `instructions`; `known` says whether these are available;
    `lines_of` finds the lines of addresses in the library.
    """
    executed = [row for row in instructions if runs[row.run]]
    lines = lines_of({count.pc for count in counts if count.pc} | {row.address for row in executed})
    found: dict[int, LineCounters] = {}

    def add(entry: LineCounters) -> None:
        found[entry.line] = found[entry.line] + entry if entry.line in found else entry

    for count in counts:
        add(_line(count, int(count.line) or lines.get(count.pc, 0), known))
    for row in executed:
        times = runs[row.run]
        entry = LineCounters(lines.get(row.address, 0), operations=times * row.operations, special=times * row.special)
        add(entry)
    return tuple(entry for _, entry in sorted(found.items()))


def _line(count: NativeCount, line: int, known: bool) -> LineCounters:
    return LineCounters(
        line=line,
        global_requests=count.global_requests,
        global_sectors=count.global_sectors,
        global_ideal=count.global_ideal,
        global_read=count.global_read,
        global_written=count.global_written,
        shared_requests=count.shared_requests,
        shared_phases=count.shared_phases,
        shared_wavefronts=count.shared_wavefronts,
        shared_read=count.shared_read,
        shared_written=count.shared_written,
        operations=count.operations if known else None,
        special=0 if known else None,
        barriers=count.barriers,
        waits=count.waits,
    )


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
