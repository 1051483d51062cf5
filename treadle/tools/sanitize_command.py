"""`treadle sanitize`: runs the kernels of a CUDA file on the CPU, and says what their threads do wrong."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.backends.cuda.emulator import CHECKS, Emulator, Report
from treadle.backends.cuda.emulator.build import PATTERN, without_comments
from treadle.backends.cuda.emulator.emulator import LIMIT
from treadle.errors import TreadleError
from treadle.runtime.run import save_outputs
from treadle.tools.launch_text import ArrayText, LaunchText, made, parse_launch, unwritten_bytes
from treadle.tools.profile_table import print_profile

Array = NDArray[Any]

_FOREIGN = (
    (re.compile(r"\basm\b(?:\s+volatile\b)?\s*\("), "inline PTX", "functions of CUDA C++, or of treadle_cuda.h"),
    (re.compile(r"<<<"), "a launch", "kernels and what they call: --launch says how they are launched"),
    (re.compile(r"\b(?:nvcuda::)?wmma::\w+"), "nvcuda::wmma", "treadle_mma of treadle_cuda.h"),
    (re.compile(r"\bcooperative_groups\b"), "cooperative groups", "__syncthreads, __syncwarp and shuffles"),
    (re.compile(r"\bcuda(?:Malloc|Memcpy|Free|Launch|Device|Stream|Event)\w*\s*\("), "a call of the host's API",
     "kernels and what they call"),
)  # fmt: skip
"""What the emulator does not know, and what it takes."""


def sanitize_command(args: argparse.Namespace) -> int:
    """Runs the command; 1 if a check found something. TreadleError for a text or a launch that cannot run."""
    launches = [parse_launch(text) for text in args.launch]
    path = Path(args.file)
    emulator = opened(path, _checks(args.checks), args.profile, LIMIT if args.limit is None else args.limit)
    memory = _Memory(np.random.default_rng(args.seed))
    reports = [_launch(emulator, launch, memory) for launch in launches]
    memory.describe()
    if args.save is not None:
        save_outputs(memory.arrays, Path(args.save))
    if args.profile:
        print_profile(reports)
    findings = dict.fromkeys(str(finding) for report in reports for finding in report.findings)
    for finding in findings:
        print(f"{path.name}: {finding}")
    print(f"findings: {len(findings)}; launches: {len(reports)}")
    return 1 if findings else 0


def opened(path: Path, checks: Sequence[str], counters: bool, limit: float) -> Emulator:
    """A file's kernels; TreadleError for what the emulator does not know, with its line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise TreadleError(f"cannot read: {reason}", path, "a file of CUDA C++") from error
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", path.name)
    try:
        return Emulator(text, checks, counters=counters, name=name, limit=limit)
    except TreadleError as error:
        raise foreign(text, name) or error from error


def foreign(text: str, name: str) -> TreadleError | None:
    """The error for the first construct of a text that the emulator does not know by name; None if there is none."""
    plain = without_comments(text)
    found = [(match.start(), what, accepted) for form, what, accepted in _FOREIGN if (match := form.search(plain))]
    if not found:
        return None
    start, what, accepted = min(found)
    number = text.count("\n", 0, start) + 1
    line = text.splitlines()[number - 1].strip()
    return TreadleError(f"{what} is not emulated: {line!r}", f"{name}:{number}", accepted)


def _checks(given: str | None) -> tuple[str, ...]:
    return tuple(CHECKS) if given is None else tuple(each for each in given.split(",") if each)


class _Memory:
    """The device's arrays by name."""

    def __init__(self, random: np.random.Generator):
        self._random = random
        self.arrays: dict[str, Array] = {}
        self._texts: dict[str, ArrayText] = {}

    def argument(self, given: ArrayText | str | float, parameter: str) -> object:
        """What the emulator takes for an argument; TreadleError for the name of an array that there is not."""
        if isinstance(given, ArrayText):
            name = self._free(given.name or parameter)
            self.arrays[name] = made(given, self._random, PATTERN)
            self._texts[name] = given
            return self.arrays[name]
        if not isinstance(given, str):
            return given
        if given not in self.arrays:
            accepted = list(self.arrays) or "NAME=TYPE[EXTENTS] before it"
            raise TreadleError(f"no array '{given}'", "--launch", accepted)
        return self.arrays[given]

    def _free(self, name: str) -> str:
        """The name, with a number behind it if an earlier launch had one of that name."""
        number = 2
        free = name
        while free in self.arrays:
            free, number = f"{name}{number}", number + 1
        return free

    def describe(self) -> None:
        """A line for each array: its numbers, and how many elements nobody wrote."""
        for name, array in self.arrays.items():
            text = self._texts[name]
            shape = ", ".join(map(str, array.shape))
            missing = self._unwritten(text, array)
            numbers = array.astype(np.float64)
            known = numbers[np.isfinite(numbers)]
            values = f" from {known.min():.6g} to {known.max():.6g}" if known.size else ""
            odd = numbers.size - known.size - missing
            more = [f"{missing} not written"] if missing else []
            more += [f"{odd} infinite or not a number"] if odd > 0 else []
            print(f"{name}: {text.type}[{shape}]{values}{', of ' + str(array.size) + ' elements ' if more else ''}"
                  f"{', '.join(more)}")  # fmt: skip

    @staticmethod
    def _unwritten(text: ArrayText, array: Array) -> int:
        """Elements that still are what unwritten memory has; of one byte that could be any number."""
        if text.filled != "out" or array.itemsize < 2:
            return 0
        pattern = np.frombuffer(unwritten_bytes(text, array.dtype, PATTERN), np.uint8).reshape(array.size, -1)
        return int((array.reshape(-1).view(np.uint8).reshape(array.size, -1) == pattern).all(axis=1).sum())


def _launch(emulator: Emulator, launch: LaunchText, memory: _Memory) -> Report:
    if launch.kernel not in emulator.kernels:
        accepted = emulator.kernels or 'extern "C" __global__ functions'
        raise TreadleError(f"no kernel '{launch.kernel}'", "--launch", accepted)
    parameters = emulator.kernels[launch.kernel].parameters
    if len(parameters) != len(launch.args):
        message = f"{launch.kernel} takes {len(parameters)} arguments, not {len(launch.args)}"
        raise TreadleError(message, "--launch", ", ".join(parameters) or "none")
    given = [memory.argument(each, name) for each, name in zip(launch.args, parameters, strict=True)]
    start = time.perf_counter()
    report = emulator.launch(launch.kernel, launch.grid, launch.block, given, launch.shared_bytes)
    print(f"{launch}, {(time.perf_counter() - start) * 1e3:.2f} ms on the emulator")
    return report
