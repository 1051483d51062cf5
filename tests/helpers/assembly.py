"""Inner loops of assembly, and what they keep on the stack for want of registers.

Reads what gcc and clang write with `-S` for x86-64, in AT&T syntax. A loop is a set of basic blocks each of which
reaches every other one; without the block by which it is entered, what still goes around are the loops inside. So a
block that the compiler moved to the end of the function belongs to its loop, and a jump backwards that nothing returns
from makes none.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treadle.backends.c.compiler import INCLUDE_DIRECTORIES, Unit, find_toolchain
from treadle.environment import Environment
from treadle.target import Target

_LABEL = re.compile(r"([^\s:]+):")
_JUMP = re.compile(r"j\w+ (\S+)")
_LEAVES = re.compile(r"(?:rep(?:z)? )?ret|jmp|ud2|hlt")
_FRAME = re.compile(r"movq %rsp, %rbp")
_ARITHMETIC = re.compile(r"v?(?:fn?m(?:add|sub)\d*|add|sub|mul|div|max|min)p[sdh] ")
_VECTOR = re.compile(r"%[xyz]mm\d")
# A fixed place: an array's element has an index, or an address that was computed before.
_PLACE = re.compile(r"(-?\d*)\((%rsp|%rbp)\)")


@dataclass(frozen=True)
class Loop:
    """An inner loop: its instructions, by blocks in the order of the text.

    has_frame: whether %rbp is the frame's address in this function, and not one more register
    """

    function: str
    instructions: tuple[str, ...]
    has_frame: bool

    @property
    def computes(self) -> bool:
        """Whether it has arithmetic on vectors."""
        return any(_ARITHMETIC.match(each) for each in self.instructions)

    @property
    def spilled(self) -> set[str]:
        """The fixed places of the stack that vector registers are stored to or read from, be it as an operand of
        arithmetic."""
        return {place for each in self.instructions if _VECTOR.search(each) for place in self._places(each)}

    @property
    def spilled_addresses(self) -> set[str]:
        """The same of other registers."""
        return {place for each in self.instructions if not _VECTOR.search(each) for place in self._places(each)}

    def _places(self, instruction: str) -> list[str]:
        found = _PLACE.finditer(instruction)
        return [match[0] for match in found if match[2] == "%rsp" or self.has_frame]

    def __str__(self) -> str:
        return "\n".join([f"{self.function}:", *(f"    {each}" for each in self.instructions)])


def assembly_of(units: Sequence[Unit], environment: Environment, target: Target) -> str:
    """All kernels in one text, as the compiler of `environment` translates each with the flags that ship. Functions
    have the names of their units, which may differ from those in the texts.

    Writes to the folder of caches of `environment`; CalledProcessError with the compiler's words if it rejects them.
    """
    folder, toolchain = environment.cache_dir, find_toolchain(environment, target)
    folder.mkdir(parents=True, exist_ok=True)
    source, assembly = folder / "kernels.c", folder / "kernels.s"
    by_command: dict[tuple[str, ...], list[str]] = {}  # flags depend on a kernel's text
    for unit in units:
        symbol = re.findall(r"^void (\w+)\(", unit.text, re.MULTILINE)[-1]
        command = toolchain.compile_command(source, assembly, INCLUDE_DIRECTORIES, unit.text)
        named = f"#define {symbol} {unit.name}\n{unit.text}\n#undef {symbol}"
        by_command.setdefault(tuple(command), ['#include "treadle.h"']).append(named)
    found: list[str] = []
    for command, parts in by_command.items():
        source.write_text("\n".join(parts))
        words = ["-S" if each == "-c" else each for each in command]
        subprocess.run(words, check=True, stderr=subprocess.PIPE, text=True)
        # Clang's comments repeat bytes of debug information as they are.
        found.append(assembly.read_text(errors="replace"))
    return "\n".join(found)


def inner_loops(text: str) -> list[Loop]:
    """The loops without a loop inside, of all functions. ValueError for a jump to an address that is computed."""
    return [loop for name, lines in _functions(text) for loop in _loops(name, lines)]


@dataclass(frozen=True)
class _Block:
    """Instructions of which only the last one jumps, and the numbers of the blocks that may follow."""

    instructions: tuple[str, ...]
    successors: frozenset[int]


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    """The labels and instructions of each function, without directives and comments."""
    names = set(re.findall(r"^\s*\.type\s+(\S+),\s*@function", text, re.MULTILINE))
    name, lines = "", list[str]()
    for line in text.splitlines():
        stripped = re.sub(r"\s+", " ", line.partition("#")[0].strip())
        label = _LABEL.fullmatch(stripped)
        if label is not None and label[1] in names:
            name, lines = label[1], []
        elif stripped.startswith(".size") and name:
            yield name, lines
            name = ""
        elif stripped and (label is not None or not stripped.startswith(".")):
            lines.append(stripped)


def _loops(name: str, lines: Sequence[str]) -> Iterator[Loop]:
    blocks = _blocks(name, lines)
    has_frame = any(_FRAME.match(line) for line in lines)
    for members in _innermost(blocks, frozenset(range(len(blocks)))):
        instructions = [each for number in sorted(members) for each in blocks[number].instructions]
        yield Loop(name, tuple(instructions), has_frame)


def _blocks(name: str, lines: Sequence[str]) -> list[_Block]:
    """Cut at labels and behind jumps."""
    pieces: list[list[str]] = [[]]
    starts: dict[str, int] = {}
    for line in lines:
        label = _LABEL.fullmatch(line)
        if label is not None:
            if pieces[-1]:
                pieces.append([])
            starts[label[1]] = len(pieces) - 1
            continue
        pieces[-1].append(line)
        if _JUMP.match(line) or _LEAVES.match(line):
            pieces.append([])
    return [_Block(tuple(piece), _successors(name, n, pieces, starts)) for n, piece in enumerate(pieces)]


def _successors(name: str, number: int, pieces: Sequence[Sequence[str]], starts: Mapping[str, int]) -> frozenset[int]:
    last = pieces[number][-1] if pieces[number] else ""
    found = set[int]()
    if not _LEAVES.match(last) and number + 1 < len(pieces):
        found.add(number + 1)
    jump = _JUMP.match(last)
    if jump is not None and jump[1].startswith("*"):
        raise ValueError(f"{name}: {last!r} goes to an address that is computed; accepted: jumps to labels")
    if jump is not None and jump[1] in starts:  # else it calls another function as its last act
        found.add(starts[jump[1]])
    return frozenset(found)


def _innermost(blocks: Sequence[_Block], among: frozenset[int]) -> Iterator[frozenset[int]]:
    for members in _components(blocks, among):
        outside = [block for n, block in enumerate(blocks) if n not in members]
        entries = [n for n in members if any(n in block.successors for block in outside)]
        inner = list(_innermost(blocks, members - {min(entries or members)}))
        yield from inner or [members]


def _components(blocks: Sequence[_Block], among: frozenset[int]) -> list[frozenset[int]]:
    """The sets of blocks each of which reaches every other one, and itself, by ways in `among`.

    Source: Kosaraju's algorithm (Aho, Hopcroft, Ullman, Data Structures and Algorithms, section 6.7).
    """
    ways = {n: blocks[n].successors & among for n in among}
    before: dict[int, set[int]] = {n: set() for n in among}
    for n, successors in ways.items():
        for m in successors:
            before[m].add(n)
    left, found = set(among), list[frozenset[int]]()
    for root in reversed(_finished(ways)):
        members = _reached(before, root, left)
        left -= members
        if len(members) > 1 or root in members & ways[root]:
            found.append(members)
    return sorted(found, key=min)


def _finished(ways: Mapping[int, frozenset[int]]) -> list[int]:
    """All blocks, each behind those that a search in depth first reaches from it."""
    order, seen = list[int](), set[int]()
    for root in ways:
        stack = [(root, iter(ways[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            block, rest = stack[-1]
            following = next((n for n in rest if n not in seen), None)
            if following is None:
                order.append(block)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(ways[following])))
    return order


def _reached(ways: Mapping[int, set[int]], start: int, among: set[int]) -> frozenset[int]:
    """`start` and what is reached from it, in `among`."""
    found, waiting = {start} & among, [start] if start in among else []
    while waiting:
        new = (ways[waiting.pop()] & among) - found
        found |= new
        waiting += new
    return frozenset(found)
