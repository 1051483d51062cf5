"""The emulator: CUDA C++ text compiled by the system's C++ compiler, run on the CPU and checked access by access."""

from treadle.backends.cuda.emulator.emulator import CHECKS, Emulator, check_limit
from treadle.backends.cuda.emulator.launches import Emulation
from treadle.backends.cuda.emulator.reports import Counters, Finding, FindingKind, LineCounters, Report

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
