"""Trimming IR and code for people: what a document shows of a text."""

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
    A name is replaced up to the end of the block that defines it, which its indentation tells.
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
    start = next((n for n, line in enumerate(lines) if first in line), None)
    if start is None:
        raise TreadleError(f"no line contains {first!r}", "excerpt", "a part of the text")
    margin = _indent(lines[start])
    for end in range(start + 1, len(lines)):
        if lines[end].startswith(" " * margin + "}"):
            return "\n".join(line[margin:] for line in lines[start : end + 1])
    raise TreadleError(f"nothing closes the line that contains {first!r}", "excerpt", "a line that opens a block")


def shortened(text: str, head: int, tail: int) -> str:
    """The first `head` and the last `tail` lines; `...` stands for what is between them."""
    lines = text.rstrip("\n").splitlines()
    if len(lines) <= head + tail + 1:
        return "\n".join(lines)
    return "\n".join([*lines[:head], " " * _indent(lines[head]) + "...", *lines[-tail:]])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
