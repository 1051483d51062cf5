"""The text target `c`: what `treadle-opt -t c` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from treadle.backends.c.printer import has_host, print_host, print_kernels
from treadle.errors import TreadleError

ACCEPTED = "a module that a CPU's stages have lowered, as treadle-opt --pipeline cpu --to lower writes it"


@dataclass(frozen=True)
class CTarget(Target):
    """All translation units of a module after `loop-to-c`, one after the other, the host program last."""

    name = "c"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Writes the text; raises TreadleError for what cannot be printed."""
        units = print_kernels(module)
        if not units:
            raise TreadleError("no kernel to print", "target 'c'", ACCEPTED)
        if has_host(module):
            units.append(print_host(module))
        output.write("\n".join(unit.text for unit in units))
