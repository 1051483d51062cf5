"""What the compiled code of a module computes, in a process of its own: wrong code may end it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from xdsl.dialects.builtin import ModuleOp

from treadle.artifact_writer import write_artifact
from treadle.compile_options import CompileOptions
from treadle.compile_request import CompileRequest
from treadle.compiler import STAGE_NAMES
from treadle.target import Target
from treadle.tools.artifact_outputs import outputs_of_artifact
from treadle.tools.oracle import Array
from treadle.tuning.child import CallEndedError, Child

SECONDS = 600.0
"""After which code counts as hanging: the emulator gives each kernel 60."""


class CodeError(Exception):
    """Code that ended its process, or did not end; the text says which."""


def code_outputs(
    module: ModuleOp, target: Target, options: CompileOptions, inputs: Sequence[Array]
) -> tuple[Array, ...]:
    """The outputs of a module after the last pass: of C on this machine, of CUDA on the emulator.

    CodeError if the code does not give any. Raises what printing and compiling raises.
    """
    with TemporaryDirectory(prefix="treadle-") as folder:
        write_artifact(
            CompileRequest(module, target, options=options, cubins=False, after=STAGE_NAMES[-1]), Path(folder)
        )
        child = Child()
        try:
            return child.call(partial(outputs_of_artifact, folder, target.is_cuda, tuple(inputs)), SECONDS)
        except CallEndedError as error:
            raise CodeError(f"the compiled code gave no outputs: {error}") from error
        finally:
            child.close()


__all__ = ["CodeError", "code_outputs"]
