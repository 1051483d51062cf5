"""The text target `cuda`: what `treadle-opt -t cuda` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.target import Target

from treadle.backends.cuda.printer import print_kernels
from treadle.errors import TreadleError

ACCEPTED = "a module that a GPU's stages have lowered, as treadle-opt --pipeline sm_80 --to lower writes it"


@dataclass(frozen=True)
class CudaTarget(Target):
    """All translation units of a module after `loop-to-cuda`, one after the other."""

    name = "cuda"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        """Writes the text; raises TreadleError for what cannot be printed."""
        units = print_kernels(module)
        if not units:
            raise TreadleError("no cuda.kernel to print", "target 'cuda'", ACCEPTED)
        output.write("\n".join(unit.text for unit in units))
