"""What single kernels must compute: definitions in float64 with a limit for each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp, f32
from xdsl.ir import Operation, SSAValue

from treadle.backends.reference.bound_module import bound_module
from treadle.backends.reference.bounded import Bounded, Format, Running, rounded
from treadle.backends.reference.run_module import bounded_within_extents, find_function
from treadle.dialects.graph import AttentionOp
from treadle.dialects.graph.dtypes import element_type
from treadle.dialects.graph.evaluate import evaluate_in
from treadle.target.options import Precision
from treadle.tools.oracle import compare

Array = NDArray[Any]

KERNEL_UNITS = 4.0
"""What an operation adds to a limit, in halves of an epsilon: two units in the last place."""


def limits(op: Operation, env: Mapping[SSAValue, Array], precision: Precision = "f32") -> Bounded:
    """What an operation computes from `env`. With a precision, operands of f32 may be rounded to it."""
    bounded = {operand: _operand(operand, array, precision) for operand, array in env.items()}
    return evaluate_in(Running(KERNEL_UNITS), op, bounded)[0]


def module_limits(module: ModuleOp, inputs: Sequence[Array]) -> tuple[Bounded, ...]:
    """What the results of @main are, within extents that depend on data."""
    return tuple(
        bounded_within_extents(find_function(module, "main"), bound_module(module, inputs, units=KERNEL_UNITS))
    )


def with_rounded_weights(result: Bounded, values: Array, keys: int) -> Bounded:
    """What rounding the weights of attention to the type of the values adds to the limits.

    A weight w, at most 1, becomes w (1 + d) + e with |d| <= epsilon / 2 and |e| at most half the smallest number. The
    largest weight is 1, so that the sum, by which is divided, is at least 1, and at least that of the weights times
    1 / max |v|: the result is off by (epsilon / 2 + keys |e|) max |v|.
    """
    format = Format.of(element_type(values.dtype))
    finite = np.abs(values[np.isfinite(values)].astype(np.float64))
    return result.off_by((format.unit + keys * format.smallest / 2) * float(finite.max(initial=0.0)))


def limits_of_template(template: str, op: Operation, env: Mapping[SSAValue, Array], precision: Precision) -> Bounded:
    """What the kernel of a template computes: attention on tensor cores rounds its weights, too."""
    result = limits(op, env, precision)
    if template not in ("attention_mma", "attention_decode_mma"):
        return result
    assert isinstance(op, AttentionOp)
    return with_rounded_weights(result, env[op.v], op.scores_shape[-1])


def assert_within(actual: Array, expected: Bounded, dtype: Any, what: object) -> None:
    """Fails where an element is outside its limit, or is of another type."""
    result = compare(str(what), actual, expected, np.dtype(dtype))
    assert not result.problem and result.worst <= 1.0, str(result)


def _operand(operand: SSAValue, array: Array, precision: Precision) -> Bounded:
    exact = Bounded.of(array)
    if precision == "f32" or operand.type.get_element_type() != f32:  # pyright: ignore
        return exact
    return rounded(exact.value, exact.own, Format.of_precision(precision), KERNEL_UNITS)


__all__ = ["assert_within", "limits", "limits_of_template", "module_limits", "with_rounded_weights"]
