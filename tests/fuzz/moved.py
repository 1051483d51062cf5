"""What becomes of sums of products whose scales and biases are moved into their terms, as compilers do.

`(x @ w + a) * c` may be computed as `x @ (w * c) + a * c` (see `treadle.passes.graph.graph_simplify`, and Jacob et
al., CVPR 2018, section 3.2), and batch normalisation as one product and one sum. Where a partial result of any of these
forms is beyond the type, one form may be infinite or NaN, and another a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from onnx import NodeProto, helper

from tests.fuzz.own_definitions import Array
from tests.fuzz.sums import Terms, finite, terms_of, terms_of_products

Operands = Sequence[Array | None]
Evaluate = Callable[[NodeProto, Operands], "Sequence[Array]"]

PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


def beyond(
    nodes: Sequence[NodeProto], values: Mapping[str, Array], types: Mapping[str, np.dtype[Any]], evaluate: Evaluate
) -> dict[str, Array]:
    """Which elements of which tensors some form may have partial results for that their types do not hold, where that
    makes a difference.

    values: of every tensor, exact
    evaluate: gives a node's results for other operands
    """
    sums, found = _Sums(evaluate), dict[str, Array]()
    for node in nodes:
        name = node.output[0]
        if types[name].kind != "f":
            continue
        own = sums.of(node, [values[x] if x else None for x in node.input])
        if own is None or (node.op_type in PRODUCTS and len(node.input) < 3 and own.peak is None):
            continue  # The definition of a product knows that of its own terms.
        # Sums run in float32 at least; what is scaled or biased separately is stored.
        held = np.promote_types(types[name], np.float32) if node.op_type in PRODUCTS else types[name]
        with np.errstate(all="ignore"):
            undecided = own.undecided(float(np.finfo(held).max))
        found[name] = np.broadcast_to(undecided, values[name].shape)
    return found


@dataclass(frozen=True)
class _Sum:
    """A sum of products, scaled and biased: its terms, and if it is scaled, the largest magnitude on the way to it."""

    terms: Terms
    peak: Any = None

    @property
    def largest(self) -> Any:
        """The largest magnitude on the way, whatever the order."""
        return self.terms.largest if self.peak is None else np.maximum(self.terms.largest, self.peak)

    def undecided(self, end: float) -> Any:
        """Whether the order of the terms, or the place of a scale, decides if a type that ends there holds the sum."""
        # NaN, where a magnitude beyond the type is scaled by 0, is not below its end.
        return np.logical_or(*self.terms.infinities(end)) if self.peak is None else ~(self.largest <= end)


@dataclass
class _Sums:
    """The tensors that are sums of products."""

    evaluate: Evaluate
    known: dict[str, _Sum] = field(default_factory=dict[str, _Sum])

    def of(self, node: NodeProto, operands: Operands) -> _Sum | None:
        """What a node's first result is as a sum; None if there are no products in it."""
        given = [(name, x) for name, x in zip(node.input, operands, strict=True) if x is not None]
        with np.errstate(all="ignore"):
            found = self._of(node, [name for name, _ in given], [x for _, x in given])
        if found is not None:
            self.known[node.output[0]] = found
        return found

    def _of(self, node: NodeProto, names: Sequence[str], x: Sequence[Array]) -> _Sum | None:
        if node.op_type in PRODUCTS:
            return self._product(node, x)
        parts = [self.known.get(name) or _Sum(terms_of(v, (), 1)) for name, v in zip(names, x, strict=True)]
        if node.op_type == "BatchNormalization":
            return _scaled(parts[:1], _normalised(parts[0].largest, node, [finite(v) for v in x]))
        if not any(name in self.known for name in names):
            return None
        if node.op_type in ("Add", "Sub", "Sum", "Mean"):
            return _added([parts[0], _negated(parts[1])] if node.op_type == "Sub" else parts, node.op_type == "Mean")
        if node.op_type == "Mul":
            return _scaled(parts, parts[0].largest * parts[1].largest)
        if node.op_type == "Div":
            # No scale is made of a division by 0.
            return _scaled(parts, parts[0].largest / np.where(finite(x[1]) == 0, 1, finite(x[1])))
        return _negated(parts[0]) if node.op_type == "Neg" else parts[0] if node.op_type == "Identity" else None

    def _product(self, node: NodeProto, x: Sequence[Array]) -> _Sum:
        """A product with its bias, which may be added first or last."""
        plain = helper.make_node(node.op_type, list(node.input[:2]), list(node.output))
        plain.attribute.extend(a for a in node.attribute if a.name not in ("alpha", "beta"))
        terms = terms_of_products(x[0], x[1], lambda a, b: self.evaluate(plain, [a, b])[0], 1)
        alpha = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "alpha"), 1.0)
        if alpha != 1:
            terms = (terms if alpha > 0 else terms.negated()).scaled(max(1.0, abs(alpha)))
        bias = self.evaluate(node, [*(0 * finite(v) for v in x[:2]), *x[2:]])[0]
        whole = terms.plus(terms_of(bias, (), 1))
        return _Sum(whole, whole.largest if alpha != 1 else None)


def _added(parts: Sequence[_Sum], is_mean: bool) -> _Sum:
    terms = reduce(Terms.plus, (part.terms for part in parts))
    if not is_mean and all(part.peak is None for part in parts):
        return _Sum(terms)
    # The quotient of a mean is no larger than the sum, on the way to it.
    return _Sum(terms, reduce(np.maximum, (part.largest for part in parts), terms.largest))


def _negated(part: _Sum) -> _Sum:
    return _Sum(part.terms.negated(), part.peak)


def _scaled(parts: Sequence[_Sum], magnitude: Any) -> _Sum:
    """What is the larger or the smaller for a factor, before or behind the additions."""
    peak = reduce(np.maximum, (part.largest for part in parts), magnitude)
    both = terms_of(magnitude, (), 1).plus(terms_of(-magnitude, (), 1))
    return _Sum(both, peak)


def _normalised(terms: Array, node: NodeProto, x: Sequence[Array]) -> Any:
    """The largest of what is centred, what is then divided, and what is scaled and biased."""
    scale, bias, mean, variance = (v.reshape(-1, *[1] * (terms.ndim - 2)) for v in x[1:])
    epsilon = {a.name: helper.get_attribute_value(a) for a in node.attribute}.get("epsilon", 1e-5)
    centred, deviation = terms + mean, np.sqrt(variance + epsilon)
    return np.maximum.reduce([centred, centred / deviation, centred * (scale / deviation) + bias])


__all__ = ["PRODUCTS", "beyond"]
