"""Which nodes of the model an operation computes, as its source location.

A node of an ONNX model is `loc("/conv1/Conv"("Conv"))`: its name, and its kind as the location of the name. What was
made of several nodes is `loc(fused["/conv1/Conv"("Conv"), "/relu1"("Relu")])`. Locations of other forms, such as the
lines of a file, name no nodes.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import ArrayAttr, FusedLoc, LocationAttr, NameLoc, NoneAttr, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Operation

MOST_NODES = 8
"""The most nodes that a location names. A location of more ends with `unknown`, so that a chain of thousands stays one
line."""

_LONGEST_NAME = 60


class NamesNodes(Operation, ABC):
    """An operation whose text ends with its location if that names nodes, so that parsing the text restores them.

    Operations on tensors, kernels and launches do; operations on elements stand inside of one that does.
    """


@dataclass(frozen=True)
class ModelNode:
    """A node of a model."""

    name: str
    kind: str

    def __str__(self) -> str:
        return f"{self.kind} '{_shortened(self.name)}'"


def node_location(name: str, kind: str) -> NameLoc:
    """The location of the operations that a node becomes."""
    return NameLoc(ascii_text(name), NameLoc(ascii_text(kind), NoneAttr()))


def constant_location(location: LocationAttr) -> LocationAttr:
    """The location of a constant that a node holds: its name alone. Text keeps no locations of constants, so that what
    is made of one may not name its node."""
    return NameLoc(location.desc, NoneAttr()) if isinstance(location, NameLoc) else location


def nodes_of(location: Attribute) -> tuple[ModelNode, ...]:
    """The nodes that a location names, each once, in order."""
    return tuple(dict.fromkeys(_nodes(location)))


def fused_location(locations: Iterable[LocationAttr]) -> LocationAttr:
    """The location of what is made of several operations: the nodes of all, or the first location if none has any."""
    given = list(dict.fromkeys(locations))
    nodes = list(dict.fromkeys(node for location in given for node in _nodes(location)))
    if not nodes:
        return given[0] if given else UnknownLoc()
    more = len(nodes) > MOST_NODES or any(map(leaves_nodes_out, given))
    if len(nodes) == 1 and not more:
        return node_location(nodes[0].name, nodes[0].kind)
    parts = tuple(node_location(node.name, node.kind) for node in nodes[:MOST_NODES])
    return FusedLoc((*parts, UnknownLoc()) if more else parts, NoneAttr())


def describe_nodes(location: Attribute) -> str:
    """The nodes for people, in one line: `Conv '/conv1/Conv', Relu '/relu1'`; empty if it names none."""
    nodes = list(map(str, nodes_of(location)))
    return ", ".join([*nodes, "..."] if nodes and leaves_nodes_out(location) else nodes)


def name_nodes(location: Attribute) -> str:
    """The same with the whole names, which tell nodes apart."""
    nodes = [f"{node.kind} '{node.name}'" for node in nodes_of(location)]
    return ", ".join([*nodes, "..."] if nodes and leaves_nodes_out(location) else nodes)


def _nodes(location: Attribute) -> Sequence[ModelNode]:
    if isinstance(location, NameLoc) and isinstance(location.location, NameLoc):
        return (ModelNode(location.desc.data, location.location.desc.data),)
    if isinstance(location, FusedLoc):
        return [node for each in _parts(location) for node in _nodes(each)]
    return ()


def leaves_nodes_out(location: Attribute) -> bool:
    """Whether a location names some of its nodes only: others need not be added."""
    return isinstance(location, FusedLoc) and any(isinstance(each, UnknownLoc) for each in _parts(location))


def _parts(location: FusedLoc) -> Iterable[Attribute]:
    assert isinstance(location.locations, ArrayAttr)
    return location.locations


def name_hint(name: str) -> str | None:
    """A name of the model as a value's name in the IR, or None if nothing of it is left."""
    hint = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_")
    return f"v{hint}" if hint[:1].isdigit() else hint or None


def ascii_text(name: str) -> StringAttr:
    """A name as IR text can contain it: letters other than ASCII are escaped."""
    return StringAttr(name.encode("ascii", "backslashreplace").decode("ascii"))


def _shortened(name: str) -> str:
    """The name; of a long one its end, which distinguishes it from similar ones."""
    return name if len(name) <= _LONGEST_NAME else f"...{name[3 - _LONGEST_NAME :]}"
