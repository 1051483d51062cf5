"""Proofs that a mutant does what its kernel does. Each is a launch of the kernel that notes what the change rests on.

A printed kernel has its extents and its grid built in, and its predicates depend on indices alone. So what holds
throughout one launch of all blocks holds always.
"""

from __future__ import annotations

import re

from tests.backends.cuda.emulator.mutation.guards import Guard
from tests.backends.cuda.emulator.mutation.mutants import Mutant, replaced
from tests.backends.cuda.emulator.mutation.statements import KernelText
from tests.backends.cuda.emulator.mutation.trial import Bench

NEVER_RUNS = "the barrier, or what it was moved across, is in a loop without iterations"
NEVER_ASKED = "the predicate is in a loop without iterations"
ALWAYS_HOLDS = "the predicate holds in every thread that asks for it"
IMPLIED = "the predicate holds wherever the others beside it do"
UNUSED = "what is read lies in the buffer and reaches no output"
REASONS = (NEVER_RUNS, NEVER_ASKED, ALWAYS_HOLDS, IMPLIED, UNUSED)

_NOTED = "treadle_noted"
_POISONS = (1.0e3, -7.0e5)


def reason_of(bench: Bench, mutant: Mutant) -> str | None:
    """Why the mutant does the same, proven by running the unchanged kernel; None if it was not proven."""
    kernel = KernelText(bench.kernel.text)
    if mutant.guard is None:
        return NEVER_RUNS if _never_runs(bench, kernel, mutant.orders) else None
    asked, failed, decided = _noted_of(bench, kernel, mutant.guard, mutant.dropped)
    if not asked:
        return NEVER_ASKED
    if not failed:
        return ALWAYS_HOLDS
    if not decided:
        return IMPLIED
    return UNUSED if mutant.guard.value and _unused(bench, kernel, mutant.guard, mutant.dropped) else None


def _never_runs(bench: Bench, kernel: KernelText, lines: tuple[int, ...]) -> bool:
    """Whether one of the lines is reached by no thread."""
    text = list(kernel.lines)
    for index, line in enumerate(lines):
        text[line] = f"{_NOTED}[{index}] = 1;\n{text[line]}"
    noted, _ = bench.noted(_with_notes(kernel, text))
    return not all(noted[: len(lines)])


def _noted_of(bench: Bench, kernel: KernelText, guard: Guard, dropped: int) -> tuple[bool, bool, bool]:
    """Whether the guard is asked at all, its conjunct ever fails, and ever fails where the others hold."""
    conjunct, rest = guard.conjuncts[dropped], guard.rest(dropped)
    asked, failed, decided = (
        f"({_NOTED}[{index}] = 1, {outcome})" for index, outcome in enumerate(("true", "true", "false"))
    )
    condition = f"{asked} && (({conjunct}) || {failed}) && ({rest}) && (({conjunct}) || {decided})"
    noted, _ = bench.noted(_with_notes(kernel, replaced(kernel, guard, condition).splitlines()))
    return bool(noted[0]), bool(noted[1]), bool(noted[2])


def leaves_buffer(bench: Bench, mutant: Mutant) -> bool:
    """Whether a read that a dropped predicate no longer guards lies outside of its buffer, by its index in the text.

    False where the predicate guards no read in one expression; the emulator's own bookkeeping has no part in this.
    """
    kernel, guard = KernelText(bench.kernel.text), mutant.guard
    if guard is None or not guard.value:
        return False
    noted, _ = bench.noted(_poisoned(bench, kernel, guard, mutant.dropped))
    return bool(noted[0])


def _unused(bench: Bench, kernel: KernelText, guard: Guard, dropped: int) -> bool:
    """Whether the reads that the mutant adds stay in their buffers, and numbers in their place change no output."""
    types = dict(zip(kernel.parameters, (name for _, name in bench.kernel.buffers), strict=True))
    loads = _loads(guard.value, kernel.global_names)
    shared = any(re.search(rf"\b{name}\b", guard.value) for name in kernel.shared_names)
    if not loads or shared or {types[name] for name, _ in loads} != {"float32"}:
        return False
    text = _poisoned(bench, kernel, guard, dropped)
    # Fast texts may round differently; if the quick comparison fails, the checked texts decide.
    return any(_same(bench, text, checked) for checked in (False, True))


def _same(bench: Bench, text: str, checked: bool) -> bool:
    expected = bench.run(bench.kernel.text, checked=checked).outputs
    results = (bench.noted(text, checked=checked, poison=poison) for poison in _POISONS)
    return all(not noted[0] and outputs == expected for noted, outputs in results)


def _poisoned(bench: Bench, kernel: KernelText, guard: Guard, dropped: int) -> str:
    """The mutant, but what only it reads are poisonous numbers. It notes an index that lies outside."""
    sizes = dict(zip(kernel.parameters, (size for size, _ in bench.kernel.buffers), strict=True))
    loads = _loads(guard.value, kernel.global_names)
    outside = [f"{_NOTED}[0] |= (unsigned long long)({index}) >= {sizes[name]}ull" for name, index in loads]
    is_address = guard.value.startswith("&")
    kept = f"(const void *)({guard.value})" if is_address else guard.value
    number = f"(const void *)({_NOTED} + 4)" if is_address else f"*(const __typeof__({kept}) *)({_NOTED} + 4)"
    value = f"(({guard.conjuncts[dropped]}) ? ({kept}) : ({', '.join([*outside, number])}))"
    return _with_notes(kernel, replaced(kernel, guard, guard.rest(dropped), value).splitlines())


def _loads(value: str, names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Each `name[index]` in a value."""
    found: list[tuple[str, str]] = []
    for match in re.finditer(rf"\b({'|'.join(names)})\[", value):
        depth, end = 1, match.end()
        while depth:
            depth += (value[end] == "[") - (value[end] == "]")
            end += 1
        found.append((match[1], value[match.end() : end - 1]))
    return found


def _with_notes(kernel: KernelText, lines: list[str]) -> str:
    """The text with one more parameter, to which the kernel writes what it notes."""
    head = lines[kernel.head]
    end = head.rindex(")")
    changed = f"{head[:end]}, int *__restrict__ {_NOTED}{head[end:]}"
    return "\n".join([*lines[: kernel.head], changed, *lines[kernel.head + 1 :], ""])
