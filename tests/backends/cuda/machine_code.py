"""Machine code for tests: disassembled, or the test skipped in one line where that cannot be done."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.schedule_cases import Case, group_of
from treadle.backends.cuda.compiler import Cubin, compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.machine_code import Sass, disassemble
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.errors import TreadleError
from treadle.target import Target


def disassembled(cubin: Cubin) -> Mapping[str, Sass]:
    """The machine code of every kernel; skips the test where nvdisasm is absent or too old for the architecture."""
    try:
        return disassemble(cubin.image)
    except TreadleError as error:
        if "not installed" in error.message or "does not know" in error.message:
            pytest.skip(f"{cubin.arch}: {error}")
        raise


def machine_code_of(case: Case, template: str, arch: str, **choices: Choice) -> tuple[Sass, Resources]:
    """The instructions of a case's kernel, and what it uses: the default, of a template, with some choices replaced."""
    target, module = Target.parse(arch), case.module()
    use = case.default(target)
    assert use.template.data == template
    group_of(module).schedule = UseAttr.get(template, use.knobs() | choices)
    lower(treadle_context(), module, target, after="schedule")
    (unit,) = print_kernels(module)
    cubin = compile_cubin(unit, target)
    (sass,), (resources,) = disassembled(cubin).values(), cubin.resources.values()
    return sass, resources
