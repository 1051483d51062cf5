"""Red zones between the variables in shared memory, put into the compiler's assembly text."""

from __future__ import annotations

import re

ZONE_BYTES = 256

_THREAD_LOCAL = re.compile(r"\s*\.section\s+\.tbss")
_OTHER = re.compile(r"\s*\.(section|text|data|bss|previous|pushsection|popsection)\b")
_SPACE = re.compile(r"\s*\.(zero|skip|space|byte|short|value|long|quad)\s+\d+")


def with_red_zones(assembly: str) -> str:
    """The text with unused bytes after each thread-local variable.

    No source spells this: the compiler lays the variables out side by side, and an access just behind one of
    them would fall into the next. A variable's size, as its symbol has it, does not change.
    """
    lines: list[str] = []
    inside = False
    for line in assembly.splitlines():
        lines.append(line)
        if _THREAD_LOCAL.match(line):
            inside = True
        elif _OTHER.match(line):
            inside = False
        elif inside and _SPACE.match(line):
            lines.append(f"\t.zero\t{ZONE_BYTES}")
    return "\n".join([*lines, ""])
