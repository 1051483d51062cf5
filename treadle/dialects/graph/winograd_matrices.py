"""The matrices of Winograd's minimal filtering algorithms F(m, 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

KERNEL = 3
"""Elements of a filter along a dimension."""

_POINTS: dict[int, tuple[Fraction, ...]] = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
"""Where polynomials are evaluated, besides infinity, by the outputs of a tile: fractions that f32 holds, near 1, so
that few digits cancel. Against float64, F(4x4, 3x3) at these has half the error of the usual 0, 1, -1, 2 and -2."""

OUTPUTS: tuple[int, ...] = tuple(_POINTS)
"""The outputs of a tile along a dimension for which there are matrices."""

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Filtering:
    """`A^T [(G g) * (B^T d)]`: `outputs` results of a filter g of 3 elements along d, which has `tile`.

    input: `B^T`, `[tile, tile]`
    filter: `G`, `[tile, 3]`
    output: `A^T`, `[outputs, tile]`
    """

    input: Matrix
    filter: Matrix
    output: Matrix

    @property
    def tile(self) -> int:
        """Elements under a tile of outputs, and products along a dimension."""
        return len(self.input)


@cache
def filtering(outputs: int) -> Filtering:
    """F(outputs, 3) by the transposed algorithm of Toom and Cook at some points and infinity.

    Sources: Winograd, "Arithmetic complexity of computations", SIAM 1980; Lavin and Gray, "Fast algorithms for
    convolutional neural networks", CVPR 2016; Barabasz et al., "Error analysis and improving the accuracy of Winograd
    convolution for deep neural networks", ACM TOMS 2020, section 2.
    """
    points = _POINTS[outputs]
    others = [[q for q in points if q is not p] for p in points]
    scales = [_product([p - q for q in rest]) for p, rest in zip(points, others, strict=True)]
    tile = len(points) + 1
    rows = [(*_polynomial(rest), Fraction(0)) for rest in others]
    last = [Fraction(n == KERNEL - 1) for n in range(KERNEL)]
    filters = [tuple(p**n / scale for n in range(KERNEL)) for p, scale in zip(points, scales, strict=True)]
    results = [(*(p**n for p in points), Fraction(n == outputs - 1)) for n in range(outputs)]
    assert tile == outputs + KERNEL - 1
    return Filtering((*rows, _polynomial(points)), (*filters, tuple(last)), tuple(results))


def _product(factors: Sequence[Fraction]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots, that of the highest power, which is 1, last."""
    result = [Fraction(1)]
    for root in roots:
        result = [a - root * b for a, b in zip([Fraction(0), *result], [*result, Fraction(0)], strict=True)]
    return tuple(result)


__all__ = ["KERNEL", "OUTPUTS", "Filtering", "Matrix", "filtering"]
