"""Converters by family of operators; importing this package registers all of them."""

from treadle.frontends.torch.call import find_converter
from treadle.frontends.torch.converters import (
    elementwise,
    experts,
    linear,
    movement,
    pool,
    sampling,
)

FAMILIES = (elementwise, experts, linear, movement, pool, sampling)
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_converter"]
