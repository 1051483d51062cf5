"""What the launches of an artifact compute, read from the IR that it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from xdsl.dialects.builtin import ModuleOp

from treadle.artifact.artifact import MODULE, Artifact
from treadle.backends.c.printer import kernel_names
from treadle.backends.timeline import LaunchNames
from treadle.dialects.host import DispatchOp, IfOp, LaunchOp, LoopOp
from treadle.dialects.location import LocatedParser, name_nodes
from treadle.dialects.registry import treadle_context

Addresses = Callable[[Iterable[str]], Mapping[int | str, str]]


def launch_names(artifact: Artifact, addresses: Addresses | None = None) -> LaunchNames:
    """The names of an artifact's launches; TreadleError where its IR is missing or changed.

    addresses: of a CPU's library: its kernels by their addresses
    """
    where = str(artifact.folder / MODULE)
    module = LocatedParser(treadle_context(), artifact.module_text(), where).parse_module()
    symbols = kernel_names(module) if addresses is not None else {}
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    nodes: dict[str, dict[str, None]] = {}
    for launch in launches:
        symbol = launch.kernel.string_value()
        nodes.setdefault(symbols.get(symbol, symbol), {})[name_nodes(launch.location)] = None
    known = {} if addresses is None else dict(addresses(symbols.values()))
    ordered = [] if has_choices(module) else [name_nodes(launch.location) for launch in launches]
    return LaunchNames(known, {name: "; ".join(filter(None, each)) for name, each in nodes.items()}, ordered)


def has_choices(module: ModuleOp) -> bool:
    """Whether shapes or data decide which launches a call has."""
    return any(isinstance(op, DispatchOp | LoopOp | IfOp) for op in module.walk())
