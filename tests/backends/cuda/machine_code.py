"""Machine code for tests: disassembled, or the test skipped in one line where that cannot be done."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from treadle.backends.cuda.compiler import Cubin
from treadle.backends.cuda.machine_code import Sass, disassemble
from treadle.errors import TreadleError


def disassembled(cubin: Cubin) -> Mapping[str, Sass]:
    """The machine code of every kernel; skips the test where nvdisasm is absent or too old for the architecture."""
    try:
        return disassemble(cubin.image)
    except TreadleError as error:
        if "not installed" in error.message or "does not know" in error.message:
            pytest.skip(f"{cubin.arch}: {error}")
        raise
