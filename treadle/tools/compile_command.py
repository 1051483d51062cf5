"""`treadle compile`: a model as a folder of code and weights, or as the IR after a stage."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from treadle.api import compile, resolve_target
from treadle.artifact.artifact import is_artifact
from treadle.backends.c.static_library import check_library, library_files, write_library
from treadle.errors import TreadleError
from treadle.model import CompiledModel, load
from treadle.passes.lower.identifiers import identifier
from treadle.schedules.search.database_files import open_database
from treadle.shapes.dim import Shapes
from treadle.shapes.states import States
from treadle.support.lazy import lazy_module
from treadle.support.output import STDOUT
from treadle.support.progress import Progress
from treadle.support.publishing import check_replaceable, publish
from treadle.target import Target
from treadle.target.options import CompileOptions, parse_construction, parse_convolution, parse_weights
from treadle.tools.arguments import parse_shapes, parse_states, read_constants
from treadle.tools.progress_bar import progress_bar

# What a compiled model in a folder computes: by itself, so that a child process imports nothing that compiles.

Array = NDArray[Any]


def outputs_of_artifact(folder: str, emulated: bool, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """The outputs for `inputs`, in order; `emulated`: of code for a GPU on the emulator."""
    with load(folder, device="emulator" if emulated else None) as model:
        return model(*inputs)


if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from xdsl.dialects.builtin import ModuleOp

    from treadle.compiler import pipeline
    from treadle.compiler import request as compile_request
    from treadle.frontends import torch as torch_frontend
    from treadle.onnxruntime import custom_operator
    from treadle.passes import instruments
else:  # a model from the cache does not wait for the compiler
    compile_request, pipeline = lazy_module("treadle.compiler.request"), lazy_module("treadle.compiler.pipeline")
    instruments, torch_frontend = lazy_module("treadle.passes.instruments"), lazy_module("treadle.frontends.torch")
    custom_operator = lazy_module("treadle.onnxruntime.custom_operator")


LIBRARY = "c-library"
OPERATOR = "onnx"
MLIR = "mlir"


def compile_command(args: argparse.Namespace) -> int:
    """Writes the folder of `-o` in one step; raises TreadleError before any work where it cannot be written.

    A link to a folder is followed. `-o -` prints the IR of `--to` or `--emit mlir` on stdout.
    """
    writes_ir = args.to is not None or args.emit == MLIR
    if args.to is not None and args.emit not in (None, MLIR):
        raise TreadleError(f"--to writes IR, --emit {args.emit} code", "arguments", f"one of them, or --emit {MLIR}")
    if args.name is not None and args.emit not in (LIBRARY, OPERATOR):
        raise TreadleError("a name without a library", "--name", (f"--emit {LIBRARY}", f"--emit {OPERATOR}"))
    if args.output == STDOUT and not writes_ir:
        raise TreadleError("a compiled model is a folder", "-o -", "a folder; '-' (stdout) takes the IR of --to STAGE")
    output = Path(os.path.realpath(args.output))
    shapes = parse_shapes(args.shape)
    trace = None if args.trace is None else Path(args.trace)
    if trace is not None and trace.resolve().is_relative_to(output.resolve()):
        raise TreadleError("the trace's folder lies in that of -o, which is replaced", trace, "another folder")
    if writes_ir:
        return _write_stage(args, output, shapes, trace)
    if args.emit in (LIBRARY, OPERATOR):
        return _write_library(args, output, shapes, trace)
    check_replaceable(output, is_artifact)
    with progress_bar() as progress:
        model = _compiled(args, args.target or "cpu", shapes, trace, progress)
    model.save(output)
    kernels = [name for name in model.manifest.files if name.endswith((".c", ".cu"))]
    size = sum((output / name).stat().st_size for name in model.manifest.files)
    print(f"{args.output}: {len(kernels)} units of {model.target} code, {size / 1e6:.1f} MB")
    _print_weights(model.manifest.weights)
    return 0


def _print_weights(weights: Mapping[str, str]) -> None:
    """What quantising the weights did; nothing where they are as the model has them."""
    if weights:
        before, after = (int(weights[key]) / 1e6 for key in ("bytes_before", "bytes"))
        print(
            f"weights of {weights['matrices']} products in {weights['kind']}: {before:.2f} MB became {after:.2f} MB; "
            f"error {weights['rms_error']} (root mean square, of the weights'), at most {weights['largest_error']} of "
            f"a matrix's largest weight"
        )


def _compiled(
    args: argparse.Namespace, target: str | Target, shapes: Shapes, trace: Path | None, progress: Progress
) -> CompiledModel:
    return compile(
        _program(Path(args.model)) if args.trust_pickle else args.model,
        target, shapes, constants=read_constants(args.input), precision=args.precision or "f32",
        weights=args.weights, convolution=args.convolution, states=parse_states(args.states),
        trace_dir=trace, database=args.database, construct=args.construct, after=args.after,
        explain_fusion=args.explain_fusion, progress=progress,
    )  # fmt: skip


def _write_library(args: argparse.Namespace, output: Path, shapes: Shapes, trace: Path | None) -> int:
    is_operator = args.emit == OPERATOR
    is_replaceable = _holds_an_operator if is_operator else _holds_a_library
    check_replaceable(output, is_replaceable)
    target = resolve_target(args.target or "cpu")
    name = identifier(Path(args.model).stem, "model") if args.name is None else args.name
    check, write = (
        (custom_operator.check_operator, custom_operator.write_operator)
        if is_operator
        else (check_library, write_library)
    )
    check(target, name)
    with progress_bar() as progress:
        model = _compiled(args, target, shapes, trace, progress)
        publish(output, lambda folder: write(model.artifact, target, name, folder, progress), replace=is_replaceable)
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"{args.output}: {', '.join(sorted(path.name for path in output.iterdir()))}, {size / 1e6:.1f} MB")
    _print_weights(model.manifest.weights)
    return 0


def _write_stage(args: argparse.Namespace, output: Path, shapes: Shapes, trace: Path | None) -> int:
    printed = args.output == STDOUT
    if not printed:
        check_replaceable(output, _holds_only_ir)
    stage = args.to or pipeline.STAGE_NAMES[-1]
    pipeline.stages_between(None, stage)
    target = resolve_target(args.target or "cpu")
    with progress_bar() as progress:
        algorithm = parse_convolution(args.convolution, target.kind)
        construction = parse_construction(args.construct)
        options = CompileOptions(
            args.precision or "f32", args.explain_fusion, _database(args.database), algorithm, construction,
            parse_weights(args.weights),
        )  # fmt: skip
        states = parse_states(args.states)
        model: Path | ModuleOp = Path(args.model)
        if args.trust_pickle:
            model, states = _imported(model, states), None
        request = compile_request.CompileRequest(
            model,
            target,
            shapes,
            trace,
            options=options,
            progress=progress,
            after=args.after,
            constants=read_constants(args.input),
            states=states,
        )
        module = compile_request.lowered_module(request, stage)
        pipeline.record_stage(module, stage)
    text = instruments.ir_text(module, generic=args.emit == MLIR)
    if printed:
        print(text, end="")
        return 0
    publish(output, lambda folder: _write(folder / f"{stage}.mlir", text), replace=_holds_only_ir)
    print(f"{Path(args.output) / stage}.mlir: the IR after stage {stage}")
    return 0


def _imported(path: Path, states: States | None) -> ModuleOp:
    """The module of a `.pt2` file, with its states."""
    return torch_frontend.import_exported(torch_frontend.exported(_program(path), None), states)


def _program(path: Path) -> ExportedProgram:
    """What a `.pt2` file holds; TreadleError without PyTorch."""
    if find_spec("torch") is None:
        raise TreadleError("PyTorch is not installed", "--trust-pickle", "pip install treadle[torch]")
    return torch_frontend.trusted_program(path)


def _database(folder: str | None) -> str:
    """The folder's absolute path; TreadleError if there is none."""
    return "" if folder is None else str(open_database(Path(folder).resolve()).folder)


def _holds_a_library(folder: Path) -> bool:
    """Whether a folder holds an earlier library and nothing else."""
    files = list(folder.iterdir())
    headers = [path.stem for path in files if path.suffix == ".h"]
    return len(headers) == 1 and {path.name for path in files} <= set(library_files(headers[0]))


def _holds_an_operator(folder: Path) -> bool:
    """Whether a folder holds an earlier operator and nothing else."""
    files = list(folder.iterdir())
    models = [path.stem for path in files if path.suffix == ".onnx"]
    return len(models) == 1 and {path.name for path in files} <= set(custom_operator.operator_files(models[0]))


def _holds_only_ir(folder: Path) -> bool:
    return all(path.suffix == ".mlir" for path in folder.iterdir())


def _write(path: Path, text: str) -> None:
    path.write_text(text)
