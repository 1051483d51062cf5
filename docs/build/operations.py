"""`make docs`: writes docs/operations.md, the reference of every operation and attribute, from the definitions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from xdsl.ir import Attribute, Dialect, Operation
from xdsl.irdl import IRDLOperation, OptOperandDef, OptResultDef, VarOperandDef, VarResultDef

from docs.build.architecture import Excerpts, rewrite
from treadle.dialects.registry import dialect_factories
from treadle.tools.reporting import run_reporting

DOCUMENT = "docs/operations.md"


def main() -> int:
    """Rewrites the document; prints whether it changed."""
    return run_reporting("render_operations", lambda: rewrite({DOCUMENT: EXCERPTS}))


def dialect_text(dialect: Dialect) -> str:
    """A section: each operation with its operands and results, then each attribute with a docstring."""
    operations = sorted(dialect.operations, key=lambda op: op.name)
    attributes = sorted(dialect.attributes, key=lambda attribute: attribute.name)
    return "\n".join([*map(_operation, operations), *map(_attribute, attributes)])


def _operation(op: type[Operation]) -> str:
    signature = "; ".join(part for part in _signature(op) if part)
    return f"### `{op.name}`\n\n{inspect.cleandoc(op.__doc__ or '')}\n\n{signature}\n"


def _signature(op: type[Operation]) -> Iterator[str]:
    assert issubclass(op, IRDLOperation)
    definition = op.get_irdl_definition()
    variadic = (VarOperandDef, OptOperandDef, VarResultDef, OptResultDef)
    for title, entries in (("operands", definition.operands), ("results", definition.results)):
        names = [f"`{name}`{'…' if isinstance(kind, variadic) else ''}" for name, kind in entries]
        yield f"{title}: {', '.join(names)}" if names else ""
    for title, names in (("properties", definition.properties), ("regions", dict(definition.regions))):
        yield f"{title}: {', '.join(f'`{name}`' for name in names)}" if names else ""
    traits = sorted({type(trait).__name__ for trait in definition.traits.traits})
    yield f"traits: {', '.join(traits)}" if traits else ""


def _attribute(attribute: type[Attribute]) -> str:
    return f"### `#{attribute.name}`\n\n{inspect.cleandoc(attribute.__doc__ or '')}\n"


EXCERPTS: Excerpts = {
    name: (lambda factory=factory: dialect_text(factory())) for name, factory in dialect_factories().items()
}
"""What the document can ask for, by name: a dialect each."""

if __name__ == "__main__":
    sys.exit(main())
