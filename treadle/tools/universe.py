"""The universe that `xdsl-opt`, and any other xDSL tool, finds through the entry point `xdsl.universe`.

Of passes and text targets a TreadleError is a DiagnosticException there, as xDSL's own errors are: under
`--verify-diagnostics` xDSL's drivers print it as one line, and without it behind a traceback, like every diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.universe import Universe
from xdsl.utils.exceptions import DiagnosticException
from xdsl.utils.target import Target

from treadle.dialects.registry import dialect_factories
from treadle.errors import TreadleError
from treadle.passes.registry import pass_factories
from treadle.support.lazy import resolve_class

_TARGETS: Mapping[str, str] = {
    "c": "treadle.backends.c.printer:CTarget",
    "cuda": "treadle.backends.cuda.printer:CudaTarget",
}


@contextmanager
def _diagnosed() -> Generator[None]:
    """A TreadleError inside becomes xDSL's diagnostic, of one line."""
    try:
        yield
    except TreadleError as error:
        raise DiagnosticException(str(error)) from error


def _pass_factory(factory: Callable[[], type[ModulePass]]) -> Callable[[], type[ModulePass]]:
    def apply(self: ModulePass, ctx: Context, op: ModuleOp) -> None:
        with _diagnosed():
            factory().apply(self, ctx, op)

    return lambda: type(factory().__name__, (factory(),), {"apply": apply})


def _target_factory(path: str) -> Callable[[], type[Target]]:
    def emit(self: Target, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        with _diagnosed():
            resolve_class(path, Target).emit(self, ctx, module, output)  # pyright: ignore[reportAbstractUsage]

    return lambda: type(path.partition(":")[2], (resolve_class(path, Target),), {"emit": emit})


TREADLE_UNIVERSE = Universe(
    all_dialects=dialect_factories(),
    all_passes={name: _pass_factory(factory) for name, factory in pass_factories().items()},
    all_targets={name: _target_factory(path) for name, path in _TARGETS.items()},
)
"""Treadle's dialects, passes and text targets, each imported at its first use."""
