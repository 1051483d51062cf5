"""The sanitizers: flags that instrument compiled C, and the environment of a Python that loads such libraries."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.backends.c.toolchains import COMMANDS

_COMMON = ("-g1", "-O1", "-fno-omit-frame-pointer")
"""Compiled four times as fast as with -O3, and line numbers in reports."""
_PROGRAM = '#include <stdio.h>\nint main(void) { return puts("runs") < 0; }\n'


@dataclass(frozen=True, eq=False)
class Sanitizer:
    """How code is instrumented.

    flags:    of the compiler and the linker
    runtimes: what a process that loads instrumented code preloads
    options:  the runtimes' variables, where FOLDER stands for that of their reports
    """

    flags: tuple[str, ...]
    runtimes: tuple[str, ...]
    options: Mapping[str, str]

    def preloaded(self, folder: Path) -> dict[str, str]:
        """Variables for a Python whose compiled models are instrumented, and whose reports lie in a folder."""
        libraries = " ".join(_library(name) for name in self.runtimes)
        options = {name: text.replace("FOLDER", str(folder)) for name, text in self.options.items()}
        own = {"LD_PRELOAD": libraries, "TREADLE_CC": COMMANDS["gcc"][0], "TREADLE_CFLAGS": " ".join(self.flags)}
        return {**own, "TREADLE_SANITIZER_FLAGS": " ".join(self.flags), **options}


# Python and the libraries that it loads leave memory to the end of the process.
ADDRESS = Sanitizer(
    ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", *_COMMON),
    ("libasan.so", "libubsan.so"),
    {
        "ASAN_OPTIONS": "detect_leaks=0:log_path=FOLDER/address",
        "UBSAN_OPTIONS": "print_stacktrace=1:log_path=FOLDER/undefined",
    },
)
# Python is not instrumented: only what compiled models do is checked.
THREAD = Sanitizer(
    ("-fsanitize=thread", *_COMMON),
    ("libtsan.so",),
    {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1:log_path=FOLDER/thread"},
)


def _library(name: str) -> str:
    command = [*COMMANDS["gcc"], f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@cache
def why_not(sanitizer: Sanitizer) -> str | None:
    """Why programs cannot run under it here; None if they can."""
    if "gcc" not in COMMANDS:
        return "no gcc"
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "main.c").write_text(_PROGRAM)
        command = [*COMMANDS["gcc"], *sanitizer.flags, str(folder / "main.c"), "-o", str(folder / "main")]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiled.returncode != 0:
            return f"gcc has no {' '.join(sanitizer.runtimes)}"
        ran = subprocess.run([str(folder / "main")], capture_output=True, text=True, check=False)
        return None if ran.returncode == 0 else f"programs do not run: {(ran.stderr.splitlines() or [''])[0]}"


def program_of(sources: Sequence[Path], target: Path, sanitizer: Sanitizer, *more: str) -> Path:
    """A program of C sources and archives, instrumented."""
    command = [*COMMANDS["gcc"], *sanitizer.flags, *map(str, sources), *more, "-lm", "-lpthread", "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


__all__ = ["ADDRESS", "THREAD", "Sanitizer", "program_of", "why_not"]
