"""From addresses in a compiled text to lines of the text, through the library's debug information."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

_TOOLS = ("addr2line", "llvm-addr2line")


def lines_of(library: Path, offsets: Iterable[int], name: str) -> dict[int, int]:
    """The line of the text `name` for each return address (as an offset in the library).

    Where a function of a header was inlined, the line of the text that called it. An address that has no
    line, and every address where the tool is absent, is left out.
    """
    wanted = sorted({offset for offset in offsets if offset > 0})
    tool = next((path for each in _TOOLS if (path := shutil.which(each)) is not None), None)
    if tool is None or not wanted:
        return {}
    # A return address may begin the next line's code.
    command = [tool, "-a", "-i", "-e", str(library), *(hex(offset - 1) for offset in wanted)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found: dict[int, int] = {}
    current = 0
    for row in done.stdout.splitlines():
        if row.startswith("0x"):
            current = int(row, 16) + 1
            continue
        file, _, number = row.split(" ")[0].rpartition(":")
        if current not in found and number.isdigit() and Path(file).name == name:
            found[current] = int(number)
    return found
