"""Operators of known operands, evaluated while importing."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from treadle.dialects.graph import Operator
from treadle.dialects.graph.evaluate import evaluate
from treadle.frontends.common.arrays import Array

_SMALL = 64
"""Elements of an array whose values are remembered: shapes, axes, and what is computed of them for each layer anew."""
_MOST_FOLDED = 4096

_folded: dict[object, Array] = {}


def evaluated(op: Operator, known: Mapping[SSAValue, Array]) -> Array:
    """What an operator gives; of small arrays only the first time, since a definition takes longer than its values."""
    if prod(op.shape) > _SMALL or any(array.size > _SMALL for array in known.values()):
        return np.asarray(evaluate(op, known))
    values = tuple((operand.type, known[operand].tobytes()) for operand in op.operands)
    key = (op.name, op.result.type, frozenset(op.properties.items()), frozenset(op.attributes.items()), values)
    found = _folded.get(key)
    if found is None:
        found = np.array(evaluate(op, known))
        found.flags.writeable = False
        if len(_folded) >= _MOST_FOLDED:
            _folded.clear()  # other threads hold what they took out
        _folded[key] = found
    return found


__all__ = ["evaluated"]
