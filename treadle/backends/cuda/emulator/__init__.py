"""The emulator: CUDA C++ text compiled by the system's C++ compiler, run on the CPU and checked access by access."""

from treadle.backends.cuda.emulator.emulator import CHECKS, Emulator, check_limit
from treadle.backends.cuda.emulator.findings import Finding, FindingKind, Report

__all__ = ["CHECKS", "Emulator", "Finding", "FindingKind", "Report", "check_limit"]
