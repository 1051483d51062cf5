"""loop-skip-padding: what is required is right, compiled and emulated; and what is not is not computed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.emulated_batch import CUDA, EmulatedProgram
from tests.helpers.extents import CASES, draws
from tests.helpers.program_batch import CompiledProgram, compile_programs, print_program
from treadle.backends.c import executor
from treadle.backends.cuda.emulator.launches import LEFT_OUT
from treadle.backends.reference.run_module import run_module
from treadle.errors import TreadleError
from treadle.ir import lower, parse, print_text

Array = NDArray[Any]


BY_RUNNER = {"c": [name for name in CASES if name != "split k"], "emulator": list(CASES)}
"""A CPU splits no product: it would have the kernel of "half" once more, which a compiler takes long for."""


@cache
def programs(runner: str) -> Mapping[str, CompiledProgram | EmulatedProgram]:
    """Every case, from one call of a compiler; in the emulator with every check."""
    if runner == "emulator":
        return CUDA.compiled([CUDA.printed(name, CASES[name].module()) for name in BY_RUNNER[runner]])
    return compile_programs([print_program(name, CASES[name].module()) for name in BY_RUNNER[runner]])


@pytest.mark.parametrize(("runner", "name"), [(runner, name) for runner, names in BY_RUNNER.items() for name in names])
def test_what_is_needed_is_right(runner: str, name: str):
    case = CASES[name]
    for extents in draws(case):
        given, exact = case.arguments(extents)
        case.check(extents, programs(runner)[name].run(given), exact)


UNNEEDED: Sequence[tuple[str, Mapping[str, int], Sequence[Any]]] = [
    ("linear", {"b": 2, "s": 7}, [np.s_[:2, 16:], np.s_[2:]]),
    ("rows", {"b": 1, "s": 7}, [np.s_[:1, 8:], np.s_[1:]]),
    ("softmax", {"s": 3}, [np.s_[:, 4:]]),
    ("elementwise", {"n": 13}, [np.s_[4096:]]),
    ("transposes", {"b": 1, "s": 7}, [np.s_[1:]]),
    # A GPU's tile has 32 rows of sequences of 40: nearly all of them begin in one and end in the next.
    ("merged", {"b": 2, "s": 13}, [np.s_[2:, 16:]]),
    ("attention", {"b": 1, "s": 5}, [np.s_[:1, 32:], np.s_[1:]]),
    ("attention operator", {"b": 1, "s": 5}, [np.s_[:1, 32:], np.s_[1:]]),
    ("two outputs", {"n": 9, "m": 29}, [np.s_[24:]]),
    ("half", {"b": 1, "s": 1}, [np.s_[:1, 32:], np.s_[1:]]),
    # Eight blocks of a GPU sum one tile of 32 x 64: all of them run, or none.
    ("split k", {"s": 17}, [np.s_[:, 32:]]),
]


@pytest.mark.parametrize(
    ("runner", "name", "extents", "beyond"),
    [(runner, *case) for runner, names in BY_RUNNER.items() for case in UNNEEDED if case[0] in names],
)
def test_what_nobody_needs_is_not_stored(
    runner: str, name: str, extents: Mapping[str, int], beyond: Sequence[Any], monkeypatch: pytest.MonkeyPatch
):
    """Outputs hold NaN before a run, in the emulator the bytes of memory of which kernels may leave parts."""
    case = CASES[name]
    empty = executor.aligned_empty
    monkeypatch.setattr(executor, "aligned_empty", lambda shape, dtype: filled(empty(shape, dtype)))
    given, exact = case.arguments(extents, beyond=1)
    outputs = programs(runner)[name].run(given)
    case.check(extents, outputs, exact)
    for region in beyond:
        assert outputs[0][region].size
        untouched = np.ascontiguousarray(outputs[0][region])
        assert np.isnan(untouched).all() or (untouched.view(np.uint8) == LEFT_OUT).all()


def filled(array: Array) -> Array:
    """An output as it is before a run; other buffers have other types."""
    array.fill(np.nan if array.dtype == np.float32 else 0)
    return array


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("name", ["merged", "two outputs"])
def test_the_reference_runs_kernels_that_leave_elements(name: str, target: str):
    """Where a kernel may leave elements; of another, the reference says which one is missing. After each stage."""
    case = CASES[name]
    module, done = case.module(), None
    extents = {extent: 3 for extent in case.bounds}
    given, exact = case.arguments(extents, beyond=1)
    for stage in ("kernels", "plan", "loops"):
        lower(module, target, after=done, to=stage)
        done = stage
        for reverse in (False, True):
            outputs = run_module(module, given, reverse=reverse)
            case.check(extents, outputs, exact)
            assert np.isnan(outputs[0]).any()
        whole = parse(re.sub(r" requires \[[^]]*\]| partial", "", print_text(module)))
        with pytest.raises(TreadleError, match=r"element \[.*\] of .*result.* is never stored"):
            run_module(whole, given)
