"""What a launch on the emulator says: its counters, line by line, and what its checks found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from treadle.backends.cuda.emulator.instrument import Row
from treadle.backends.cuda.emulator.native import NO_BUFFER, NOBODY, NativeCount, NativeFinding, What

# The counters of a launch, line by line of the CUDA text.


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


# What a checked launch found, in words.

FindingKind = Literal["race", "bounds", "init", "divergence"]

KINDS: dict[What, FindingKind] = {
    What.RACE_READ_WRITE: "race",
    What.RACE_WRITE_WRITE: "race",
    What.RACE_IN_FLIGHT: "race",
    What.BOUNDS_OUTSIDE: "bounds",
    What.BOUNDS_INDEX: "bounds",
    What.BOUNDS_MISALIGNED: "bounds",
    What.BOUNDS_WILD: "bounds",
    What.BOUNDS_READ_ONLY: "bounds",
    What.INIT_SHARED: "init",
    What.INIT_REGISTER: "init",
    What.DIVERGENCE_BARRIER: "divergence",
    What.DIVERGENCE_PLACES: "divergence",
    What.DIVERGENCE_WARP: "divergence",
    What.DIVERGENCE_SOURCE: "divergence",
    What.DIVERGENCE_MASK: "divergence",
    What.MBARRIER_UNINITIALISED: "init",
    What.MBARRIER_REINITIALISED: "race",
    What.MBARRIER_UNPUBLISHED: "race",
    What.MBARRIER_ARRIVALS: "divergence",
    What.MBARRIER_BYTES: "bounds",
    What.MBARRIER_BEHIND: "race",
    What.MBARRIER_STUCK: "divergence",
    What.NAMED_NUMBER: "divergence",
    What.NAMED_COUNT: "divergence",
    What.NAMED_TWICE: "divergence",
    What.NAMED_WARP: "divergence",
    What.NAMED_STUCK: "divergence",
    What.TENSOR_MAP: "bounds",
    What.TENSOR_ALIGNMENT: "bounds",
    What.TENSOR_COORDINATE: "bounds",
    What.TENSOR_MODE: "bounds",
    What.TENSOR_PIXEL: "bounds",
    What.TENSOR_OFFSET: "bounds",
    What.TENSOR_UNREAD: "race",
    What.ASYNC_UNFENCED: "race",
    What.WGMMA_SUMS: "race",
    What.WGMMA_FENCE: "race",
    What.WGMMA_DESCRIPTOR: "bounds",
    What.WGMMA_SWIZZLE: "bounds",
    What.WGMMA_DIFFERS: "divergence",
    What.WGMMA_STUCK: "divergence",
    What.WGMMA_UNWAITED: "race",
    What.WGMMA_DROPPED: "race",
    What.TENSOR_UNARRIVED: "race",
    What.CLUSTER_RANK: "bounds",
    What.CLUSTER_ENDED: "race",
    What.CLUSTER_STUCK: "divergence",
    What.CLUSTER_ARRIVALS: "divergence",
    What.CLUSTER_SCOPE: "race",
    What.STORE_BARRIER: "bounds",
    What.REGISTERS_WARPGROUP: "divergence",
    What.REGISTERS_NUMBER: "bounds",
    What.REGISTERS_SUM: "divergence",
}

STUCK = (What.MBARRIER_STUCK, What.NAMED_STUCK, What.WGMMA_STUCK, What.CLUSTER_STUCK)
"""What a launch ends with whose threads all wait."""


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel. `str(finding)` is one line.

    `line` counts the CUDA text's lines from 1, and is 0 where it is not known; `other_line` is that of the
    access or barrier it conflicts with, the earlier one where neither is at fault. `threads` are numbered within
    their block, `blocks` within the grid, x fastest. `element` counts elements of `buffer` from its start; it lies
    outside where the access did.
    """

    kind: FindingKind
    kernel: str
    line: int
    threads: tuple[int, ...]
    blocks: tuple[int, ...]
    buffer: str | None
    element: int | None
    message: str
    other_line: int | None = None
    count: int = 1
    """How often it was seen."""

    def __str__(self) -> str:
        threads = f"threads {ranges(self.threads)} of " if self.threads else ""
        blocks = f"{'block' if len(self.blocks) == 1 else 'blocks'} {ranges(self.blocks)}"
        other = "" if self.other_line is None else f" (line {self.other_line})"
        target = "" if self.buffer is None else f" {self.buffer}"
        element = "" if self.buffer is None or self.element is None else f"[{self.element}]"
        times = "" if self.count == 1 else f", {self.count} times"
        location = f"{self.kernel}:{self.line or '?'}"
        return f"{self.kind} {location}:{target}{element}: {self.message}{other}: {threads}{blocks}{times}"


@dataclass(frozen=True)
class Report:
    """What was found in a launch; without findings, every check of the emulator passed."""

    kernel: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    counters: Counters | None = None
    """Where counters were asked for."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"{self.kernel}: no findings"


@dataclass(frozen=True)
class BufferName:
    """How findings name a buffer: elements of `itemsize` bytes."""

    name: str
    itemsize: int


def describe(
    native: NativeFinding,
    kernel: str,
    lines: Mapping[int, int],
    device: Sequence[BufferName],
    shared: Sequence[BufferName],
) -> Finding:
    """A finding in words. `lines` are by address."""
    what = What(native.what)
    line = int(native.line) or lines.get(native.pc, 0)
    other_line = int(native.other_line) or lines.get(native.other_pc)
    buffer = _buffer(native.buffer, device, shared)
    element = None if buffer is None else int(native.offset) // max(1, buffer.itemsize or int(native.size))
    if what is What.BOUNDS_INDEX:
        element = int(native.offset)
    blocks = {int(native.block)}
    threads = {n for n in range(1024) if native.threads[n // 32] >> (n % 32) & 1}
    if other_line is not None and native.other_thread != NOBODY:
        blocks.add(int(native.other_block))
        threads = {int(native.thread), int(native.other_thread)}
    if what in (What.RACE_READ_WRITE, What.RACE_WRITE_WRITE) and other_line is not None:
        line, other_line = max(line, other_line), min(line, other_line)
    return Finding(
        KINDS[what],
        kernel,
        line,
        tuple(sorted(threads)),
        tuple(sorted(blocks)),
        None if buffer is None else buffer.name,
        element,
        message_of(native),
        other_line,
        int(native.count),
    )


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings by line; those that say the same of one line are one, and the sharper of two bounds stays."""
    by_place: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        key = (finding.kind, finding.line, finding.other_line, finding.buffer, finding.message.split(" of ")[0])
        known = by_place.get(key)
        if known is None:
            by_place[key] = finding
        else:
            first = min(known, finding, key=lambda each: (each.blocks, each.threads))
            by_place[key] = replace(first, count=known.count + finding.count)
    return tuple(sorted(by_place.values(), key=lambda each: (each.line, each.kind, each.blocks, each.message)))


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text: `0-3, 7`."""
    parts: list[str] = []
    start = previous = -2
    for number in [*numbers, -1]:
        if number != previous + 1:
            if previous >= 0:
                parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = number
        previous = number
    return ", ".join(parts)


def _buffer(index: int, device: Sequence[BufferName], shared: Sequence[BufferName]) -> BufferName | None:
    if index == NO_BUFFER:
        return None
    return device[index] if index >= 0 else shared[-1 - index]


_DESCRIPTOR_FAULTS = {
    1: "bits that mean nothing are set",
    2: "a base offset that is not 0",
    3: "it begins inside of its swizzle's pattern",
    4: "its stride is no multiple of its swizzle's pattern",
    5: "its leading dimension is no multiple of its swizzle's pattern",
}

_MESSAGES: Mapping[What, str] = {
    What.RACE_READ_WRITE: "a read and a write that no barrier orders",
    What.RACE_WRITE_WRITE: "two writes that no barrier orders",
    What.RACE_IN_FLIGHT: "touched while an asynchronous copy to it is under way",
    What.BOUNDS_OUTSIDE: "{size} bytes outside of the buffer",
    What.BOUNDS_INDEX: "index {offset} is outside of {text}; the block ended here",
    What.BOUNDS_MISALIGNED: "an address that is no multiple of {size}, the size of what is read or written there",
    What.BOUNDS_WILD: "address {offset:#x} is in no buffer; the launch ended here",
    What.BOUNDS_READ_ONLY: "a write to a buffer that is const",
    What.INIT_SHARED: "read before anything was written to it",
    What.INIT_REGISTER: "a value made of registers that were never written",
    What.DIVERGENCE_BARRIER: "a barrier that some threads left the kernel without reaching",
    What.DIVERGENCE_PLACES: "threads of one block wait at two different barriers",
    What.DIVERGENCE_WARP: "a warp operation that lanes of its mask take no part in",
    What.DIVERGENCE_SOURCE: "a shuffle from lanes that take no part in it",
    What.DIVERGENCE_MASK: "a warp operation by lanes that its mask does not name",
    What.CRASH_ARITHMETIC: "an integer division by zero",
    What.MBARRIER_UNINITIALISED: "no barrier was initialised here",
    What.MBARRIER_REINITIALISED: "a barrier initialised again while a phase of it is under way",
    What.MBARRIER_UNPUBLISHED: "a copy to a barrier whose initialisation no treadle_mbarrier_fence has published",
    What.MBARRIER_ARRIVALS: "more than {a} arrivals in one phase of a barrier",
    What.MBARRIER_BYTES: f"a phase that waits for {{a}} bytes; a barrier counts 0 to {2**20 - 1}",
    What.MBARRIER_BEHIND: "a wait for phase {a} of a barrier, after which phase {b} has ended already",
    What.NAMED_NUMBER: "numbered barrier {a} of {b} threads; numbers are 1 to 15, threads whole warps of the block",
    What.NAMED_COUNT: "numbered barrier {a} of {b} threads, which others came to as one of {c}",
    What.NAMED_TWICE: "a thread comes to numbered barrier {a} again before all came: {b} of {c} have",
    What.NAMED_WARP: "numbered barrier {a}, to which lanes of warp {b} did not come with it",
    What.NAMED_STUCK: "numbered barrier {a}, to which {b} of {c} threads come; the launch ended here",
    What.WGMMA_STUCK: "a wait for a product that not all threads of the warpgroup issue; the launch ended here",
    What.TENSOR_MAP: "a copy of {b} dimensions by a map of {a}",
    What.TENSOR_ALIGNMENT: "a tile of a copy that does not begin at a multiple of {a} bytes",
    What.TENSOR_COORDINATE: (
        "a copy from innermost coordinate {a} on, of elements of {b} bytes; 16 bytes must divide it"
    ),
    What.TENSOR_PIXEL: "a copy that begins at pixel {a} along dimension {b}, over which its map does not walk",
    What.TENSOR_OFFSET: "an offset of {a} pixels; a copy takes 0 to {b}",
    What.TENSOR_UNREAD: "the thread ended while a store still read shared memory",
    What.TENSOR_UNARRIVED: "the block ended before a copy to it arrived",
    What.CLUSTER_RANK: "block {a} of a cluster of {b}",
    What.CLUSTER_ENDED: "block {a} of the cluster may have ended",
    What.CLUSTER_STUCK: "a barrier of the cluster that not all threads come to; the launch ended here",
    What.CLUSTER_SCOPE: "a wait in the scope of the block for what other blocks store",
    What.STORE_BARRIER: "a store to block {a} of the cluster that completes at a barrier of block {b}",
    What.ASYNC_UNFENCED: "read by a copy or a product, but no treadle_fence_async of its writer precedes",
    What.WGMMA_SUMS: "registers touched while a product on them is under way",
    What.WGMMA_FENCE: "a product whose registers no treadle_wgmma_fence orders",
    What.WGMMA_SWIZZLE: "read with a swizzle of {a} bytes, but written with one of {b}",
    What.WGMMA_DIFFERS: "threads of a warpgroup issue different products",
    What.WGMMA_UNWAITED: "the thread ended while a product was under way",
    What.WGMMA_DROPPED: "a product clears sums of products under way, which no thread can have read",
    What.REGISTERS_WARPGROUP: "threads of a warpgroup ask for {a} and for {b} registers",
    What.REGISTERS_NUMBER: "{a} registers for each thread; 24 to 240 are possible, in steps of 8",
    What.REGISTERS_SUM: "warpgroups ask for {a} registers; the launch has {b}",
}
"""Of findings, with the numbers a to d that say more of some of them."""


def message_of(native: NativeFinding) -> str:
    """What a finding says, but for its place."""
    what = What(native.what)
    a, b, c, d = (int(number) for number in native.numbers)
    match what:
        case What.MBARRIER_ARRIVALS if a < 0:
            return f"a barrier of {b} arrivals; it takes 1 to {2**20 - 1}"
        case What.MBARRIER_STUCK:
            missing = [f"{a} of {b} arrivals"] if a else []
            missing += [f"{c} bytes"] if c > 0 else []
            beyond = f"; {-c} bytes came that nobody expects" if c < 0 else ""
            return f"phase {d} never ends: {' and '.join(missing) or 'nothing'} missing{beyond}; the launch ended here"
        case What.TENSOR_MAP if a == 0:
            return f"a copy of {b} dimensions by what is no tensor map"
        case What.TENSOR_MODE:
            return f"a copy of {('a box', 'pixels')[a]} by a map of {('a box', 'pixels')[not a]}"
        case What.CLUSTER_ARRIVALS:
            which = "a second arrival before the wait" if a else "a wait without an arrival"
            return f"{which} at the barrier of the cluster"
        case What.WGMMA_DESCRIPTOR:
            return f"the matrix descriptor of operand {'AB'[b]}: {_DESCRIPTOR_FAULTS[a]}"
        case What.REGISTERS_NUMBER if c:
            return f"{'an increase' if c == 1 else 'a decrease'} to {a} registers from {b}"
        case _:
            text = (native.text or b"an array").decode().replace(" [", "[")
            numbers = {"a": a, "b": b, "c": c, "d": d, "size": native.size, "offset": native.offset}
            return _MESSAGES[what].format(text=text, **numbers)
