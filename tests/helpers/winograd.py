"""Convolutions in tiles of a given size, whatever their work, and what they give in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from treadle.compiler.pipeline import STAGES, passes_of
from treadle.dialects.registry import treadle_context
from treadle.passes.graph.graph_block_channels import GraphBlockChannelsPass
from treadle.passes.graph.layout.blocked_channels import BlockedChannels
from treadle.passes.graph.layout.images import Images
from treadle.target import Target

Array = NDArray[Any]


@dataclass(frozen=True)
class InTiles(ModulePass):
    """graph-block-channels, with all convolutions that have tiles in those of `outputs` by `outputs`."""

    lanes: int = 4
    outputs: int | None = 2
    name = "in-tiles"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if isinstance(function, FuncOp):
                Images(function.body.block, BlockedChannels(self.lanes, lambda _: self.outputs)).run()


def after_graph(module: ModuleOp, outputs: int | None, target: str = "cpu") -> ModuleOp:
    """The module after stage `graph`, changed in place, with convolutions in tiles of that size; None: directly."""
    graph = next(stage for stage in STAGES if stage.name == "graph")
    parsed = Target.parse(target)
    for step in passes_of(graph, parsed):
        forced = InTiles(parsed.lanes, outputs) if isinstance(step, GraphBlockChannelsPass) else step
        forced.apply(treadle_context(), module)
    return module


@dataclass(frozen=True)
class Layer:
    """A convolution of stride 1: images, output channels, and pads as of `graph.conv`."""

    image: tuple[int, int, int, int]
    channels: int
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)

    def weights(self, seed: int = 0) -> Array:
        """Random filters whose results are about as large as the image."""
        shape = (self.channels, self.image[1], 3, 3)
        values = np.random.default_rng(seed).standard_normal(shape) / (9 * self.image[1]) ** 0.5
        return values.astype(np.float32)

    def of(self, image: tuple[int, int, int, int]) -> Layer:
        """The same of another image."""
        return replace(self, image=image)

    @property
    def tolerance(self) -> float:
        """Of the largest error of F(2x2) in f32, where the root mean square of the result is about 1: the rounding of
        as many terms as a sum has, independent of one another, with a margin of four for the largest of many."""
        return 4 * 2.0**-23 * (9 * self.image[1]) ** 0.5


def convolved(x: Array, weights: Array, pads: Sequence[int]) -> Array:
    """The convolution of stride 1 in float64, by its definition."""
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    windows = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weights.astype(np.float64))


__all__ = ["InTiles", "Layer", "after_graph", "convolved"]
