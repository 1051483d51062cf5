"""What becomes of sums of products whose scales and biases are moved into their terms, as compilers do.

`(x @ w + a) * c` may be computed as `x @ (w * c) + a * c` (see `treadle.passes.graph.simplify.normalize`, and Jacob et
al., CVPR 2018, section 3.2), and batch normalisation as one product and one sum. Where a partial result of any of these
forms is beyond the type, one form may be infinite or NaN, and another a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.own_definitions import Array
from tests.fuzz.own_folds import finite

Operands = Sequence[Array | None]
Evaluate = Callable[[NodeProto, Operands], "Sequence[Array]"]

PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


def beyond(
    nodes: Sequence[NodeProto], values: Mapping[str, Array], types: Mapping[str, np.dtype[Any]], evaluate: Evaluate
) -> dict[str, Array]:
    """Which elements of which tensors some form may have partial results for that their types do not hold.

    values: of every tensor, exact
    evaluate: gives a node's results for other operands
    """
    moved, found = _Moved(evaluate), dict[str, Array]()
    for node in nodes:
        name = node.output[0]
        if types[name].kind != "f":
            continue
        peak = moved.peak(node, [values[x] if x else None for x in node.input], values[name])
        # Sums run in float32 at least; what is scaled or biased separately is stored.
        held = np.promote_types(types[name], np.float32) if node.op_type in PRODUCTS else types[name]
        if peak is not None:
            # NaN, where such a magnitude is scaled by 0, is not below the end of the type.
            found[name] = ~(peak <= float(np.finfo(held).max))
    return found


@dataclass
class _Moved:
    """For tensors that are sums of products, scaled and biased: the magnitude that terms of each element add up to, and
    the largest such magnitude on the way to it."""

    evaluate: Evaluate
    terms: dict[str, Array] = field(default_factory=dict[str, Array])
    peaks: dict[str, Array] = field(default_factory=dict[str, Array])

    def peak(self, node: NodeProto, operands: Operands, result: Array) -> Array | None:
        """The largest magnitude on the way to a node's first result; None if there are no such terms in it."""
        with np.errstate(all="ignore"):
            terms = self._terms(node, operands, result)
        if terms is None:
            return None
        name, peak = node.output[0], np.broadcast_to(terms, result.shape)
        for before in (self.peaks[x] for x in node.input if x in self.peaks and node.op_type not in PRODUCTS):
            peak = np.maximum(peak, before)
        self.terms[name], self.peaks[name] = np.broadcast_to(terms, result.shape), peak
        return peak

    def _terms(self, node: NodeProto, operands: Operands, result: Array) -> Any:
        x = [finite(v) for v in operands if v is not None]
        if node.op_type in PRODUCTS:
            products = np.abs(self.evaluate(node, x[:2])[0])
            return products + np.abs(self.evaluate(node, [0 * x[0], 0 * x[1], *x[2:]])[0])
        known = [self.terms.get(name, v) for name, v in zip(node.input, x, strict=False)]
        if node.op_type == "BatchNormalization":
            return _normalised(known[0], node, x)
        if not any(name in self.terms for name in node.input):
            return None
        if node.op_type in ("Add", "Sub", "Sum", "Mean"):
            # The quotient of a mean is no larger than the sum, on the way to it.
            return sum(known)
        if node.op_type == "Mul":
            return known[0] * known[1]
        if node.op_type == "Div":
            # No scale is made of a division by 0.
            return known[0] / np.where(x[1] == 0, 1, x[1])
        return known[0] if node.op_type in ("Neg", "Identity") else None


def _normalised(terms: Array, node: NodeProto, x: Sequence[Array]) -> Any:
    """The largest of what is centred, what is then divided, and what is scaled and biased."""
    scale, bias, mean, variance = (v.reshape(-1, *[1] * (terms.ndim - 2)) for v in x[1:])
    epsilon = {a.name: helper.get_attribute_value(a) for a in node.attribute}.get("epsilon", 1e-5)
    centred, deviation = terms + mean, np.sqrt(variance + epsilon)
    return np.maximum.reduce([centred, centred / deviation, centred * (scale / deviation) + bias])


__all__ = ["PRODUCTS", "beyond"]
