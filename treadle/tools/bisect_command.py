"""`treadle bisect`: the first pass after which a model computes something else, and the smallest part that shows it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation

from treadle.api import resolve_target
from treadle.artifact.manifest import Tensor
from treadle.artifact.store import Store
from treadle.backends.interface import file_names
from treadle.backends.reference.run_module import find_function
from treadle.compiler.request import CompileRequest, is_ir_file, lowered_module
from treadle.dialects.graph import ConstantOp
from treadle.dialects.graph.attributes import BlobAttr
from treadle.dialects.graph.constant import BlobStore, constant_array
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.location import ir_text, location_of
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.entry import ENTRY
from treadle.passes.graph.graph_quantize_weights import GraphQuantizeWeightsPass
from treadle.runtime.inputs import complete, read_inputs
from treadle.schedules.search.database_files import open_database
from treadle.shapes.dim import Dim
from treadle.support.publishing import check_replaceable, publish
from treadle.target.options import (
    CompileOptions,
    parse_construction,
    parse_convolution,
    parse_precision,
    parse_weights,
)
from treadle.tools.arguments import shapes_of_call
from treadle.tools.bisect_search import (
    IMPORT,
    INTERPRETED,
    Case,
    Divergence,
    Parts,
    first_divergence,
    module_after,
    reduced,
    still_diverges,
)
from treadle.tools.oracle import Definition, with_names
from treadle.tools.progress_bar import progress_bar

Array = NDArray[Any]
MODEL = "model.mlir"
_ROOM = 1 << 62
"""Bytes that the constants of a reduced model may take: all that they need."""


def bisect_command(args: argparse.Namespace) -> int:
    """Prints a line for each pass; 1, and a folder with the reduced model, if one changes what is computed."""
    if args.seed < 0:
        raise TreadleError(f"{args.seed} is no seed", "--seed", "0 upwards")
    operations = INTERPRETED if args.operations is None else args.operations
    if operations < 0:
        raise TreadleError(f"{operations} operations", "--operations", "0 upwards")
    output = Path(args.output)
    check_replaceable(output, _is_reduced)
    case = _case(args)
    with progress_bar() as progress:
        found = first_divergence(case, _report, operations, progress)
    if found is None:
        print("all agree with the definition: the passes above, and the compiled code")
        return 0
    if found.after == IMPORT:
        print("the imported graph in its declared types is beyond its limits: no pass is to blame")
        return 1
    smallest = _reduced(case, found)
    publish(output, smallest.write, replace=_is_reduced)
    _describe(smallest, args.output)
    print(f"again: {_again(args, smallest.case.definition)}")
    return 1


@dataclass(frozen=True)
class _Reduced:
    """What is left of a model, and where it diverges."""

    case: Case
    found: Divergence
    operators: Sequence[Operation]
    of: int
    """How many operators the whole model has."""

    def write(self, folder: Path) -> None:
        """The model, its inputs and its constants, and the IR before and after the pass."""
        definition = self.case.definition
        (folder / MODEL).write_text(ir_text(definition.module))
        for file, array in _files(definition).items():
            # The types of `ml_dtypes` have no name in such a file.
            named = array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")
            np.save(folder / file, named, allow_pickle=False)
        store = BlobStore(Store((folder / "cache").resolve(), _ROOM))
        for op in definition.module.walk():
            if isinstance(op, ConstantOp) and isinstance(op.value, BlobAttr):
                store.put(constant_array(op))
        for name, number in (("before", self.found.before), ("after", self.found.after)):
            (folder / f"{name}.mlir").write_text(ir_text(module_after(self.case, number)))


def _reduced(case: Case, found: Divergence) -> _Reduced:
    print("reducing the model ...", flush=True)
    parts = Parts(case.definition)
    before, after = found.before, found.after

    def differs(part: Definition) -> bool:
        found = still_diverges(replace(case, definition=part), before, after)
        if found:
            print(f"  {len(_operators(part.module))} operators left", flush=True)
        return found

    smallest = reduced(parts, differs, folded=after <= case.last_of_graphs)
    least = replace(case, definition=smallest)
    if after - before > 1:  # its kernels are few enough to be interpreted one by one
        found = first_divergence(least, _report, _ROOM) or found
    return _Reduced(least, found, _operators(smallest.module), len(_operators(case.definition.module)))


def _operators(module: ModuleOp) -> list[Operation]:
    ops = find_function(module, ENTRY).body.block.ops
    return [op for op in ops if not isinstance(op, ConstantOp | ReturnOp)]


def _report(stage: str, name: str, found: str) -> None:
    print(f"{stage:9} {name:34} {found}", flush=True)


def _describe(smallest: _Reduced, folder: str) -> None:
    case, found = smallest.case, smallest.found
    stage, step = case.steps[found.after]
    if found.after == case.code:
        print(f"first to differ: the code (pass '{step.name}', the printer, or the compiler); every pass before agrees")
    else:
        print(f"first to differ: pass '{step.name}' of stage '{stage}', number {found.after + 1} of {case.code + 1}")
    last = smallest.operators[-1]
    print(f"operator: {last.name}, {location_of(last) or 'which has no node'}")
    print(f"there: {found.problem}")
    count = len(smallest.operators)
    print(f"{folder}/{MODEL}: {count} of {smallest.of} operators; the IR before and after the pass is beside it")


def _again(args: argparse.Namespace, definition: Definition) -> str:
    """The command that does the same with the reduced model."""
    folder = Path(args.output)
    words = ["treadle", "bisect", str(folder / MODEL)]
    for name, file in _input_files(definition).items():
        words += ["--input", f"{name}={folder / file}"]
    for option in ("target", "precision", "convolution", "database", "construct"):
        if getattr(args, option) is not None:
            words += [f"--{option}", getattr(args, option)]
    return f"TREADLE_CACHE_DIR={shlex.quote(str(folder / 'cache'))} {shlex.join(words)}"


def _input_files(definition: Definition) -> dict[str, str]:
    """The file of each input, by its name."""
    names = _input_names(definition.module)
    return {name: f"{stem}.npy" for name, stem in zip(names, file_names(names), strict=True)}


def _files(definition: Definition) -> dict[str, Array]:
    return dict(zip(_input_files(definition).values(), definition.inputs, strict=True))


def _case(args: argparse.Namespace) -> Case:
    """The model, its inputs, and what to compile it for; TreadleError for what cannot be read, and for ranges."""
    target = resolve_target(args.target or "cpu", "emulator")
    precision = parse_precision(args.precision or "f32")
    database = "" if args.database is None else str(open_database(Path(args.database).resolve()).folder)
    algorithm, construction = parse_convolution(args.convolution, target.kind), parse_construction(args.construct)
    options = CompileOptions(precision, False, database, algorithm, construction)
    given = read_inputs(args.input)
    path = Path(args.model)
    shapes = _shapes(args.shape, {} if is_ir_file(path) else given.shapes)
    request = CompileRequest(path, target, shapes, constants=given.constants)
    module = with_names(lowered_module(request, "import"))
    GraphQuantizeWeightsPass(parse_weights(args.weights)).apply(treadle_context(), module)
    tensors = _tensors(module)
    names = [tensor.name for tensor in tensors]
    for name in given.arrays:
        if name not in names:
            raise TreadleError(f"there is no input '{name}'", "--input", names)
    inputs = complete(tensors, given.arrays, args.seed)
    return Case(Definition(module, [inputs[name] for name in names], precision), target, options)


def _shapes(arguments: Sequence[str], arrays: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int | Dim | str, ...]]:
    shapes = shapes_of_call(arguments, arrays)
    for name, extents in shapes.items():
        if any(isinstance(extent, Dim) for extent in extents):
            raise TreadleError("the shape has a range", f"--shape {name}", "the extents of the call that is wrong")
    return shapes


def _tensors(module: ModuleOp) -> list[Tensor]:
    """The inputs as a compiled model has them."""
    args = find_function(module, ENTRY).body.block.args
    types = [type for type in (arg.type for arg in args) if isinstance(type, TensorType)]
    pairs = zip(_input_names(module), types, strict=True)
    return [Tensor(name, type.get_shape(), numpy_dtype(type.get_element_type()).name) for name, type in pairs]


def _input_names(module: ModuleOp) -> list[str]:
    return [each.data for each in find_function(module, ENTRY).attributes["input_names"]]  # pyright: ignore


def _is_reduced(folder: Path) -> bool:
    return (folder / MODEL).is_file()


__all__ = ["bisect_command"]
