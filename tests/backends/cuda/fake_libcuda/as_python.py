"""`python -m ...as_python ARGUMENTS` runs them as Python would, with cubins replaced by what the fake driver loads."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

from tests.backends.cuda.fake_libcuda.setting import image
from treadle.backends.cuda import compiler
from treadle.backends.cuda.compiler import Cubin, Unit
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.emulator.build import kernels


def emulated(unit: Unit, arch: str) -> Cubin:
    """The text compiled for the emulator, as a cubin."""
    return Cubin(image(unit.text), arch, dict.fromkeys(kernels(unit.text), Resources(registers=32)))


def in_place_of_nvrtc(unit: Unit, header: str, arch: str, options: Sequence[str]) -> Cubin:
    """Compiles as `compiler._compile` does, for the emulator; it has a header and options of its own."""
    del header, options
    return emulated(unit, arch)


if __name__ == "__main__":
    compiler._compile = in_place_of_nvrtc
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
