"""What a call of a model on a GPU takes besides its graph: from arrays of the host, and from arrays on the device.

python -m benchmarks.device_calls FOLDER... [--device 1] [--calls 200] [--rounds 9]

An artifact a row, in microseconds, medians of rounds: its graph alone (by events); a call on arrays of the device
with a wait behind each (`latency`) and behind all (`in a row`); a call on arrays of NumPy. The arrays on the device are
PyTorch's where it has a GPU, else results of the model's own driver.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import treadle
from benchmarks.arguments import positive
from treadle.backends.cuda.device_array import DeviceArray
from treadle.backends.cuda.device_memory import DeviceMemory
from treadle.backends.cuda.executor import CudaProgram
from treadle.runtime.inputs import complete

Array = NDArray[Any]
COLUMNS = ("graph", "device, in a row", "device, latency", "host", "largest difference")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.device_calls", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="what `treadle compile --target sm_90a` wrote")
    parser.add_argument("--device", type=int, default=0, help="the number of the GPU")
    parser.add_argument("--calls", type=positive, default=200, help="calls of a round")
    parser.add_argument("--rounds", type=positive, default=9)
    options = parser.parse_args(arguments)
    print(f"{'us':32} {'  '.join(COLUMNS)}")
    for folder in options.folders:
        row = measured(folder, options.device, options.calls, options.rounds)
        print(f"{folder[-32:]:32} {'  '.join(f'{row[name]:>{len(name)}.4g}' for name in COLUMNS)}")
    return 0


def measured(folder: str, device: int, calls: int, rounds: int) -> dict[str, float]:
    """The columns of an artifact, the difference between results on the device and on the host as a number."""
    with treadle.load(folder, device=device) as model:
        inputs = complete(model.inputs, {}, 0)
        arrays = [inputs[tensor.name] for tensor in model.inputs]
        program = model.open()
        assert isinstance(program, CudaProgram)
        given, stream = on_device(arrays, program, device)
        driver = program._driver  # pyright: ignore[reportPrivateUsage]
        results, expected = model(*given, stream=stream), model(*arrays)
        pairs = [(result.numpy(), array) for result, array in zip(results, expected, strict=True)]

        def call() -> None:
            model(*given, stream=stream)

        return {
            "graph": 1e6 * median(program.measure(model.arguments(inputs), rounds)),
            "device, in a row": _microseconds(call, driver.synchronize, calls, calls, rounds),
            "device, latency": _microseconds(call, driver.synchronize, calls, 1, rounds),
            "host": _microseconds(lambda: model(*arrays), lambda: None, calls, 1, rounds),
            "largest difference": max(float(np.abs(np.subtract(a, b, dtype=np.float64)).max()) for a, b in pairs),
        }


def on_device(arrays: Sequence[Array], program: CudaProgram, device: int) -> tuple[list[Any], int | None]:
    """The arrays on the device, and the stream on which they are used."""
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") is not None else None
    if torch is not None and torch.cuda.is_available():
        with torch.cuda.device(device):
            return [torch.from_numpy(x).cuda() for x in arrays], torch.cuda.current_stream().cuda_stream
    driver = program._driver  # pyright: ignore[reportPrivateUsage]
    memory, made = DeviceMemory(driver, owns_driver=False), list[Any]()
    for x in arrays:
        made.append(DeviceArray(memory.take(x.nbytes, None), x.shape, x.dtype, None))
        driver.upload(made[-1].pointer, np.ascontiguousarray(x))
    driver.synchronize()
    return made, None


def _microseconds(call: Callable[[], object], wait: Callable[[], None], calls: int, behind: int, rounds: int) -> float:
    """Of one of `calls` calls; the host waits behind each `behind` of them."""
    times: list[float] = []
    for _ in range(rounds + 1):
        start = perf_counter()
        for n in range(calls):
            call()
            if (n + 1) % behind == 0:
                wait()
        times.append((perf_counter() - start) / calls)
    return 1e6 * median(times[1:])


if __name__ == "__main__":
    sys.exit(main())
