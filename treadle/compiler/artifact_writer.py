"""From a lowered module to an artifact's files: print, compile, weights, manifest."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import BytesAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute

from treadle.artifact.artifact import write_manifest, write_module
from treadle.artifact.manifest import Manifest, Tensor
from treadle.artifact.weights import write_weights
from treadle.backends.c.write_artifact import write_kernels as write_c
from treadle.backends.cuda.write_artifact import write_kernels as write_cuda
from treadle.backends.interface import program_interface
from treadle.backends.program import ProgramConstant, TensorSpec, planned_main, read_program
from treadle.compiler.request import LOWERING, CompileRequest, is_ir_file, lowered_module
from treadle.dialects.graph.attributes import BlobAttr
from treadle.dialects.graph.constant import default_store
from treadle.frontends.onnx.loader import LoadedModel, load_model
from treadle.passes.graph.graph_quantize_weights import quantized_weights
from treadle.passes.instruments import ir_text
from treadle.support.progress import Progress


def write_artifact(request: CompileRequest, folder: Path) -> str:
    """Compiles the request into an empty folder; the sha256 (hex) of its manifest.

    Raises what import, passes, printers and compilers raise.
    """
    # A traced module is text, whose constants others read from the store.
    with default_store().deferred() if request.trace_dir is None else nullcontext():
        return _write(request, folder)


def _write(request: CompileRequest, folder: Path) -> str:
    model = request.model
    is_onnx = isinstance(model, Path) and not is_ir_file(model)
    loaded = load_model(model, request.content) if isinstance(model, Path) and is_onnx else model
    module = lowered_module(replace(request, model=loaded))
    program = read_program(module)
    target = request.target
    inputs = _tensors(program.inputs, program.input_extents)
    outputs = _tensors(program.outputs, program.output_extents)
    constants = write_weights(map(_stored, program.constants), folder)
    progress = partial(_second_half, request.progress)
    machine, launches = "", ()
    if target.is_cuda:
        write_module(folder, ir_text(module))
        launches = write_cuda(module, program, target, folder, progress, cubins=request.cubins)
    else:
        interface = program_interface(inputs, outputs, constants, program.arena_bytes, program.extents, program.states)
        # The C compiler's processes run while this one prints the IR.
        machine = write_c(module, interface, target, folder, progress, lambda: write_module(folder, ir_text(module)))
    manifest = Manifest(
        target=target.name,
        kind=target.kind,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        arena_bytes=program.arena_bytes,
        zeroed_bytes=program.zeroed_bytes,
        sparse=_sparse(program.constants, constants),
        precision=request.options.precision,
        weights=quantized_weights(module),
        symbols=program.symbols,
        extents=program.extents,
        found=program.found,
        states=program.states,
        machine=machine,
        launches=launches,
        dispatches=program.dispatches if target.is_cuda else (),
        metadata=_metadata(module),
        sources=loaded.files.sources() if isinstance(loaded, LoadedModel) else (),
    )
    return write_manifest(folder, manifest)


def _second_half(progress: Progress, step: str, fraction: float) -> None:
    """Reports the progress of what follows lowering as progress of the whole."""
    progress(step, LOWERING + (1 - LOWERING) * fraction)


def _stored(constant: ProgramConstant) -> tuple[NDArray[np.generic], Path | None]:
    """A constant's values, and the file of the store that has them."""
    value = constant.value
    return constant.array(), default_store().file(value.digest.data) if isinstance(value, BlobAttr) else None


def _sparse(constants: Sequence[ProgramConstant], written: Sequence[Tensor]) -> tuple[str, ...]:
    """The names of constants that are read in part only, whatever the other constants of the same bytes are for."""
    dense = {tensor.name for constant, tensor in zip(constants, written, strict=True) if not constant.sparse}
    return tuple(sorted({tensor.name for tensor in written} - dense))


def _tensors(specs: Sequence[TensorSpec], extents: Sequence[tuple[str, ...]]) -> tuple[Tensor, ...]:
    """The tensors of a program; those behind the last of `extents` have none."""
    listed = [*extents, *[()] * (len(specs) - len(extents))]
    return tuple(Tensor(s.name, s.shape, s.dtype.name, each, s.dense) for s, each in zip(specs, listed, strict=True))


def _metadata(module: ModuleOp) -> dict[str, str]:
    entries = planned_main(module).attributes.get("metadata")
    if not isinstance(entries, DictionaryAttr):
        return {}
    return {key: _text(value) for key, value in entries.data.items()}


def _text(value: Attribute) -> str:
    if isinstance(value, BytesAttr):
        return value.data.decode()
    return value.data if isinstance(value, StringAttr) else str(value)
