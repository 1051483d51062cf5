"""`python -m ...as_python ARGUMENTS` runs them as Python would, with cubins replaced by what the fake driver loads."""

from __future__ import annotations

import runpy
import sys

from tests.backends.cuda.fake_libcuda.setting import image
from treadle.backends.cuda import compiler
from treadle.backends.cuda.compiler import Cubin, Unit
from treadle.backends.cuda.emulator.signature import kernels
from treadle.backends.cuda.resources import Resources


def emulated(unit: Unit, arch: str = "sm_80", options: object = ()) -> Cubin:
    """In place of NVRTC: the text compiled for the emulator."""
    return Cubin(image(unit.text), arch, dict.fromkeys(kernels(unit.text), Resources(registers=32)))


if __name__ == "__main__":
    compiler._compile = emulated
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
