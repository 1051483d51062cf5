"""The registry of converters, by operator and version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeVar

from treadle.errors import TreadleError
from treadle.extensions import note_added
from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.functions import Schema, defined_by_functions, find_schema
from treadle.frontends.onnx.node import Node

MAX_OPSET = 28
"""The newest version of ONNX's operators whose changes the converters know."""

Converter = Callable[[Node, GraphBuilder], Tensor | Sequence[Tensor]]
C = TypeVar("C", bound=Converter)


@dataclass(frozen=True)
class _Entry:
    since: int
    convert: Converter


_REGISTRY: dict[tuple[str, str], list[_Entry]] = {}
"""Versions by domain and name; ONNX's own domain is ''."""


def converts(*op_types: str, since: int = 1, domain: str = "") -> Callable[[C], C]:
    """Registers a converter for operators as they are from opset `since` up to the next registered version.

    domain: that of the operators, by default ONNX's own

    A converter gives the outputs in order; trailing ones may be left out if nothing uses them.
    """

    def register(function: C) -> C:
        for op_type in op_types:
            entries = _REGISTRY.setdefault((domain, op_type), [])
            assert all(entry.since != since for entry in entries), f"{op_type} since {since} is registered twice"
            entries.append(_Entry(since, function))
            entries.sort(key=lambda entry: entry.since)
            note_added(f"{domain}.{op_type} since {since}", function)
        return function

    return register


def supported_operators() -> list[str]:
    """Names of the operators that have a converter, or a body of others that have one; of other domains than ONNX's own
    with the domain before the name."""
    return sorted([*_converted(), *functions_expanded()])


def functions_expanded() -> list[str]:
    """Names of the operators that are imported by the bodies that ONNX defines them with."""
    return defined_by_functions(_converted())


def _converted() -> list[str]:
    return [f"{domain}.{name}" if domain else name for domain, name in _REGISTRY]


def find_conversion(op_type: str, domain: str, opset: int, where: str) -> Converter | Schema:
    """The converter for an operator, or the schema that defines it by others.

    TreadleError if there is neither for it, its domain or its version.
    """
    own = domain in ("", "ai.onnx")
    entries = _REGISTRY.get(("" if own else domain, op_type))
    if entries is None:
        schema = find_schema(op_type, domain, opset)
        if schema is not None:
            return schema
        if not own and all(known != domain for known, _ in _REGISTRY):
            message = f"operators of domain '{domain}' are not supported"
            raise TreadleError(message, where, "operators of ONNX's own domain")
        name = op_type if own else f"{domain}.{op_type}"
        raise TreadleError(f"operator {name} is not supported", where, _accepted(name))
    if not own:
        return entries[-1].convert
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
