"""Limits on the sizes of a module's tensors, checked before any pass works on their elements."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.dtypes import TensorSizes, is_supported
from treadle.dialects.location import location_of
from treadle.errors import TreadleError


def check_sizes(module: ModuleOp) -> None:
    """TreadleError naming the first tensor that is too large, or that makes all of them together too large."""
    sizes = TensorSizes()
    for op in module.walk():
        values = [*op.results, *(arg for region in op.regions for block in region.blocks for arg in block.args)]
        for type in (value.type for value in values):
            if isinstance(type, TensorType) and is_supported(type.get_element_type()):
                _add(sizes, type, op)


def _add(sizes: TensorSizes, type: TensorType, op: Operation) -> None:
    try:
        sizes.add(type)
    except VerifyException as error:
        raise TreadleError(str(error), location_of(op)) from error


__all__ = ["check_sizes"]
