"""The registry of converters, by operator and version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from treadle.errors import TreadleError
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.functions import Schema, defined_by_functions, find_schema
from treadle.frontends.onnx.node import Node

MAX_OPSET = 28
"""The newest version of ONNX's operators whose changes the converters know."""

Converter = Callable[[Node, GraphBuilder], Tensor | Sequence[Tensor]]


@dataclass(frozen=True)
class _Entry:
    since: int
    convert: Converter


_REGISTRY: dict[str, list[_Entry]] = {}


def converts(*op_types: str, since: int = 1) -> Callable[[Converter], Converter]:
    """Registers a converter for operators as they are from opset `since` up to the next registered version.

    A converter gives the outputs in order; trailing ones may be left out if nothing uses them.
    """

    def register(function: Converter) -> Converter:
        for op_type in op_types:
            entries = _REGISTRY.setdefault(op_type, [])
            assert all(entry.since != since for entry in entries), f"{op_type} since {since} is registered twice"
            entries.append(_Entry(since, function))
            entries.sort(key=lambda entry: entry.since)
        return function

    return register


def supported_operators() -> list[str]:
    """Names of the operators that have a converter, or a body of others that have one."""
    return sorted([*_REGISTRY, *functions_expanded()])


def functions_expanded() -> list[str]:
    """Names of the operators that are imported by the bodies that ONNX defines them with."""
    return defined_by_functions(_REGISTRY)


def find_conversion(op_type: str, domain: str, opset: int, where: str) -> Converter | Schema:
    """The converter for an operator, or the schema that defines it by others.

    TreadleError if there is neither for it, its domain or its version.
    """
    own = domain in ("", "ai.onnx")
    entries = _REGISTRY.get(op_type) if own else None
    if entries is None:
        schema = find_schema(op_type, domain, opset)
        if schema is not None:
            return schema
        if not own:
            message = f"operators of domain '{domain}' are not supported"
            raise TreadleError(message, where, "operators of ONNX's own domain")
        raise TreadleError(f"operator {op_type} is not supported", where, _accepted(op_type))
    if opset > MAX_OPSET or opset < entries[0].since:
        message = f"{op_type} of opset {opset} is not supported"
        raise TreadleError(message, where, f"{op_type} of opset {entries[0].since} to {MAX_OPSET}")
    return next(entry.convert for entry in reversed(entries) if entry.since <= opset)


def _accepted(op_type: str) -> str:
    """Operators of similar names; all of them would fill a screen, once for each node."""
    operators = supported_operators()
    similar = get_close_matches(op_type, operators, n=3)
    others = f"{', '.join(similar)}, and " if similar else ""
    return f"{others}{len(operators) - len(similar)} other operators (`treadle check --operators` lists them)"


__all__ = ["MAX_OPSET", "Converter", "converts", "find_conversion", "functions_expanded", "supported_operators"]
