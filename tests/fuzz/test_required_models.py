"""Drawn models of whose outputs a part is needed give in that part what they give without the limit, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import pytest

from tests.fuzz.generate import case_of_seed
from tests.fuzz.required import RequiredCase
from tests.helpers.emulated_batch import CUDA
from tests.helpers.program_batch import C, Maker, ProgramBatch
from treadle.dialects.loop import KernelOp
from treadle.frontends.onnx import import_model
from treadle.ir import lower

SEEDS, EMULATED = range(3000, 3020), range(3000, 3008)


class Runs(Protocol):
    """A program that is ready."""

    def run(self, inputs: Sequence[Any], /) -> list[Any]:
        """Its outputs."""
        ...


class Programs(Protocol):
    """Programs by name."""

    def __getitem__(self, name: str, /) -> Runs: ...


@cache
def required(seed: int) -> RequiredCase:
    return RequiredCase(case_of_seed(seed), seed)


def makers(seeds: range) -> dict[str, Maker]:
    """Each model twice: whole, and with its required regions."""
    found: dict[str, Maker] = {}
    for seed in seeds:
        found[f"{seed} whole"] = lambda seed=seed: import_model(required(seed).case.content())
        found[f"{seed} required"] = lambda seed=seed: required(seed).module()
    return found


COMPILED = ProgramBatch(makers(SEEDS), C)
EMULATIONS = ProgramBatch(makers(EMULATED), CUDA)


@pytest.mark.parametrize("seed", SEEDS)
def test_compiled(seed: int):
    check(seed, COMPILED)


@pytest.mark.parametrize("seed", EMULATED)
def test_emulated_with_every_check(seed: int):
    check(seed, EMULATIONS)


def check(seed: int, programs: Programs) -> None:
    case = required(seed)
    inputs = list(case.case.inputs.values())
    whole = programs[f"{seed} whole"].run(inputs)
    for extents in case.draw_extents(4):
        given = [*inputs, *(np.array(extent, np.int64) for extent in extents)]
        outputs = programs[f"{seed} required"].run(given)
        for n, (right, actual) in enumerate(zip(whole, outputs, strict=True)):
            needed = case.needed(n, extents)
            np.testing.assert_array_equal(actual[needed], right[needed], str(case.required_regions[n]))


def test_some_models_have_a_kernel_that_leaves_something_out():
    """Else the tests above would compare nothing with nothing."""
    found = 0
    for seed in SEEDS[:16]:
        module = required(seed).module()
        lower(module, to="kernels")
        found += any(isinstance(op, KernelOp) and op.required_regions is not None for op in module.walk())
        if found == 4:
            return
    pytest.fail(f"{found} models have one")
