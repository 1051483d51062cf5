"""What kernels read in the emulator, by the argument that it is read from."""

from __future__ import annotations

import re

from treadle.backends.cuda.emulator import Report


def bytes_read(report: Report, buffer: str) -> int:
    """By loads from an argument of a kernel, whose counters were asked for."""
    assert report.counters is not None
    lines = [n for n in report.counters.lines if re.search(rf">\(&{buffer}\[", report.counters.text(n.line))]
    return sum(n.global_read for n in lines)
