"""A request to compile a model, and its lowering by the stages up to one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from treadle.compile_options import CompileOptions
from treadle.compiler import lower, passes_of, stages_between
from treadle.dialects.registry import treadle_context
from treadle.frontends.onnx.importer import import_loaded
from treadle.frontends.onnx.loader import LoadedModel, load_model
from treadle.passes.entry import check_entry
from treadle.passes.instruments import Announce, Instrument, Trace, Verify, verify
from treadle.progress import Progress, no_progress
from treadle.shapes import Shapes
from treadle.target import Target

LOWERING = 0.6
"""The fraction of a compilation that lowering takes; for the display only."""


@dataclass(frozen=True)
class CompileRequest:
    """What is to be compiled.

    model:     path of an .onnx file, what `load_model` read, or a module of graph operators (which is changed)
    content:   the bytes of that file, if they were read already
    shapes:    extents of the dimensions that the file leaves dynamic
    trace_dir: where the numbered IR after each pass is written
    check:     verify the IR after each pass
    options:   precision, and what is explained
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


def lowered_module(request: CompileRequest, to: str | None = None) -> ModuleOp:
    """The request's module after stage `to` (default: the last). Raises what import and the passes raise."""
    request.progress("importing the model", 0.0)
    if isinstance(request.model, ModuleOp):
        module = request.model
        verify(module, "as it was given")
        check_entry(module)
    else:
        loaded = load_model(request.model, request.content) if isinstance(request.model, Path) else request.model
        module = import_loaded(loaded, dict(request.shapes))
    instruments = _instruments(request, module, to)
    lower(treadle_context(), module, request.target, to=to, instruments=instruments, options=request.options)
    return module


def _instruments(request: CompileRequest, module: ModuleOp, to: str | None) -> list[Instrument]:
    total = sum(len(passes_of(stage, request.target)) for stage in stages_between(None, to))
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
