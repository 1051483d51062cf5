"""Compiles the fake `libcuda.so.1`, whose device is the emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from treadle.backends.cuda import emulator

COMPILER = shutil.which("g++")

_HERE = Path(__file__).parent
_RUNTIME = Path(emulator.__file__).parent / "runtime"
_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden")


def build_fake_libcuda(folder: Path) -> Path:
    """The library in `folder`, under the name that a CUDA program looks for.

    All sources are one text: most of what compiling one takes is the standard library's headers.
    """
    assert COMPILER is not None
    library = folder / "libcuda.so.1"
    whole = folder / "libcuda.cpp"
    whole.write_text("".join(f'#include "{source}"\n' for source in sorted(_HERE.glob("*.cpp"))))
    command = [COMPILER, *_FLAGS, f"-I{_RUNTIME}", str(whole), "-o", str(library), "-Wl,-soname,libcuda.so.1", "-ldl"]
    subprocess.run([*command, "-pthread"], check=True)
    return library
