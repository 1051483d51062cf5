"""The predicates of a printed kernel under which memory is read or written, conjunct by conjunct."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.backends.cuda.emulator.mutation.statements import KernelText, Statement

_IF = re.compile(r"^\s*if \((.*)\) \{$")
_NAMED = re.compile(r"^\s*const bool (\w+) = (.*);$")
_COPY = re.compile(r"treadle_cp_async_(?:4|8|16)\(")


@dataclass(frozen=True)
class Guard:
    """A condition in line `line` (from 0), columns `start` to `end`.

    `value` is what is read where the condition holds, or copied from, and ends at column `value_end`; both are empty
    where the condition stands before statements, or in a name.
    """

    line: int
    start: int
    end: int
    conjuncts: tuple[str, ...]
    value: str = ""
    value_end: int = 0

    def rest(self, dropped: int) -> str:
        """The condition without one of its conjuncts."""
        return " && ".join(self.conjuncts[:dropped] + self.conjuncts[dropped + 1 :]) or "true"


def guards(kernel: KernelText) -> list[Guard]:
    """Every condition that guards an access to memory, in the order of the lines.

    A name for several conjuncts counts where it is defined, and once; a name for one counts where it is used.
    """
    memory = re.compile(rf"\b(?:{'|'.join((*kernel.global_names, *kernel.shared_names))})\b\s*\[")
    found = [*_branches(kernel, memory), *_choices(kernel, memory), *_copies(kernel)]
    named = _definitions(kernel)
    several = {name for name, guard in named.items() if len(guard.conjuncts) > 1 or named.keys() & guard.conjuncts}
    used: dict[str, Guard] = {}
    waiting = list(found)
    while waiting:
        for conjunct in waiting.pop().conjuncts:
            if conjunct in several and conjunct not in used:
                used[conjunct] = named[conjunct]
                waiting.append(named[conjunct])
    direct = [guard for guard in found if not set(guard.conjuncts) <= several]
    return sorted([*direct, *used.values()], key=lambda guard: (guard.line, guard.start))


def mutable(kernel: KernelText, guard: Guard) -> Iterator[int]:
    """The conjuncts that are comparisons, or names for one."""
    named = _definitions(kernel)
    for index, conjunct in enumerate(guard.conjuncts):
        inner = named.get(conjunct)
        if inner is None or (len(inner.conjuncts) == 1 and not named.keys() & inner.conjuncts):
            yield index


def _definitions(kernel: KernelText) -> dict[str, Guard]:
    found: dict[str, Guard] = {}
    for number, line in enumerate(kernel.lines):
        match = _NAMED.match(line)
        if match:
            found[match[1]] = Guard(number, match.start(2), match.end(2), _conjuncts(match[2]))
    return found


def _branches(kernel: KernelText, memory: re.Pattern[str]) -> Iterator[Guard]:
    for statements in kernel.lists():
        for statement in statements:
            line = kernel.lines[statement.first]
            match = _IF.match(line)
            if match and any(memory.search(each) for each in _inside(kernel, statement)):
                yield Guard(statement.first, match.start(1), match.end(1), _conjuncts(match[1]))


def _inside(kernel: KernelText, statement: Statement) -> Sequence[str]:
    return kernel.lines[statement.first + 1 : statement.last]


def _choices(kernel: KernelText, memory: re.Pattern[str]) -> Iterator[Guard]:
    """`condition ? a[i] : b`, where what is chosen is read from memory."""
    for number, line in enumerate(kernel.lines):
        for match in re.finditer(r"\?", line):
            start, colon = _condition_start(line, match.start()), _closing(line, match.end(), ":")
            condition, value = line[start : match.start()].rstrip(), line[match.end() : colon].strip()
            if memory.search(value):
                value_end = colon - 1 if line[colon - 1] == " " else colon
                yield Guard(number, start, start + len(condition), _conjuncts(condition), value, value_end)


def _copies(kernel: KernelText) -> Iterator[Guard]:
    for number, line in enumerate(kernel.lines):
        match = _COPY.search(line)
        if match is None:
            continue
        first = _closing(line, match.end(), ",")
        second = _closing(line, first + 1, ",)")
        if line[second] == ",":
            start, end = second + 2, _closing(line, second + 1, ")")
            yield Guard(number, start, end, _conjuncts(line[start:end]), line[first + 2 : second], second)


def _conjuncts(condition: str) -> tuple[str, ...]:
    """The operands of the outermost `&&`; a condition with `||` outside of parentheses is one."""
    pieces: list[str] = []
    depth = begin = 0
    for position, character in enumerate(condition):
        depth += (character in "([{") - (character in ")]}")
        pair = condition[position : position + 2]
        if depth == 0 and (pair == "||" or character == "?"):
            return (condition,)
        if depth == 0 and pair == "&&":
            pieces.append(condition[begin:position].strip())
            begin = position + 2
    return (*pieces, condition[begin:].strip())


def _closing(text: str, begin: int, ends: str) -> int:
    """The first of `ends` outside of the parentheses that open after `begin`; the text's end if there is none."""
    opening, closing = ("([{?", ")]}:") if ends == ":" else ("([{", ")]}")
    depth = 0
    for position in range(begin, len(text)):
        character = text[position]
        if depth == 0 and character in ends:
            return position
        depth += (character in opening) - (character in closing)
        if depth < 0:
            return position
    return len(text)


def _condition_start(line: str, question: int) -> int:
    """Where the condition before a `?` begins: behind a bracket, a comma, an assignment, or another choice."""
    depth = 0
    for position in range(question - 1, -1, -1):
        character = line[position]
        depth += (character in ")]}") - (character in "([{")
        assigns = character == "=" and line[position + 1] != "=" and line[position - 1] not in "=<>!"
        if depth < 0 or (depth == 0 and (character in ",;?:" or assigns)):
            return position + 1 + (line[position + 1] == " ")
    return len(line) - len(line.lstrip())
