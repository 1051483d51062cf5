"""`compile`: a model in, a callable model out. What was compiled before comes from the cache, without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from treadle.artifact.cache import artifact_key, find_artifact, store_artifact
from treadle.artifact.store import store_of
from treadle.backends.c.compiler import find_toolchain
from treadle.backends.c.executor import ThreadPool
from treadle.backends.cuda.compiler import nvrtc_is_installed, nvrtc_version
from treadle.backends.cuda.driver import check_toolkit
from treadle.backends.cuda.emulator import Emulation
from treadle.backends.cuda.open_driver import open_driver
from treadle.environment import Environment, load_environment
from treadle.errors import TreadleError
from treadle.model import CompiledModel, check_device
from treadle.plugins.loader import load_plugins
from treadle.runtime.model import check_threads
from treadle.schedules.search.database_files import open_database
from treadle.shapes.constants import Array, Constants, constants_text, normalized_constants
from treadle.shapes.dim import Dim, Shapes, normalized
from treadle.shapes.states import States, states_text
from treadle.support.files import MODEL_BYTES, read_regular
from treadle.support.lazy import lazy_module
from treadle.support.progress import Progress, no_progress
from treadle.target import Target
from treadle.target.host import hardware_of, host_target
from treadle.target.options import (
    DEVICES,
    CompileOptions,
    Device,
    gpu_number,
    parse_construction,
    parse_convolution,
    parse_precision,
    parse_weights,
)

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch.export import ExportedProgram
    from torch.nn import Module
    from xdsl.dialects.builtin import ModuleOp

    from treadle.compiler import artifact_writer
    from treadle.compiler import request as compile_request
    from treadle.dialects import location
    from treadle.frontends import torch as torch_frontend
    from treadle.frontends.onnx import loader

    Model = str | Path | ModelProto | ModuleOp | Module | ExportedProgram
else:  # a model from the cache does not wait for the compiler
    artifact_writer = lazy_module("treadle.compiler.artifact_writer")
    compile_request = lazy_module("treadle.compiler.request")
    loader, location = lazy_module("treadle.frontends.onnx.loader"), lazy_module("treadle.dialects.location")
    torch_frontend = lazy_module("treadle.frontends.torch")

_OF_TORCH = {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"}

_TEXT_ALONE = "the kernels are text without cubins, which the emulator runs and a GPU does not"
EMULATED = "sm_80"
"""The GPU that the target "cuda" means on the emulator: the oldest for which all templates are."""


def compile(
    model: Model,
    target: str | Target = "cpu",
    shapes: Shapes | None = None,
    *,
    constants: Constants | None = None,
    states: States | None = None,
    example_inputs: Sequence[object] | None = None,
    dynamic_shapes: object = None,
    precision: str = "f32",
    weights: str | None = None,
    convolution: str | None = None,
    database: str | Path | None = None,
    construct: str | None = None,
    after: str | None = None,
    threads: int | ThreadPool | None = None,
    device: Device | None = None,
    checks: Sequence[str] = (),
    counters: bool = False,
    limit: float | None = None,
    trace_dir: str | Path | None = None,
    explain_fusion: bool = False,
    cached: bool = True,
    progress: Progress = no_progress,
) -> CompiledModel:
    """Compiles a model, or takes it from the cache.

    model:     path of an .onnx or .mlir file, an onnx.ModelProto that holds its weights, or a module whose @main is of
               graph operators (left as it is); a torch.nn.Module in evaluation mode, or a torch.export.ExportedProgram
    target:    "cpu" for this machine's processor, "avx2" or "sm_80" and the like, a `Target` or its text for other
               hardware ("sm_80{multiprocessors=56}"), or "cuda" for this machine's GPU (the emulator's: sm_80)
    shapes:    a shape for each input that the file leaves dynamic, such as `{"x": (1, 3, 48, 320)}`, or an extent for
               each dynamic dimension by its name, `{"batch": 1}`; a `Dim` in it is a range, all of which is served
    constants: of an ONNX model: values of inputs that are the same in every call, such as `{"sr": 16000}`, in the types
               of these inputs: the compiled model does not take them, and what depends on them alone is computed at
               compile time
    states:    inputs that are outputs of the call before, such as `{"past": "present"}`, which the compiled model keeps
               itself and changes in place where they only grow; "auto": those that exporters name alike,
               `past_key_values.0.key` and `present.0.key`. The buffers that a model of PyTorch writes are states, too
    example_inputs: of a torch.nn.Module: what `forward` is called with, in order; the shapes of the tensors among them
               are those of the calls, everything else is a constant
    dynamic_shapes: of a torch.nn.Module: which of those extents are ranges, as `torch.export.export` takes them, such
               as `({0: torch.export.Dim("n", max=512)},)`; a range needs an end, for which memory is planned
    precision: "f16" or "bf16" for the operands and results of products, convolutions and attention (weights take half
               the memory; sums, norms and functions stay f32), "tf32" for their tensor-core arithmetic only
    weights:   "int4" or "int8" stores the constant matrices of products so, with a scale for 32 rows of a column each,
               "bf16" in that type; activations and sums keep theirs. Default: "float", as the model has them.
               `manifest.weights` of the result says how many bytes and what error that made
    convolution: of CPUs, in f32: "direct", or "winograd2" or "winograd4" where 3x3 filters are estimated to be faster
               by Winograd's F(2x2), or up to F(4x4), which has twice the rounding errors; default: "winograd2"
    database:  folder of tuned schedules (`treadle tune`), which are taken where it has some for this hardware
    construct: how kernels without a tuned schedule get one: "default" as their template says, or what a "walk" (as
               Gensor's; "walk-paper" by its formulas as printed), "greedy" construction (as Roller's), an "evolution"
               or "evolution-annealed" (as MetaSchedule's), or an "exhaustive" search of the templates' spaces predicts
               to be fastest, in seconds a kernel; nothing is timed
    after:     of a module: the stage that left it, such as "schedule", whose decisions may have been edited
    threads:   cpu: threads of a call, or a `ThreadPool` that several models share; default: the variable
               TREADLE_NUM_THREADS
    device:    which GPU runs the model, as a number, "cuda:1" or a torch.device (default: the first); the target "cuda"
               then means that one. "emulator" runs a GPU target's kernels on the CPU, and needs no NVRTC
    checks:    emulator: what is checked of every memory access and barrier, see `treadle.backends.cuda.emulator`
    counters:  emulator: whether to count what each line of the kernels does
    limit:     emulator: seconds that a kernel may take (default: 60, and 600 with checks or counters)
    trace_dir: where the numbered IR after each pass is written; a traced model is never taken from the cache
    explain_fusion: print to stderr which neighbours share a kernel, and why (not); never taken from the cache, either
    cached:    False compiles even what the cache has
    progress:  called with each step that begins, as text, and the fraction (0 to 1) that is done

    TreadleError: a file that is no model, an unsupported operator, shapes or constants that do not fit, no compiler,
    and the like.
    """
    load_plugins()
    environment = load_environment()
    trace = environment.trace_dir if trace_dir is None else Path(trace_dir)
    chosen = resolve_target(target, device)
    emulation = Emulation(tuple(checks), counters, limit)
    check_device(device, emulation, chosen.name, chosen.kind)
    check_threads(threads, chosen.name, chosen.kind)
    schedules, fingerprint = _tuned(database, chosen)
    algorithm = parse_convolution(convolution, chosen.kind)
    construction = parse_construction(construct)
    stored = parse_weights(weights)
    options = CompileOptions(parse_precision(precision), explain_fusion, schedules, algorithm, construction, stored)
    converted = _converted(model, example_inputs, dynamic_shapes, states)
    pairs = states if converted is model else None  # a model of PyTorch has them now
    source = _Source.of(converted, normalized(shapes), after, normalized_constants(constants), pairs)
    cubins = chosen.is_cuda and nvrtc_is_installed("" if device in DEVICES else _TEXT_ALONE)
    toolchain = _toolchain(chosen, environment, cubins)
    decided = f"{fingerprint} {after} {construction}"
    key = artifact_key(
        source.content, source.shapes, str(chosen), toolchain, precision, algorithm, decided, source.fixed, stored
    )
    store, may_be_cached = store_of(environment), cached and trace is None and not explain_fusion
    artifact = find_artifact(store, key, source.path) if may_be_cached else None
    if artifact is None:
        request = source.request(chosen, trace, options, cubins, progress)
        artifact = store_artifact(store, key, partial(artifact_writer.write_artifact, request))
    return CompiledModel(artifact, threads, device=device, emulation=emulation)


def _converted(
    model: Model, example_inputs: Sequence[object] | None, dynamic_shapes: object, states: States | None
) -> str | Path | ModelProto | ModuleOp:
    """A model of PyTorch as a module of graph operators, another as it is. Raises what `exported` raises."""
    origins = {f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__}
    if origins & _OF_TORCH:
        given = cast("Module | ExportedProgram", model)
        return torch_frontend.import_exported(torch_frontend.exported(given, example_inputs, dynamic_shapes), states)
    if dynamic_shapes is not None:
        accepted = "those of a torch.nn.Module; shapes with treadle.Dim"
        raise TreadleError(f"dynamic shapes for a {type(model).__name__}", "compile", accepted)
    if example_inputs is not None:
        raise TreadleError(f"example inputs for a {type(model).__name__}", "compile", "those of a torch.nn.Module")
    return cast("str | Path | ModelProto | ModuleOp", model)


def resolve_target(target: str | Target, device: Device | None = None) -> Target:
    """The target of a name; "cpu" is this machine's processor, "cuda" its GPU (the first, or `device`), or the one that
    the emulator models.

    TreadleError for an unknown name, if there is no GPU, or if its driver is too old for NVRTC's code.
    """
    load_plugins()
    if isinstance(target, Target):
        return target
    if target == "cpu":
        return host_target()
    if target != "cuda":
        return Target.parse(target)
    if device in DEVICES:
        return Target.parse(EMULATED)
    driver = open_driver(0 if device is None else gpu_number(device))
    try:
        check_toolkit(driver, nvrtc_version())
        return Target.for_capability(*driver.capability)
    finally:
        driver.close()


@dataclass(frozen=True)
class _Source:
    """A model as it was given: its file, if it is one, the bytes that identify it, its shapes, stage and constants."""

    model: str | Path | ModelProto | ModuleOp
    path: Path | None
    content: bytes
    shapes: dict[str, tuple[int | Dim | str, ...]]
    after: str | None
    constants: dict[str, Array]
    states: States | None

    @staticmethod
    def of(
        model: str | Path | ModelProto | ModuleOp, shapes: dict[str, tuple[int | Dim | str, ...]], after: str | None,
        constants: dict[str, Array], states: States | None,
    ) -> _Source:  # fmt: skip
        """TreadleError for what is no model, and for a file that cannot be read."""
        path = Path(model) if isinstance(model, str | Path) else None
        return _Source(model, path, _content(model) if path is None else _read(path), shapes, after, constants, states)

    @property
    def fixed(self) -> str:
        """The constants and the states as a part of the cache's key."""
        return f"{constants_text(self.constants)}{states_text(self.states)}"

    def request(
        self, target: Target, trace_dir: Path | None, options: CompileOptions, cubins: bool, progress: Progress
    ) -> compile_request.CompileRequest:
        """Loads the model, unless it is a file. Raises what `load_model` raises."""
        if self.path is not None:
            model = self.path
        elif _is_module(self.model):
            model = cast("ModuleOp", self.model).clone()
        else:
            model = loader.load_model(self.content)
        return compile_request.CompileRequest(
            model, target, self.shapes, trace_dir, options=options, cubins=cubins, progress=progress,
            content=None if self.path is None else self.content, after=self.after, constants=self.constants,
            states=self.states,
        )  # fmt: skip


def _is_module(model: object) -> bool:
    """Whether it is IR; xDSL is not imported to ask."""
    return any(kind.__name__ == "ModuleOp" for kind in type(model).__mro__)


def _content(model: object) -> bytes:
    """The bytes that identify a model without a file: those of a message, or the text of a module."""
    if hasattr(model, "SerializeToString"):
        return cast("ModelProto", model).SerializeToString(deterministic=True)
    if _is_module(model):
        return location.ir_text(cast("ModuleOp", model)).encode()  # its nodes' names are in the printed text
    accepted = "the path of an .onnx file, an onnx.ModelProto, a module of graph operators, or a torch.nn.Module"
    raise TreadleError(f"the model is a {type(model).__name__}", "compile", accepted)


def _read(path: Path) -> bytes:
    return read_regular(path, MODEL_BYTES, "the path of an .onnx file")


def _tuned(database: str | Path | None, target: Target) -> tuple[str, str]:
    """The folder of a database of schedules, and a fingerprint of those for the target; both empty without a database.

    TreadleError if it cannot be read.
    """
    if database is None:
        return "", ""
    tuned = open_database(Path(database).resolve())
    return str(tuned.folder), tuned.fingerprint(hardware_of(target))


def _toolchain(target: Target, environment: Environment, cubins: bool) -> str:
    """What compiles the printed text; TreadleError if there is none, before any work is done."""
    if not target.is_cuda:
        return find_toolchain(environment, target).identity()
    return f"nvrtc {nvrtc_version()}" if cubins else "no nvrtc"
