"""`treadle run`: compiles a model, runs it once, and compares it with ONNX Runtime when asked to."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.api import compile
from treadle.artifact import Tensor
from treadle.errors import TreadleError
from treadle.model import CompiledModel, load
from treadle.tools.arguments import parse_shapes
from treadle.tools.oracle import compare, reference_outputs, tolerance
from treadle.tools.progress import progress

Array = NDArray[Any]


def run_command(args: argparse.Namespace) -> int:
    """Prints a line for each output; 1 if an output differs from the reference."""
    path = Path(args.model)
    given = read_inputs(args.input)
    shapes = {name: array.shape for name, array in given.items()} | parse_shapes(args.shape)
    if args.threads is not None and args.threads < 1:
        raise TreadleError(f"{args.threads} is not a number of threads", "--threads", "1 upwards")
    if args.seed < 0:
        raise TreadleError(f"{args.seed} is no seed", "--seed", "0 upwards")
    with progress() as tell:
        if path.is_dir():
            model = _packaged(path, args)
        else:
            model = compile(args.model, args.target or "cpu", shapes, threads=args.threads, tell=tell)
        inputs = _complete(model, given, args.seed)
        start = time.perf_counter()
        outputs = model.run(inputs)
        seconds = time.perf_counter() - start
    _describe(outputs)
    print(f"{seconds * 1e3:.2f} ms (the first run, which loads the kernels)")
    return _check(path, model, inputs, outputs) if args.check else 0


def read_inputs(arguments: Sequence[str]) -> dict[str, Array]:
    """`["x=f.npy"]` as arrays by name; a name may itself hold `=`. TreadleError for a file that is no .npy array."""
    inputs: dict[str, Array] = {}
    for argument in arguments:
        name, sign, file = argument.rpartition("=")
        if not sign or not name or not file:
            raise TreadleError(f"cannot read {argument!r}", "--input", "NAME=FILE.npy")
        try:
            array: object = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise TreadleError(f"cannot read the array: {error}", file, "a .npy file without objects") from error
        if not isinstance(array, np.ndarray):
            raise TreadleError("several arrays in one file", file, "a .npy file with one array")
        if name in inputs:
            raise TreadleError(f"two arrays for input '{name}'", "--input", "one array an input")
        inputs[name] = array
    return inputs


def sample(tensor: Tensor, generator: np.random.Generator) -> Array:
    """Values for an input: floats in [-1, 1); integers 0 and 1, which are valid ids and masks nearly everywhere."""
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        return generator.uniform(-1.0, 1.0, tensor.shape).astype(dtype)
    return generator.integers(0, 2, tensor.shape).astype(dtype)


def _packaged(path: Path, args: argparse.Namespace) -> CompiledModel:
    """The compiled model in a folder; TreadleError for an option that only the .onnx file could follow."""
    asked = {"--check": args.check, "--shape": args.shape, "--target": args.target}
    for option, value in asked.items():
        if value:
            raise TreadleError(f"{option} needs the model itself, not a compiled one", path, "an .onnx file")
    return load(path, args.threads)


def _complete(model: CompiledModel, given: dict[str, Array], seed: int) -> dict[str, Array]:
    """The given inputs; seeded random ones for the rest."""
    generator = np.random.default_rng(seed)
    drawn = {tensor.name: sample(tensor, generator) for tensor in model.inputs}
    return drawn | given


def _describe(outputs: dict[str, Array]) -> None:
    for name, array in outputs.items():
        shape = ", ".join(map(str, array.shape))
        values = f" from {array.min():.6g} to {array.max():.6g}" if array.size else ""
        print(f"{name}: {array.dtype}[{shape}]{values}")


def _check(path: Path, model: CompiledModel, inputs: dict[str, Array], outputs: dict[str, Array]) -> int:
    expected = reference_outputs(path, inputs, [tensor.name for tensor in model.outputs])
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    accepted = tolerance(path, shapes)
    results = [compare(name, outputs[name], expected[name], accepted) for name in expected]
    for result in results:
        print(result)
    return 0 if all(result.agrees for result in results) else 1
