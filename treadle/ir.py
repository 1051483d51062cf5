"""The IR for projects that embed Treadle: models built operator by operator, text, passes and stages.

```python
entry = ir.Entry({"x": ir.tensor_type("float32", (4, 8))})
y = entry.add(UnaryOp("relu", entry["x"]))
model = treadle.compile(entry.module({"y": y}))
```
Operators are the classes of `treadle.dialects.graph`. docs/embedding.md says what of the package is public.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, TensorType
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import DiagnosticException

from treadle.api import resolve_target
from treadle.backends.reference.run_module import run_module
from treadle.compiler import pipeline
from treadle.compiler.request import read_module
from treadle.dialects.graph import ConstantOp
from treadle.dialects.graph.constant import constant_attribute
from treadle.dialects.graph.definition import family
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.location import ir_text, name_hint, node_location
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.entry import ENTRY, check_entry
from treadle.passes.instruments import Verify, verify
from treadle.passes.registry import parse_passes
from treadle.plugins.loader import load_plugins
from treadle.target import Target
from treadle.target.options import CompileOptions, parse_convolution, parse_precision, parse_weights

STAGES: tuple[str, ...] = pipeline.STAGE_NAMES
"""The names of the pipeline's stages, in order."""


def context() -> Context:
    """A context that knows Treadle's dialects, those of xDSL that its passes produce, and those of plug-ins."""
    load_plugins()
    return treadle_context()


def parse(text: str, name: str = "text") -> ModuleOp:
    """The module of a text, verified; TreadleError with `name`, line and column where it does not parse or verify."""
    load_plugins()
    return read_module(text, name)


def print_text(module: ModuleOp, generic: bool = False) -> str:
    """A module as text that `parse` reads: the same operations, names and nodes of the model.

    generic: in MLIR's generic form, which `mlir-opt --allow-unregistered-dialect` reads, too
    """
    return ir_text(module, generic)


def tensor_type(dtype: DTypeLike, shape: Sequence[int]) -> TensorType[Attribute]:
    """The type of a tensor by NumPy's name of its elements' type (and `bfloat16`), row-major."""
    return TensorType(element_type(np.dtype(dtype)), shape)


def constant(array: ArrayLike) -> ConstantOp:
    """An operation, in no block yet, that gives an array; a large one is kept in the cache, by its digest."""
    values = np.asarray(array)
    return ConstantOp(constant_attribute(values), tensor_type(values.dtype, values.shape))


class Entry:
    """The function `@main` of a module while it is written: `entry["x"]` is the input of that name.

    inputs: the type of each input by its name, in the order of the compiled model's
    """

    def __init__(self, inputs: Mapping[str, TensorType[Attribute]]) -> None:
        self._names = list(inputs)
        self._block = Block(arg_types=list(inputs.values()))
        for name, argument in zip(inputs, self._block.args, strict=True):
            argument.name_hint = name_hint(name)

    def __getitem__(self, name: str) -> SSAValue:
        """An input; TreadleError for another name."""
        if name not in self._names:
            raise TreadleError(f"no input '{name}'", f"@{ENTRY}", self._names)
        return self._block.args[self._names.index(name)]

    def add(self, op: Operation, node: str | None = None) -> SSAValue:
        """Appends an operator; its result. `node` names it in the printed C and CUDA, and in remarks and errors."""
        if node is not None:
            kind = op.properties.get("kind")
            word = kind.data if isinstance(kind, StringAttr) else family(op)
            op.location = node_location(node, word)
        self._block.add_op(op)
        return op.results[0]

    def constant(self, array: ArrayLike) -> SSAValue:
        """Appends a constant; its tensor."""
        return self.add(constant(array))

    def module(self, outputs: Mapping[str, SSAValue]) -> ModuleOp:
        """Ends the function: the module that gives `outputs` by their names, checked as `treadle.compile` does."""
        self._block.add_op(ReturnOp(*outputs.values()))
        types = [argument.type for argument in self._block.args], [value.type for value in outputs.values()]
        main = FuncOp(ENTRY, types, Region(self._block))
        for attribute, names in (("input_names", self._names), ("output_names", outputs)):
            main.attributes[attribute] = ArrayAttr([StringAttr(name) for name in names])
        module = ModuleOp([main])
        check(module)
        return module


def check(module: ModuleOp) -> None:
    """TreadleError naming the first thing for which `treadle.compile` would reject a module before any pass."""
    verify(module, "as it was given")
    check_entry(module)


def lower(
    module: ModuleOp, target: str | Target = "cpu", *, after: str | None = None, to: str | None = None,
    precision: str = "f32", convolution: str | None = None, weights: str | None = None,
) -> None:  # fmt: skip
    """Runs the stages after `after` (default: all, or those after the one that the module names) up to `to` (default:
    the last) on a module, in place.

    The module is verified after every pass. TreadleError for a module that is not what stage `after` leaves, an unknown
    stage or target, and what passes raise.
    """
    after = pipeline.stage_of(module, after)
    if after is None:
        check(module)
    chosen = resolve_target(target)
    options = CompileOptions(
        parse_precision(precision), convolution=parse_convolution(convolution, chosen.kind),
        weights=parse_weights(weights),
    )  # fmt: skip
    pipeline.lower(treadle_context(), module, chosen, after=after, to=to, instruments=[Verify()], options=options)


def run_passes(module: ModuleOp, passes: str) -> None:
    """Runs passes on a module in place, by their names in xDSL's syntax: `task-lower,graph-fuse{target=sm_80}`.

    TreadleError for an unknown pass or option, for what a pass rejects, and for what it leaves invalid.
    """
    load_plugins()
    for each in parse_passes(passes):
        try:
            each.apply(treadle_context(), module)
        except DiagnosticException as error:
            raise TreadleError(str(error).splitlines()[0], f"pass '{each.name}'") from error
        verify(module, f"after pass '{each.name}'")


def evaluate(module: ModuleOp, inputs: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """What a module of any stage up to `loops` computes, by its definitions: NumPy, slow, without a compiler."""
    return run_module(module, inputs)


__all__ = [
    "STAGES", "Entry", "check", "constant", "context", "evaluate", "lower", "node_location", "parse", "print_text",
    "run_passes", "tensor_type",
]  # fmt: skip
