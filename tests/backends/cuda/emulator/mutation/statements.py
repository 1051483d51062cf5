"""A printed kernel as statements: one a line, loops and branches with what they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from treadle.backends.cuda.emulator.build import kernels

BARRIER = re.compile(r"(treadle_barrier|__syncthreads)\(\);")
WAIT = re.compile(r"treadle_cp_async_wait<(\d+)>\(\);")
COMMIT = re.compile(r"treadle_cp_async_commit\(\);")

_SHARED = re.compile(r"__shared__[^;=]*?\b(\w+)(?:\[[^\]]*\])+;")
_VIEW = re.compile(r"[&*]\s*\(?\s*[&*]?\s*(?:__restrict__\s+)?(\w+)\)?(?:\[[^\]]*\])*\s*=\s*(.*);")


@dataclass(frozen=True)
class Statement:
    """Lines `first` to `last` of a text, counted from 0, and the statements inside of it."""

    first: int
    last: int
    children: tuple[Statement, ...] = ()


class KernelText:
    """The text of one `__global__` function, printed one statement a line.

    `parameters` are its parameters' names, `global_names` those of pointers; `shared_names` are its arrays in shared
    memory and what is a view of them.
    """

    def __init__(self, text: str):
        self.lines = text.splitlines()
        (self.name,) = kernels(text)
        self.head = next(number for number, line in enumerate(self.lines) if f" {self.name}(" in line)
        parameters = self.lines[self.head].split(f" {self.name}(")[1].rsplit(")", 1)[0].split(",")
        self.parameters = tuple(each.split()[-1].lstrip("*") for each in parameters)
        self.global_names = tuple(each.split()[-1].lstrip("*") for each in parameters if "*" in each)
        self.shared_names = self._shared()
        self.body, _ = self._parse(self.head + 1)
        names = "|".join((*self.shared_names, "treadle_cp_async_4", "treadle_cp_async_8", "treadle_cp_async_16"))
        self._touches = re.compile(rf"\b({names})\b")

    def touches_shared(self, statement: Statement) -> bool:
        """Whether the statement reads or writes shared memory."""
        lines = self.lines[statement.first : statement.last + 1]
        return any(self._touches.search(line) and not self._declares(line) for line in lines)

    def inside(self, statement: Statement) -> int:
        """The line before which the statement, or what a loop or branch holds, begins to run."""
        return statement.children[0].first if statement.children else statement.first

    def lists(self) -> Iterator[tuple[Statement, ...]]:
        """The kernel's statements, then those of each loop and branch."""
        waiting = [self.body]
        while waiting:
            statements = waiting.pop(0)
            yield statements
            waiting += [each.children for each in statements if each.children]

    def _declares(self, line: str) -> bool:
        view = _VIEW.search(line)
        return "__shared__" in line or (view is not None and view[1] in self.shared_names)

    def _shared(self) -> tuple[str, ...]:
        names: list[str] = []
        for line in self.lines:
            declared, view = _SHARED.search(line), _VIEW.search(line)
            if declared:
                names.append(declared[1])
            elif view and any(re.search(rf"\b{name}\b", view[2]) for name in names):
                names.append(view[1])
        return tuple(names)

    def _parse(self, number: int) -> tuple[tuple[Statement, ...], int]:
        """The statements from line `number` up to the brace that closes them, and that brace's line."""
        statements: list[Statement] = []
        while not self.lines[number].strip().startswith("}"):
            first = number
            while self.lines[number].lstrip().startswith("#pragma"):
                number += 1
            children: list[Statement] = []
            while self.lines[number].rstrip().endswith("{"):
                inside, number = self._parse(number + 1)
                children += inside
            statements.append(Statement(first, number, tuple(children)))
            number += 1
        return tuple(statements), number
