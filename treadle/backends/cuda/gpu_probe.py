"""Whether this machine has a GPU that can be used. Needs the standard library alone: `make` asks before it installs.

python treadle/backends/cuda/gpu_probe.py     # exits with 1 and prints the reason where there is none
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


@cache
def why_no_gpu(library: str = LIBRARY) -> str | None:
    """Why no GPU can be used, in one line; None where one can. The first answer holds for the process."""
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return f"no GPU: the NVIDIA driver is not installed ({library} cannot be loaded)"
    status = driver.cuInit(0)
    if status != 0:
        return f"no GPU: the NVIDIA driver does not start (cuInit: {_name(driver, status)})"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return "no GPU: the NVIDIA driver is installed and finds no device"
    return None


def _name(driver: ctypes.CDLL, status: int) -> str:
    """The driver's name of an error."""
    name = ctypes.c_char_p()
    if driver.cuGetErrorName(status, ctypes.byref(name)) != 0 or name.value is None:
        return f"error {status}"
    return name.value.decode()


if __name__ == "__main__":
    reason = why_no_gpu()
    if reason is not None:
        print(reason)
    sys.exit(reason is not None)
