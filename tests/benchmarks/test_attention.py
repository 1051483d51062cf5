"""The benchmark of attention: its programs give the same result, and what its arguments mean."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from benchmarks.attention import Size, built, changes
from treadle.backends.c.executor import CpuProgram


def test_both_programs_give_attention() -> None:
    """One kernel, that reads slices of a product and joins heads; and the operators that it is made of."""
    size = Size.parse("causal:2x19x21x8")
    x = np.random.default_rng(0).standard_normal((1, 21, 48)).astype(np.float32)
    q, k, v = (x[0, :, 16 * n :][:, :16].astype(np.float64).reshape(21, 2, 8).swapaxes(0, 1) for n in range(3))
    scores = np.where(np.tri(19, 21, 2, dtype=np.bool_), q[:, :19] @ k.swapaxes(1, 2) / 8**0.5, -np.inf)
    weights = np.exp(scores - scores.max(2, keepdims=True))
    expected = (weights / weights.sum(2, keepdims=True) @ v).swapaxes(0, 1).reshape(1, 19, 16)
    for wanted, kernels in ((None, 3), ({}, 1), ({"keys": 5, "rows": 3}, 1)):
        path, program = built(size.module(whole=wanted is not None), wanted)
        assert len(program.launches) == kernels
        constants = [constant.array() for constant in program.constants]
        with CpuProgram(Path(path), program.inputs, program.outputs, constants, program.arena_bytes, 2) as ready:
            (actual,) = ready.run([x])
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)


def test_sizes_and_choices() -> None:
    assert Size.parse("masked:3x4x5x6") == Size("masked", 3, 4, 5, 6)
    assert str(Size.parse("12x128x64")) == "12x128x128x64"
    assert changes("keys=6,vectors=2") == {"keys": 6, "vectors": 2}
    for text in ("hidden:1x2x3", "1x2", "1x0x3"):
        with pytest.raises(argparse.ArgumentTypeError):
            Size.parse(text)
