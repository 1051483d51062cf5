"""A request to compile a model, and its lowering by the stages up to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import ParseError, VerifyException

from treadle.compiler.pipeline import lower, passes_of, stage_of, stages_between
from treadle.dialects.location import LocatedParser
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.frontends.onnx.importer import import_loaded
from treadle.frontends.onnx.loader import LoadedModel, load_model
from treadle.passes.entry import check_entry
from treadle.passes.instruments import Announce, Instrument, Trace, Verify, verify
from treadle.shapes.constants import Constants
from treadle.shapes.dim import Shapes
from treadle.shapes.states import States
from treadle.support.files import MODEL_BYTES, read_regular
from treadle.support.progress import Progress, no_progress
from treadle.target import Target
from treadle.target.options import CompileOptions

IR_SUFFIX = ".mlir"
LOWERING = 0.6
"""The fraction of a compilation that lowering takes; for the display only."""


@dataclass(frozen=True)
class CompileRequest:
    """What is to be compiled.

    model:     path of an .onnx or .mlir file, what `load_model` read, or a module (which is changed)
    content:   the bytes of that file, if they were read already
    after:     the stage that left the module; None: it is of graph operators, and no stage has run
    shapes:    extents of the dimensions that the file leaves dynamic
    constants: values of inputs that are the same in every call
    states:    inputs that are outputs of the call before
    trace_dir: where the numbered IR after each pass is written
    check:     verify the IR after each pass
    options:   precision, and which decisions are explained
    cubins:    cuda: compile the printed text, too; the emulator needs the text alone
    progress:  called with each step that begins
    """

    model: Path | LoadedModel | ModuleOp
    target: Target
    shapes: Shapes = field(default_factory=dict[str, Sequence[int]])
    trace_dir: Path | None = None
    check: bool = False
    options: CompileOptions = field(default_factory=CompileOptions)
    cubins: bool = True
    progress: Progress = no_progress
    content: bytes | None = None
    after: str | None = None
    constants: Constants | None = None
    states: States | None = None


def lowered_module(request: CompileRequest, to: str | None = None, instruments: Sequence[Instrument] = ()) -> ModuleOp:
    """The request's module after stage `to` (default: the last), with more instruments behind the request's own.
    Raises what import and the passes raise."""
    request.progress("importing the model", 0.0)
    module = _given_module(request)
    after = stage_of(module, request.after)
    own = _instruments(replace(request, after=after), module, to)
    lower(
        treadle_context(), module, request.target, after=after, to=to, instruments=[*own, *instruments],
        options=request.options,
    )  # fmt: skip
    return module


def read_module(text: str, name: str) -> ModuleOp:
    """The module of a text, verified; TreadleError with `name`, line and column where it does not parse or verify."""
    try:
        module = LocatedParser(treadle_context(), text, name).parse_module()
    except (ParseError, VerifyException) as error:
        where, message = (error.span.get_location(), error.msg) if isinstance(error, ParseError) else (name, str(error))
        raise TreadleError(" ".join(message.split()), where, "IR text of xDSL's and Treadle's dialects") from error
    verify(module, "as it was read")
    return module


def is_ir_file(path: Path) -> bool:
    """Whether a model's file is IR rather than ONNX, by its name."""
    return path.suffix == IR_SUFFIX


def _given_module(request: CompileRequest) -> ModuleOp:
    """The request's module, which is read if it is in a file."""
    model = request.model
    if isinstance(model, Path) and is_ir_file(model):
        model = read_module(_text(model, request.content), str(model))
    if not isinstance(model, ModuleOp):
        if request.after is not None:
            accepted = f"a module, or a {IR_SUFFIX} file, which that stage left"
            raise TreadleError(f"the model is ONNX, which stage '{request.after}' does not give", "compile", accepted)
        loaded = load_model(model, request.content) if isinstance(model, Path) else model
        return import_loaded(loaded, dict(request.shapes), request.constants, request.states)
    if request.shapes:
        raise TreadleError("shapes are given for a module, whose tensors have theirs", "compile", "no shapes")
    if request.constants:
        raise TreadleError("constants are given for a module, which has no ONNX inputs", "compile", "no constants")
    if request.states:
        raise TreadleError("states are given for a module, whose @main has its own", "compile", "no states")
    verify(model, "as it was given")
    if stage_of(model, request.after) is None:
        check_entry(model)
    return model


def _text(path: Path, content: bytes | None) -> str:
    try:
        return (read_regular(path, MODEL_BYTES, "a file of IR text") if content is None else content).decode()
    except UnicodeDecodeError as error:
        raise TreadleError(f"cannot read: {error.reason}", path, "IR text in UTF-8") from error


def _instruments(request: CompileRequest, module: ModuleOp, to: str | None) -> list[Instrument]:
    total = sum(len(passes_of(stage, request.target)) for stage in stages_between(request.after, to))
    done = 0

    def announce(name: str) -> None:
        nonlocal done
        request.progress(name, LOWERING * done / max(total, 1))
        done += 1

    instruments: list[Instrument] = [Announce(announce)]
    if request.check:
        instruments.append(Verify())
    if request.trace_dir is not None:
        trace = Trace(request.trace_dir)
        trace.start(module)
        instruments.append(trace)
    return instruments
