"""Converters by family of operators; importing this package registers all of them."""

from treadle.frontends.torch.converters import (
    attention,
    creation,
    elementwise,
    indexing,
    linear,
    movement,
    normalization,
    pool,
    reduction,
    resize,
)
from treadle.frontends.torch.registry import find_converter

FAMILIES = (
    attention, creation, elementwise, indexing, linear, movement, normalization, pool, reduction, resize,
)  # fmt: skip
"""Every module that registers converters."""

__all__ = ["FAMILIES", "find_converter"]
