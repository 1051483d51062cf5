"""Excerpts of IR and code for documents."""

from __future__ import annotations

import re

from treadle.errors import TreadleError

_DIGEST = re.compile(r'"sha256:([0-9a-f]{6})[0-9a-f]*"')
_INLINE = re.compile(r'#graph\.inline<"([^"]{24})[^"]*"')
_INDEX_CONSTANT = re.compile(r"^( *)(%\w+) = arith\.constant (-?\d+) : index$")


def cut_digests(text: str) -> str:
    """Digests of constants cut to six digits, and inline values to their beginning."""
    return _INLINE.sub(r'#graph.inline<"\1..."', _DIGEST.sub(r'"sha256:\1..."', text))


def indices_in_place(text: str) -> str:
    """Index constants written where they are used, without their own lines.

    ```mlir
    %c8 = arith.constant 8 : index
    %0 = arith.muli %i, %c8 : index
    ```
    becomes
    ```mlir
    %0 = arith.muli %i, 8 : index
    ```
    A name is replaced up to the end of the block that defines it, by its indentation.
    """
    shown: list[str] = []
    known: list[tuple[int, str, str]] = []
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        known = [entry for entry in known if entry[0] <= depth]
        constant = _INDEX_CONSTANT.match(line)
        if constant is not None:
            known = [entry for entry in known if entry[1] != constant[2]]
            known.append((depth, constant[2], constant[3]))
            continue
        values = {name: value for _, name, value in known}
        shown.append(re.sub(r"%\w+", lambda match, values=values: values.get(match[0], match[0]), line))
    return "\n".join(shown)


def block(text: str, first: str) -> str:
    """The first line that contains `first` and what it opens, up to its closing brace, moved to the left margin.

    TreadleError if there is no such line, or nothing closes it.
    """
    lines = text.splitlines()
    return _closed(lines, _find(lines, first))


def enclosing(text: str, inside: str, levels: int) -> str:
    """The block `levels` levels around the first line that contains `inside`, as `block` gives it.

    TreadleError if there is no such line, or fewer levels.
    """
    lines = text.splitlines()
    start = _find(lines, inside)
    for _ in range(levels):
        outer = [n for n in range(start) if lines[n].endswith("{") and _indent(lines[n]) < _indent(lines[start])]
        if not outer:
            raise TreadleError(f"fewer than {levels} levels around {inside!r}", "excerpt", "a smaller number")
        start = outer[-1]
    return _closed(lines, start)


def shortened(text: str, head: int, tail: int) -> str:
    """The first `head` and the last `tail` lines; `...` replaces those between them."""
    lines = text.rstrip("\n").splitlines()
    if len(lines) <= head + tail + 1:
        return "\n".join(lines)
    return "\n".join([*lines[:head], " " * _indent(lines[head]) + "...", *lines[-tail:]])


def _find(lines: list[str], part: str) -> int:
    for number, line in enumerate(lines):
        if part in line:
            return number
    raise TreadleError(f"no line contains {part!r}", "excerpt", "a part of the text")


def _closed(lines: list[str], start: int) -> str:
    """The lines from `start` to the brace that closes it, moved to the left margin."""
    margin = _indent(lines[start])
    for end in range(start + 1, len(lines)):
        if lines[end].startswith(" " * margin + "}"):
            return "\n".join(line[margin:] for line in lines[start : end + 1])
    raise TreadleError(f"nothing closes {lines[start]!r}", "excerpt", "a line that opens a block")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
