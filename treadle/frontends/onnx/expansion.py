"""The size of a model after the calls of its own functions are inlined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, ModelProto, NodeProto

from treadle.errors import TreadleError

MAX_NODES = 100_000
MAX_BYTES = 1 << 30
MAX_DEPTH = 200
"""Functions that call each other one inside the other; the inliner recurses."""

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Size:
    """The size of an expanded list of nodes: their number, their bytes, and the nesting of calls."""

    nodes: int
    bytes: int
    depth: int


def check_expansion(proto: ModelProto, where: str) -> None:
    """TreadleError unless the model's functions, expanded where they are called, stay within the limits.

    The sizes of bodies are added up, each body once, so that the check takes no longer than reading the file. Calls in
    bodies of control flow count as others. TreadleError, too, for functions that call each other in a circle.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    sizes: dict[_Key, _Size] = {}
    for key in _callees_first(functions, where):
        size = _size_of(functions[key].node, sizes)
        _check(size, f"function '{key[1]}'", where)
        sizes[key] = size
    _check(_size_of(proto.graph.node, sizes), "the model", where)


def _check(size: _Size, what: str, where: str) -> None:
    for found, most, unit in ((size.nodes, MAX_NODES, "nodes"), (size.bytes, MAX_BYTES, "bytes")):
        if found > most:
            raise TreadleError(
                f"{what} has {found} {unit} when the functions it calls are expanded", where, f"up to {most}"
            )
    if size.depth > MAX_DEPTH:
        raise TreadleError(f"{what} nests {size.depth} calls of functions", where, f"up to {MAX_DEPTH}")


def _size_of(nodes: Sequence[NodeProto], sizes: dict[_Key, _Size]) -> _Size:
    count = total = depth = 0
    for node in nodes_of(nodes):
        called = sizes.get(_called(node))
        count += 1 if called is None else called.nodes
        total += node.ByteSize() + (0 if called is None else called.bytes)
        depth = max(depth, 0 if called is None else called.depth + 1)
    return _Size(count, total, depth)


def _callees_first(functions: dict[_Key, FunctionProto], where: str) -> list[_Key]:
    """The functions, each after those that it calls."""
    calls = {key: [c for c in map(_called, nodes_of(f.node)) if c in functions] for key, f in functions.items()}
    done: dict[_Key, bool] = {}
    order: list[_Key] = []
    stack: list[_Key] = []
    for start in functions:
        stack.append(start)
        while stack:
            key = stack[-1]
            if key not in done:
                done[key] = False
                waiting = [c for c in calls[key] if not done.get(c, False)]
                circle = next((c for c in waiting if c in done), None)
                if circle is not None:
                    raise TreadleError(
                        f"function '{circle[1]}' calls itself",
                        where,
                        "functions that are well formed and not recursive",
                    )
                stack += waiting
                continue
            stack.pop()
            if not done[key]:
                done[key] = True
                order.append(key)
    return order


def _called(node: NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def nodes_of(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of the graphs in their attributes."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += attribute.g.node
            for graph in attribute.graphs:
                pending += graph.node


__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_NODES", "check_expansion", "nodes_of"]
