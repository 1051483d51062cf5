"""The emulator: CUDA C++ text compiled by the system's C++ compiler, run on the CPU and checked access by access."""

from treadle.backends.cuda.emulator.counters import Counters, LineCounters
from treadle.backends.cuda.emulator.emulator import CHECKS, Emulator, check_limit
from treadle.backends.cuda.emulator.findings import Finding, FindingKind, Report
from treadle.backends.cuda.emulator.options import Emulation

__all__ = [
    "CHECKS",
    "Counters",
    "Emulation",
    "Emulator",
    "Finding",
    "FindingKind",
    "LineCounters",
    "Report",
    "check_limit",
]
