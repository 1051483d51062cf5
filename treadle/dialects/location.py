"""Where an operation comes from, for messages."""

from __future__ import annotations

from xdsl.dialects.builtin import FileLineColLoc, NameLoc, StringAttr
from xdsl.ir import Operation

from treadle.dialects.model_nodes import describe_nodes


def location_of(op: Operation) -> str | None:
    """The nodes of the model, or the line of a file, that it comes from; else the symbol of what encloses it."""
    location = op.location
    if isinstance(location, FileLineColLoc):
        return f"{location.filename.data}:{location.line.data}:{location.column.data}"
    nodes = describe_nodes(location)
    if nodes:
        return nodes
    if isinstance(location, NameLoc):
        return location.desc.data
    enclosing: Operation | None = op
    while enclosing is not None:
        symbol = enclosing.properties.get("sym_name") or enclosing.attributes.get("sym_name")
        if isinstance(symbol, StringAttr):
            return f"{enclosing.name} @{symbol.data}"
        enclosing = enclosing.parent_op()
    return None
