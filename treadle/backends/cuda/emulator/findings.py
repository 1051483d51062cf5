"""What a checked launch found, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from treadle.backends.cuda.emulator.counters import Counters
from treadle.backends.cuda.emulator.native import NO_BUFFER, NOBODY, NativeFinding, What

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
}


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
        _message(what, native),
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


def _message(what: What, native: NativeFinding) -> str:
    size = int(native.size)
    match what:
        case What.RACE_READ_WRITE:
            return "a read and a write that no barrier orders"
        case What.RACE_WRITE_WRITE:
            return "two writes that no barrier orders"
        case What.RACE_IN_FLIGHT:
            return "touched while an asynchronous copy to it is under way"
        case What.BOUNDS_OUTSIDE:
            return f"{size} bytes outside of the buffer"
        case What.BOUNDS_INDEX:
            array = (native.text or b"an array").decode().replace(" [", "[")
            return f"index {native.offset} is outside of {array}; the block ended here"
        case What.BOUNDS_MISALIGNED:
            return f"an address that is no multiple of {size}, the size of what is read or written there"
        case What.BOUNDS_WILD:
            return f"address {native.offset:#x} is in no buffer; the launch ended here"
        case What.BOUNDS_READ_ONLY:
            return "a write to a buffer that is const"
        case What.INIT_SHARED:
            return "read before anything was written to it"
        case What.INIT_REGISTER:
            return "a value made of registers that were never written"
        case What.DIVERGENCE_BARRIER:
            return "a barrier that some threads left the kernel without reaching"
        case What.DIVERGENCE_PLACES:
            return "threads of one block wait at two different barriers"
        case What.DIVERGENCE_WARP:
            return "a warp operation that lanes of its mask take no part in"
        case What.DIVERGENCE_SOURCE:
            return "a shuffle from lanes that take no part in it"
        case What.DIVERGENCE_MASK:
            return "a warp operation by lanes that its mask does not name"
        case What.CRASH_ARITHMETIC:
            return "an integer division by zero"
