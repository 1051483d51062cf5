"""Pictures at the points of a grid."""

from __future__ import annotations

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.common.sampling import PADDINGS, grid_sampled
from treadle.frontends.torch.call import Call, converts

_MODES = ("linear", "nearest", "cubic")
"""By PyTorch's numbers, as `PADDINGS` are."""


@converts("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sample(c: Call, g: GraphBuilder) -> Tensor:
    """`input [N, C, ...]` at the points of `grid [N, ..., dimensions]`."""
    x, grid = c.tensor("input"), c.tensor("grid")
    if 0 in (*x.shape, *grid.shape):
        raise c.error(f"a grid of shape {grid.shape} for an input of shape {x.shape}", "no extent of 0")
    mode, padding = _MODES[c.int("interpolation_mode")], PADDINGS[c.int("padding_mode")]
    return grid_sampled(g, x, grid, mode, padding, c.flag("align_corners"))
