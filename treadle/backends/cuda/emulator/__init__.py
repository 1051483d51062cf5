"""The emulator: CUDA C++ text compiled by the system's C++ compiler, run on the CPU and checked access by access."""

from treadle.backends.cuda.emulator.counters import Counters, LineCounters
from treadle.backends.cuda.emulator.emulator import CHECKS, Emulator
from treadle.backends.cuda.emulator.findings import Finding, FindingKind, Report

__all__ = ["CHECKS", "Counters", "Emulator", "Finding", "FindingKind", "LineCounters", "Report"]
