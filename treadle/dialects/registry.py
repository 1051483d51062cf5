"""Every dialect that Treadle defines or uses, loaded when the IR first names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from xdsl.context import Context
from xdsl.dialects import get_all_dialects
from xdsl.ir import Dialect
from xdsl.universe import Universe

from treadle.errors import TreadleError
from treadle.support.extensions import Sources, watch
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
    "hopper": "treadle.dialects.hopper:HOPPER",
}
UPSTREAM = ("builtin", "func", "arith", "math", "scf", "memref", "vector")

DialectFactory = Callable[[], Dialect]


def dialect_factories() -> dict[str, DialectFactory]:
    """Treadle's own dialects by name; a factory imports its dialect when it is called."""
    return {name: partial(resolve_value, path, Dialect) for name, path in _DIALECTS.items()}


@dataclass(frozen=True)
class AddedDialect:
    """A dialect of an installed package: its name, its universe as `module:name`, and the files that define it."""

    name: str
    universe: str
    sources: Sources

    def load(self) -> Dialect:
        """The dialect, whose module is imported when this is first called."""
        return resolve_value(self.universe, Universe).all_dialects[self.name]()


ADDED_DIALECTS: dict[str, AddedDialect] = {}
"""By name. Models may have their operations up to the end of the stage `graph`."""
watch(__name__, ADDED_DIALECTS)


def register_universe(path: str) -> None:
    """Adds the dialects of the universe at `module:name`. TreadleError for a name of Treadle's or of xDSL's."""
    for name in resolve_value(path, Universe).all_dialects:
        known = ADDED_DIALECTS.get(name)
        if name in _DIALECTS or name in get_all_dialects() or (known is not None and known.universe != path):
            raise TreadleError(f"there is a dialect '{name}'", path, "another name")
        ADDED_DIALECTS[name] = AddedDialect(name, path, Sources.of(path.partition(":")[0]))


def treadle_context() -> Context:
    """A context that knows Treadle's dialects, the upstream ones that its passes produce, and those that were added."""
    upstream = get_all_dialects()
    context = Context()
    for name in UPSTREAM:
        context.register_dialect(name, upstream[name])
    for name, factory in dialect_factories().items():
        context.register_dialect(name, factory)
    for name, added in ADDED_DIALECTS.items():
        context.register_dialect(name, added.load)
    return context
