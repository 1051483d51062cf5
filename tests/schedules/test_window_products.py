"""Convolutions as products of warpgroups: emulated with all checks, against sums in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as combinations

import ml_dtypes
import numpy as np
import pytest

from tests.helpers.graphs import Graph, random
from tests.schedules.tensor_cores import DTYPES, Array, scheduled
from treadle.backends.cuda.emulator.emulated_program import EmulatedProgram
from treadle.dialects.graph import ConvOp, TransposeOp
from treadle.dialects.schedule import Choice
from treadle.target import Target

HOPPER = Target.parse("sm_90a")


@dataclass(frozen=True)
class Convolution:
    """Of images of some shape, [N, spatial..., C]."""

    image: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @staticmethod
    def square(
        image: Sequence[int], channels: int, kernel: int = 3, stride: int = 1, pad: int = 1, dilation: int = 1
    ) -> Convolution:
        """The same along each spatial dimension."""
        each = [(value,) * (len(image) - 2) for value in (kernel, stride, pad, dilation)]
        return Convolution(tuple(image), channels, each[0], each[1], each[2] * 2, each[3])

    def graph(self, dtype: str) -> tuple[Graph, Array, Array]:
        """With the image, channels last, as input; the image and the filters, [OC, C, kernel...]."""
        x = random(*self.image, seed=1).astype(DTYPES[dtype])
        w = random(self.channels, self.image[-1], *self.kernel, seed=2).astype(DTYPES[dtype])
        return Graph(x), x, w

    def expected(self, x: Array, w: Array) -> Array:
        """The sum over the window's positions of shifted images, times filters."""
        rank = len(self.kernel)
        padding = [(0, 0), *zip(self.pads[:rank], self.pads[rank:], strict=True), (0, 0)]
        padded = np.pad(x.astype(np.float64), padding)
        total: Array | float = 0.0
        for tap in combinations(*map(range, self.kernel)):
            each = zip(tap, self.dilations, self.strides, self.kernel, padded.shape[1:-1], strict=True)
            cut = [
                slice(t * dilation, extent - (k - 1 - t) * dilation, stride) for t, dilation, stride, k, extent in each
            ]
            total = total + padded[(slice(None), *cut)] @ w[(..., *tap)].astype(np.float64).T
        return np.asarray(total)


square = Convolution.square
CASES: dict[str, tuple[Convolution, tuple[int, int]]] = {
    "3 x 3": (square((2, 9, 7, 64), 64), (64, 128)),
    "one pixel": (square((1, 1, 1, 8), 8), (64, 128)),
    "images of one pixel": (square((3, 1, 1, 64), 72), (64, 128)),
    "stride 2, 96 channels": (square((2, 10, 11, 96), 136, stride=2), (64, 128)),
    "5 x 5, 40 channels": (square((1, 13, 9, 40), 72, 5, pad=2), (128, 128)),
    "dilation 2": (square((2, 12, 12, 64), 64, pad=2, dilation=2), (128, 128)),
    "1 x 1, stride 2": (square((2, 9, 9, 128), 200, 1, stride=2, pad=0), (64, 256)),
    "other strides, uneven padding": (
        Convolution((4, 7, 7, 24), 72, (3, 3), (2, 1), (0, 1, 2, 1), (1, 1)),
        (128, 192),
    ),
    "7 x 7, stride 2, 16 channels": (square((1, 20, 33, 16), 40, 7, stride=2, pad=3), (128, 128)),
    "rows of pixels as wide as a tile": (square((1, 6, 64, 64), 64), (64, 128)),
    "whole tiles": (square((2, 8, 16, 128), 128), (256, 128)),
    "no padding": (square((2, 6, 5, 104), 8, pad=0), (64, 128)),
    "1 x 3": (Convolution((1, 3, 70, 64), 64, (1, 3), (1, 1), (0, 1, 0, 1), (1, 1)), (128, 128)),
    "columns of pixels": (square((2, 40, 1, 64), 64), (64, 128)),
    "strides beyond windows": (square((2, 11, 9, 64), 64, 2, stride=3, pad=0), (64, 128)),
    "one dimension": (square((3, 50, 72), 64, 5, stride=2, pad=2), (64, 128)),
    "three dimensions": (square((2, 4, 5, 6, 64), 64, 2, pad=1), (128, 128)),
}
"""And the tile."""


def emulated(case: Convolution, template: str, dtype: str, **choices: Choice) -> None:
    """Runs a convolution with all checks, and compares it."""
    graph, x, w = case.graph(dtype)
    rank = len(case.kernel)
    first = graph.add(TransposeOp(graph[0], [0, rank + 1, *range(1, rank + 1)]))
    result = graph.add(ConvOp(first, graph.constant(w), case.strides, case.pads, case.dilations, 1))
    module = graph.module(graph.add(TransposeOp(result, [0, *range(2, rank + 2), 1])))
    lowered = scheduled(module, template, choices, HOPPER)
    (found,), (report,) = EmulatedProgram(lowered).run(graph.inputs)
    assert not report.findings, str(report)
    exact, magnitude = case.expected(x, w), case.expected(abs(x), abs(w))
    allowed = x.shape[-1] * np.prod(case.kernel) * 2.0**-24 * magnitude
    allowed += float(ml_dtypes.finfo(found.dtype).eps) / 2 * (abs(exact) + allowed)
    assert found.shape == exact.shape
    assert (abs(found.astype(np.float64) - exact) <= allowed).all()


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float16") for name in CASES), *((name, "bfloat16") for name in [*CASES][::4])]
)
def test_tiles_that_overhang(name: str, dtype: str) -> None:
    case, block = CASES[name]
    emulated(case, "matmul_wgmma", dtype, block=block, stages=2 + len(name) % 3, group=1)


@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES).__getitem__)
def test_clusters(number: int) -> None:
    case, _ = [*CASES.values()][number]
    steps = int(np.prod(case.kernel)) * -(-case.image[-1] // 64)
    split = max(split for split in ((2, 4, 8)[: 1 + number % 3]) if split <= steps)
    emulated(case, "matmul_cluster", "float16", block=((64, 64), (128, 64))[number % 2], stages=2, split=split)
