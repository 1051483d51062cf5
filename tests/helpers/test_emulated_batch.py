"""Programs of a batch on the emulator: each runs its own kernels, and what the checks find fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from tests.helpers import emulated_batch
from tests.helpers.emulated_batch import CUDA
from tests.helpers.graphs import random
from tests.helpers.program_batch import ProgramBatch
from tests.helpers.test_program_batch import shifted
from treadle.backends.cuda.compiler import Unit
from treadle.backends.cuda.printer import print_kernels
from treadle.errors import TreadleError

X = random(3, 5)


def spoil(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    """Lets the printer write `wrong` in place of `right`."""

    def spoiled(module: ModuleOp) -> list[Unit]:
        return [Unit(unit.name, unit.text.replace(right, wrong)) for unit in print_kernels(module)]

    monkeypatch.setattr(emulated_batch, "print_kernels", spoiled)


def test_kernels_of_one_name_and_other_values_share_a_text() -> None:
    programs = ProgramBatch({str(n): partial(shifted, n) for n in (1, 2)}, CUDA)
    assert programs["1"].emulator is programs["2"].emulator
    for n in (2, 1):
        np.testing.assert_array_equal(programs[str(n)].run([X])[0], X + np.float32(n))


def test_what_a_check_finds_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "X0[thread]", "X0[thread + 1]")
    programs = ProgramBatch({"1": partial(shifted, 1)}, CUDA)
    with pytest.raises(AssertionError, match="bounds"):
        programs["1"].run([X])


def test_what_the_compiler_rejects_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "666.0f", "no_such_name")
    programs = ProgramBatch({"good": partial(shifted, 3), "bad": partial(shifted, 666)}, CUDA)
    np.testing.assert_array_equal(programs["good"].run([X])[0], X + np.float32(3))
    with pytest.raises(TreadleError, match="no_such_name"):
        programs["bad"]
