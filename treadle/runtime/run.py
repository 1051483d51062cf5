"""`treadle-run`: calls a compiled model, as `treadle run FOLDER` does, without the compiler."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.backends.interface import file_names
from treadle.errors import TreadleError
from treadle.runtime.inputs import check_of_model, inputs_of, read_inputs
from treadle.runtime.model import Model, load
from treadle.support.commands import Parser, run_reporting
from treadle.support.version import __version__

Array = NDArray[Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the tool on `argv` (default: the process's arguments).

    The exit status: 0; 2 if an input or a setting cannot be accepted, with one line on stderr; 130 after Ctrl-C.
    """
    return run_reporting("treadle-run", lambda: _run(_parser().parse_args(argv)))


def _parser() -> Parser:
    parser = Parser(prog="treadle-run", description="Calls a compiled model and describes its outputs.")
    parser.add_argument("--version", action="version", version=f"treadle-run {__version__}")
    parser.add_argument("folder", help="what `treadle compile` wrote")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy", help="an input's array; repeatable"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the inputs that are drawn (default: 0)")
    parser.add_argument("--threads", type=int, help="cpu: threads of a call")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="time N more calls")
    parser.add_argument("--rebuild", action="store_true", help="compile the folder's C or CUDA text anew")
    parser.add_argument("--save", metavar="DIR", help="write each output to DIR/NAME.npy")
    return parser


def check_call_options(args: argparse.Namespace) -> None:
    """TreadleError for numbers that are none of threads, calls, or a seed."""
    if args.threads is not None and args.threads < 1:
        raise TreadleError(f"{args.threads} is not a number of threads", "--threads", "1 upwards")
    if args.repeat < 0:
        raise TreadleError(f"{args.repeat} calls", "--repeat", "0 upwards")
    if args.seed < 0:
        raise TreadleError(f"{args.seed} is no seed", "--seed", "0 upwards")


def _run(args: argparse.Namespace) -> int:
    check_call_options(args)
    folder, given = Path(args.folder), read_inputs(args.input)
    check_of_model(given, folder)
    with load(folder, args.threads, rebuild=args.rebuild) as model:
        inputs = inputs_of(model, given.arrays, args.seed)
        start = time.perf_counter()
        outputs = model.run(inputs)
        seconds = time.perf_counter() - start
        repeated = [timed(model, inputs) for _ in range(args.repeat)]
    describe(outputs)
    print(f"{seconds * 1e3:.2f} ms (the first run, which loads the kernels)")
    if repeated:
        print(spread(repeated))
    if args.save is not None:
        save_outputs(outputs, Path(args.save))
    return 0


def timed(model: Model, inputs: Mapping[str, Array]) -> float:
    """Seconds of a call, in which states are empty."""
    model.rewind()
    start = time.perf_counter()
    model.run(inputs)
    return time.perf_counter() - start


def spread(seconds: Sequence[float]) -> str:
    """The median and the quartiles of calls."""
    low, middle, high = np.percentile(seconds, [25, 50, 75]) * 1e3
    return f"{middle:.2f} ms (median of {len(seconds)} more calls; quartiles {low:.2f} and {high:.2f})"


def save_outputs(outputs: Mapping[str, Array], folder: Path) -> None:
    """Writes `NAME.npy` for each output; TreadleError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stem, array in zip(file_names(list(outputs)), outputs.values(), strict=True):
            # The types of `ml_dtypes` have no name in such a file, and one that NumPy writes it does not read.
            named = array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")
            np.save(folder / f"{stem}.npy", named, allow_pickle=False)
    except OSError as error:
        reason = error.strerror or error
        raise TreadleError(f"cannot write: {reason}", folder, "a folder that can be written") from error


def describe(outputs: Mapping[str, Array]) -> None:
    """Prints a line for each output."""
    for name, array in outputs.items():
        shape = ", ".join(map(str, array.shape))
        values = f" from {array.min():.6g} to {array.max():.6g}" if array.size else ""
        print(f"{name}: {array.dtype}[{shape}]{values}")


if __name__ == "__main__":
    raise SystemExit(main())
