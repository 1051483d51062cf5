"""Every dialect that Treadle defines or uses, loaded when the IR first names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.ir import Dialect

from treadle.support.lazy import resolve_value

_DIALECTS: Mapping[str, str] = {
    "scalar": "treadle.dialects.scalar:SCALAR",
    "graph": "treadle.dialects.graph:GRAPH",
    "task": "treadle.dialects.task:Task",
    "loop": "treadle.dialects.loop:LOOP",
    "tile": "treadle.dialects.tile:TILE",
    "host": "treadle.dialects.host:HOST",
    "schedule": "treadle.dialects.schedule:SCHEDULE",
    "cuda": "treadle.dialects.cuda:CUDA",
}
UPSTREAM = ("builtin", "func", "arith", "math", "scf", "memref", "vector")

DialectFactory = Callable[[], Dialect]


def dialect_factories() -> dict[str, DialectFactory]:
    """Treadle's own dialects by name; a factory imports its dialect when it is called."""
    return {name: partial(resolve_value, path, Dialect) for name, path in _DIALECTS.items()}


def treadle_context() -> Context:
    """A context that knows Treadle's dialects and the upstream ones that its passes produce."""
    upstream = get_all_dialects()
    context = Context()
    for name in UPSTREAM:
        context.register_dialect(name, upstream[name])
    for name, factory in dialect_factories().items():
        context.register_dialect(name, factory)
    return context
