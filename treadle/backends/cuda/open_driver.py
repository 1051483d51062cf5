"""Which binding to the GPU's driver is used: cuda-bindings where they are installed, else pycuda."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from treadle.backends.cuda import bindings_driver
from treadle.backends.cuda.bindings_driver import BindingsDriver
from treadle.backends.cuda.driver import Device
from treadle.backends.cuda.pycuda_driver import PycudaDriver
from treadle.environment import load_environment
from treadle.errors import TreadleError

DRIVERS: Mapping[str, type[BindingsDriver] | type[PycudaDriver]] = {"bindings": BindingsDriver, "pycuda": PycudaDriver}
"""By the name that TREADLE_CUDA_DRIVER takes. Both queue the same work; bindings also come as wheels."""


def open_driver(device: int = 0, name: str | None = None) -> Device:
    """The GPU number `device` through the driver `name` (default: TREADLE_CUDA_DRIVER, else what is installed).

    Raises `TreadleError` where neither binding is installed, and where there is no such GPU.
    """
    chosen = name or load_environment().cuda_driver or _installed()
    return DRIVERS[chosen](device)


def _installed() -> str:
    if bindings_driver.are_installed():
        return "bindings"
    if importlib.util.find_spec("pycuda") is not None:
        return "pycuda"
    raise TreadleError(
        "neither cuda-bindings nor pycuda is installed",
        where=bindings_driver.PLACE,
        accepted=f"{bindings_driver.WHEEL}, or pip install pycuda where CUDA's headers are",
    )
