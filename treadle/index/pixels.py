"""Windows over images as index expressions: which element of an image a row and a term of a convolution's product are.

Rows of the product are output pixels of all images in order, terms the positions of a window, each with all channels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod

from treadle.index.algebra import depends_on
from treadle.index.expr import Atom, Expr, const
from treadle.target.tensor_map import PixelBox, most_offset


@dataclass(frozen=True)
class PixelWalk:
    """How consecutive rows walk over the pixels of images: along the innermost dimension first, `counts` of them along
    each spatial dimension, `steps` of the image apart, and on to the next image.

    digits: of a row, the number of the image and of the pixel along each spatial dimension
    starts: the place along the same dimensions that rows add to
    """

    counts: tuple[int, ...]
    steps: tuple[int, ...]
    digits: tuple[Expr, ...]
    starts: tuple[Expr, ...]

    def box(self, extents: Sequence[int], rows: int) -> PixelBox | None:
        """The pixels that copies walk over of images `[N, spatial..., C]` of these extents, so that rows from `rows` on
        are those behind the last image; None where copies cannot be told so."""
        if not 3 <= len(extents) <= 5 or self.starts[0] != 0 or extents[0] * prod(self.counts) != rows:
            return None
        reach = [start.range() for start in self.starts[1:]]
        if any(lo is None or hi is None or hi - lo > most_offset(len(extents)) for lo, hi in reach):
            return None
        return PixelBox.of(self.counts, self.steps, [lo for lo, _ in reach if lo is not None], extents[1:-1])


def pixel_walk(places: Sequence[Expr], row: Expr) -> PixelWalk | None:
    """The walk of a row, a variable that counts from 0, whose pixel has these places: the image's, then those along its
    spatial dimensions, the outermost first. None where rows do not walk so."""
    key, left = row.vars()[0].key, row
    moves, digits, starts = list[tuple[int, int]](), list[Expr](), list[Expr]()
    for place in reversed(places[1:]):
        moved = _moved(place, key)
        if moved is None:
            return None
        count, step = moved
        digit = left % count if count > 1 else const(0)
        moves.append(moved)
        digits.append(digit)
        starts.append(place - digit * step)
        left = left // count
    digits.append(left)
    starts.append(places[0] - left)
    if any(depends_on(start, key) for start in starts):
        return None
    counts, steps = (tuple(each[n] for each in reversed(moves)) for n in range(2))
    return PixelWalk(counts, steps, tuple(reversed(digits)), tuple(reversed(starts)))


def _moved(place: Expr, key: Hashable) -> tuple[int, int] | None:
    """Along how many pixels, how far apart, a place moves with a variable: 1 and 1 where it does not; None where it
    moves otherwise than by one quotient or remainder."""
    if not depends_on(place, key):
        return 1, 1
    found = [(monomial, step) for monomial, step in place.terms if any(_depends(atom, key) for atom in monomial)]
    if len(found) != 1 or len(found[0][0]) != 1:
        return None
    (((digit,), step),) = found
    lo, hi = digit.range
    return (hi + 1, step) if lo == 0 and hi is not None and step > 0 else None


def _depends(atom: Atom, key: Hashable) -> bool:
    return depends_on(Expr((((atom,), 1),), 0), key)
