"""Instruments, which run around passes: timing, a trace of the IR, verification. No pass depends on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from treadle.dialects.location import ir_text, location_of
from treadle.errors import TreadleError
from treadle.passes.dominance import undominated_use


class Instrument:
    """Called before and after each pass; the methods do nothing unless they are overridden."""

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Called when `step` of `stage` is about to change `module`."""

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Called when `step` of `stage` has changed `module`."""


@dataclass
class Timing(Instrument):
    """Seconds that each pass took, in the order in which they ran."""

    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    _start: float = 0.0

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Starts the clock."""
        self._start = time.perf_counter()

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Stops the clock."""
        self.seconds.append((step.name, time.perf_counter() - self._start))


class Verify(Instrument):
    """Verifies the module after each pass."""

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Raises TreadleError naming the pass and the operation that it left invalid."""
        verify(module, f"after pass '{step.name}'")


@dataclass
class Trace(Instrument):
    """Writes the IR to `directory` after each pass that changed it, numbered by pass: `07-graph-fuse.mlir`."""

    directory: Path
    _count: int = 0
    _latest: str = ""

    def start(self, module: ModuleOp) -> None:
        """Writes the IR before the first pass, and removes an earlier trace, which would mix with this one.

        TreadleError if the directory cannot be written.
        """
        for path in self.directory.glob("[0-9][0-9]-*.mlir"):
            path.unlink()
        self._write("import", module)

    def after(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Writes the IR after `step`, if it changed."""
        self._write(step.name, module)

    def _write(self, name: str, module: ModuleOp) -> None:
        path = self.directory / f"{self._count:02}-{name}.mlir"
        self._count += 1
        text = ir_text(module)
        if text == self._latest:
            return
        self._latest = text
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise TreadleError(
                f"cannot write the trace: {error.strerror}", path, "a folder that can be written"
            ) from error


@dataclass
class Announce(Instrument):
    """Calls `announce` with the name of each pass before it runs, for a progress display."""

    announce: Callable[[str], None]

    def before(self, stage: str, step: ModulePass, module: ModuleOp) -> None:
        """Announces the pass."""
        self.announce(step.name)


def verify(module: ModuleOp, when: str) -> None:
    """Verifies the whole module; TreadleError with the location and the name of the first invalid operation."""
    try:
        module.verify()
    except (RecursionError, MemoryError):
        raise
    except Exception as error:  # xDSL's own operations raise more than VerifyException
        culprit = _culprit(module)
        where = when if culprit is None else location_of(culprit) or when
        name = "the IR" if culprit is None else f"'{culprit.name}'"
        reason = (str(error).removeprefix("Operation does not verify: ").splitlines() or [type(error).__name__])[0]
        raise TreadleError(f"{name} does not verify {when}: {reason}", where) from error
    unordered = undominated_use(module)
    if unordered is not None:
        op, operand = unordered
        message = f"operand {operand} of '{op.name}' is not defined before it {when}"
        raise TreadleError(message, location_of(op) or when)


def _culprit(module: ModuleOp) -> Operation | None:
    """The first operation that does not verify by itself."""
    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
        except Exception:
            return op
    return None
