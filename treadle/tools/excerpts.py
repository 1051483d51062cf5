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


def between(text: str, first: str, last: str) -> str:
    """The lines from the first that matches `first` to the next that matches `last`, moved to the left margin.

    Both are regular expressions, searched in each line. TreadleError where one of them is not found.
    """
    lines = text.splitlines()
    start = _find(lines, first, 0)
    end = _find(lines, last, start + 1)
    chosen = lines[start : end + 1]
    margin = min(len(line) - len(line.lstrip()) for line in chosen if line.strip())
    return "\n".join(line[margin:] for line in chosen)


def shortened(text: str, head: int, tail: int) -> str:
    """The first `head` and the last `tail` lines; `...` stands for what is between them."""
    lines = text.rstrip("\n").splitlines()
    if len(lines) <= head + tail + 1:
        return "\n".join(lines)
    after = lines[-tail:]
    indent = " " * max(_indent(lines[head - 1]), _indent(after[0]))
    return "\n".join([*lines[:head], f"{indent}...", *after])


def _find(lines: list[str], pattern: str, start: int) -> int:
    for number, line in enumerate(lines[start:], start):
        if re.search(pattern, line):
            return number
    raise TreadleError(f"no line matches {pattern!r}", "excerpt", "a text that has changed less")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
