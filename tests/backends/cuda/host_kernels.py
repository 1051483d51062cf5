"""Printed CUDA text compiled by g++ for the processor: kernels that a fake device can run."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.backends.cuda.fake_driver import Kernel, Memory
from treadle.backends.cuda.compiler import HEADER

COMPILER = shutil.which("g++")
SHIM = Path(__file__).parent / "host_shim.h"
_NAME = re.compile(r"__launch_bounds__\(\d+\) (\w+)\(")


def host_kernels(texts: Sequence[str], shapes: Mapping[str, tuple[int, int]], folder: Path) -> dict[str, Kernel]:
    """The kernels of some printed units by name, for a `FakeDriver`; `shapes` gives their blocks and threads."""
    assert COMPILER is not None
    source, library = folder / "kernels.cc", folder / "kernels.so"
    names = [name for text in texts for name in _NAME.findall(text)]
    entries = [
        f'extern "C" void run_{name}(void **arguments, unsigned grid, unsigned threads)'
        f" {{ treadle_launch({name}, arguments, grid, threads); }}"
        for name in names
    ]
    source.write_text("\n".join([f'#include "{SHIM}"', *texts, *entries, ""]))
    options = ["-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", "-ffp-contract=off", f"-I{HEADER.parent}"]
    subprocess.run([COMPILER, *options, "-o", str(library), str(source)], check=True)
    loaded = ctypes.CDLL(str(library))
    return {name: _kernel(getattr(loaded, f"run_{name}"), *shapes[name]) for name in names}


def _kernel(entry: Callable[..., Any], grid: int, threads: int) -> Kernel:
    def run(memory: Memory, *positions: int) -> None:
        addresses = [memory.ctypes.data + 4 * position for position in positions]
        entry((ctypes.c_void_p * len(addresses))(*addresses), grid, threads)

    return run
