"""From a module to an exported program of the operators that have converters."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from treadle.errors import TreadleError
from treadle.frontends.torch.converters import find_converter


def exported(model: torch.nn.Module | ExportedProgram, example_inputs: Sequence[Any] | None) -> ExportedProgram:
    """The program of a module for inputs like the examples, decomposed into the operators that have converters.

    Training is not supported: TreadleError for a module in training mode, and for one that cannot be exported.
    """
    if isinstance(model, ExportedProgram):
        if example_inputs is not None:
            raise TreadleError("example inputs are given for an exported program, which has its own", "compile", "none")
        return decomposed(model)
    modules: list[tuple[str, torch.nn.Module]] = list(model.named_modules())  # pyright: ignore[reportUnknownArgumentType]
    training = [name or type(each).__name__ for name, each in modules if each.training]
    if training:
        raise TreadleError(f"module '{training[0]}' is in training mode", "compile", "model.eval(): inference")
    if example_inputs is None:
        message = f"a {type(model).__name__} without example inputs"
        raise TreadleError(message, "compile", "example_inputs=(x, ...), of the shapes and types of its calls")
    return decomposed(export(model, example_inputs))


def export(model: torch.nn.Module, example_inputs: Sequence[Any]) -> ExportedProgram:
    """As `torch.export.export`, with static shapes; TreadleError if that fails."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, tuple(example_inputs))
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        message = f"torch.export: {type(error).__name__}: {lines[0]}"
        accepted = "a module that torch.export takes; torch.compile splits others at graph breaks"
        raise TreadleError(message, type(model).__name__, accepted) from error


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """The program with PyTorch's own decompositions of all operators but those that have a converter.

    PyTorch traces it once more for that: a program that has no others stays as it is. (Of the cases of the converters'
    tests, an export takes 28 ms in the mean, and this 290.)
    """
    if all(_is_converted(node) for node in program.graph.nodes):
        return program
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.run_decompositions(decompositions())


def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's own decompositions, by operator, of those that have no converter."""
    table = torch.export.default_decompositions()
    table[torch.ops.aten.lift_fresh_copy.default] = torch.clone
    return {each: table[each] for each in list(table) if find_converter(each) is None}


def _is_converted(node: fx.Node) -> bool:
    """Whether the importer takes the node as it is. What writes to its operands has no converter."""
    if node.op in ("placeholder", "output"):
        return True
    return node.op == "call_function" and (node.target is operator.getitem or find_converter(node.target) is not None)


__all__ = ["decomposed", "decompositions", "export", "exported"]
