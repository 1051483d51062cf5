"""Calls of C compilers, and why one failed: each cause has its own remedy."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from treadle.environment import with_english_messages
from treadle.errors import TreadleError

WORKING_COMPILER = (
    "TREADLE_CC or CC naming a C compiler",
    "cc, gcc or clang on the PATH",
    "the ziglang wheel (pip install ziglang)",
)
"""What is accepted where no compiler works."""

_TEXT = "C11 with GNU extensions that calls the functions of treadle/backends/c/include/treadle.h"
_ROOM = "more room in the folder for temporary files (TMPDIR) and in the cache's (TREADLE_CACHE_DIR)"
_MEMORY = "more free memory, or fewer compilers at a time (one for each CPU of the process)"
_OTHER = "another version of the compiler (TREADLE_CC)"
_CAUSES = (
    (r"no space left on device|disk quota exceeded|file too large|file size limit exceeded", _ROOM),
    (r"cannot create temporary file|read-only file system", "TMPDIR naming a folder that can be written"),
    (r"killed signal|memory exhausted|out of memory|cannot allocate memory|: killed", _MEMORY),
    (r"internal compiler error|please submit a .*bug report", _OTHER),
    (
        r"-march|unknown (?:target )?cpu|unknown architecture",
        "a compiler that knows {march}, such as the ziglang wheel's (pip install ziglang)",
    ),
    (
        r"(?:unrecognized|unknown|unsupported|invalid) .*(?:option|argument)",
        "options that the compiler knows (TREADLE_CFLAGS, TREADLE_CC), or gcc or clang",
    ),
    (
        r"fatal error: \W*[\w/]+\.h\W+(?:no such file|file not found)|cannot find (?:-l|\S*crt)|(?:cannot|to) execute",
        "a complete compiler: the C library's headers (package libc6-dev), an assembler and a linker (binutils)",
    ),
    (r"undefined (?:reference|symbol)|file format not recognized|file truncated", "a compiler whose objects are whole"),
)  # fmt: skip
"""What compilers and linkers write, ignoring case, and what is accepted then; the first match counts."""
_SIGNALS = {signal.SIGKILL: _MEMORY, signal.SIGXFSZ: _ROOM}
_SOURCE_LINE = re.compile(r"\s*\d*\s*\|")
_FIRST_SIGNAL_STATUS = 128
_LOG_LINES = 40


def call(command: Sequence[str], what: str) -> subprocess.CompletedProcess[str]:
    """Runs a compiler; TreadleError if it does not start, or a signal ends it. `what` it compiles is named there."""
    variables = with_english_messages()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=variables)
    except OSError as error:
        raise TreadleError(f"{command[0]} does not run: {error}", what, WORKING_COMPILER) from error
    number = -done.returncode if done.returncode < 0 else done.returncode - _FIRST_SIGNAL_STATUS
    if number in set(signal.Signals):
        ended = signal.Signals(number)
        raise _noted(
            TreadleError(f"{command[0]} was ended by {ended.name}", what, _SIGNALS.get(ended, _OTHER)), command
        )
    return done


def write(command: Sequence[str], made: Path, what: str) -> None:
    """Runs a compiler that writes a file; TreadleError if it fails, or does not write it."""
    done = call(command, what)
    if done.returncode != 0:
        raise failure(command, done.stderr or f"exit status {done.returncode}", what)
    if not made.is_file() or made.stat().st_size == 0:
        raise _noted(TreadleError(f"{command[0]} reported success and wrote nothing", what, WORKING_COMPILER), command)


def failure(command: Sequence[str], log: str, what: str) -> TreadleError:
    """The error of a call that wrote this: the line that says why, and what is accepted; the log is a note."""
    lines = [line for line in log.splitlines() if line.strip()] or ["it wrote no message"]
    said = [line for line in lines if not _SOURCE_LINE.match(line)]
    for pattern, accepted in _CAUSES:
        first = next((line for line in said if re.search(pattern, line, re.IGNORECASE)), None)
        if first is not None:
            march = next((part for part in reversed(command) if part.startswith("-march=")), "the instruction set")
            return _failed(command, first, lines, what, accepted.format(march=march))
    first = next((line for line in said if "error" in line), lines[0])
    return _failed(command, first, lines, what, _TEXT)


def _failed(command: Sequence[str], line: str, lines: Sequence[str], what: str, accepted: str) -> TreadleError:
    error = _noted(TreadleError(f"{command[0]} failed: {line.strip()}", what, accepted), command)
    error.add_note("\n".join(lines[:_LOG_LINES]))
    return error


def _noted(error: TreadleError, command: Sequence[str]) -> TreadleError:
    error.add_note(" ".join(command))
    return error


__all__ = ["WORKING_COMPILER", "call", "failure", "write"]
