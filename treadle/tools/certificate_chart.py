"""The picture of a certificate as SVG: what each kernel of a dispatch takes at the points, and where the borders are.

Colours are the page's CSS variables; kernels differ in their dashes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, pairwise
from xml.etree.ElementTree import Element, SubElement

from treadle.tools.certificate import Certificate, Foreseen
from treadle.tools.report_chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, chart, draw_axes, label, line, scale_of

PREDICTION_STYLE = """
.chart .kernel{stroke:var(--timed);stroke-width:1.5;fill:none}
.chart .taken{fill:var(--chosen);stroke:var(--page);stroke-width:1}
.chart .border{stroke:var(--failed);stroke-width:1;stroke-dasharray:2 3;fill:none}
"""
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 4", "1 4", "14 3 3 3")
_KEY = 26
"""Pixels of a line in the legend."""


def predicted_times(certificate: Certificate, name: str) -> Element:
    """The seconds of each kernel over the extent that varies most, both axes logarithmic; over the numbers of the
    points where several extents vary. Rhombs are the kernels that calls take, the dashed line the best micro-kernels.

    There has to be a point.
    """
    places, heading = _places(certificate)
    times = [seconds for point in certificate.points for seconds in (*point.seconds, point.best)]
    across = scale_of(places, LEFT, WIDTH - RIGHT)
    up = scale_of([seconds * 1e6 for seconds in times], HEIGHT - BOTTOM, TOP)
    worst = max(point.loss for point in certificate.points)
    root = chart(
        f"{name}: predicted times of its kernels",
        f"{len(certificate.kernels)} kernels at {len(places)} points; calls lose at most {worst:.1%}. "
        "The table below has the same numbers.",
    )
    draw_axes(root, across, up, heading, "predicted, µs")
    order = sorted(range(len(places)), key=places.__getitem__)
    for number, dashes in zip(range(len(certificate.kernels)), cycle(_DASHES), strict=False):
        curve = [(across(places[n]), up(certificate.points[n].seconds[number] * 1e6)) for n in order]
        line(root, "kernel", curve).set("stroke-dasharray", dashes or "none")
    line(root, "ideal", [(across(places[n]), up(certificate.points[n].best * 1e6)) for n in order])
    borders = _borders(certificate, places, order)
    for border in borders:
        line(root, "border", [(across(border), HEIGHT - BOTTOM), (across(border), TOP)])
    for n in order:
        point = certificate.points[n]
        _taken(root, certificate, point, across(places[n]), up(point.seconds[point.kernel] * 1e6))
    _legend(root, certificate.kernels, bool(borders))
    return root


def _along(certificate: Certificate) -> int | None:
    """The number of the only extent that varies among the points; None where there are several, or one may be 0."""
    points = certificate.points
    varying = [n for n in range(len(certificate.names)) if len({point.extents[n] for point in points}) > 1]
    return varying[0] if len(varying) == 1 and all(point.extents[varying[0]] > 0 for point in points) else None


def _places(certificate: Certificate) -> tuple[list[float], str]:
    """Where the points are along the picture, and what that is."""
    axis = _along(certificate)
    if axis is not None:
        return [float(point.extents[axis]) for point in certificate.points], certificate.names[axis]
    return [float(n) for n in range(1, len(certificate.points) + 1)], "number of the point"


def _borders(certificate: Certificate, places: Sequence[float], order: Sequence[int]) -> list[float]:
    """Where calls change their kernel: between the extents of two leaves; over the numbers of the points, between
    neighbours that take different kernels."""
    axis = _along(certificate)
    if axis is None:
        points = [certificate.points[n] for n in order]
        return [n + 1.5 for n, (a, b) in enumerate(pairwise(points)) if a.kernel != b.kernel]
    others = certificate.points[0].extents
    crossed = [
        leaf for leaf in certificate.leaves if leaf.serves((*others[:axis], leaf.extents[axis][0], *others[axis + 1 :]))
    ]
    crossed.sort(key=lambda leaf: leaf.extents[axis])
    last = [a.extents[axis][1] for a, b in pairwise(crossed) if a.kernel != b.kernel]
    return [each + 0.5 for each in last if min(places) <= each < max(places)]


def _taken(root: Element, certificate: Certificate, point: Foreseen, x: float, y: float) -> None:
    group = SubElement(root, "g")
    at = ", ".join(f"{name} = {extent}" for name, extent in zip(certificate.names, point.extents, strict=True))
    SubElement(group, "title").text = f"{at}: {certificate.kernels[point.kernel]}, {point.loss:.1%} lost"
    _rhomb(group, x, y)


def _rhomb(parent: Element, x: float, y: float) -> None:
    SubElement(parent, "path", {"class": "taken", "d": f"M{x:.1f} {y - 6:.1f}l5 6l-5 6l-5 -6z"})


def _legend(root: Element, kernels: Sequence[str], has_borders: bool) -> None:
    """The kernels' lines, and what else is drawn, at the left inside of the plot."""
    lines = [
        ("kernel", dashes, f"{n}: {kernel}")
        for n, (kernel, dashes) in enumerate(zip(kernels, cycle(_DASHES), strict=False))
    ]
    lines += [("ideal", "", "best micro-kernel at each point")]
    lines += [("border", "", "where calls change their kernel")] if has_borders else []
    y = TOP + 14
    for kind, dashes, meaning in lines:
        drawn = line(root, kind, [(LEFT + 8, y), (LEFT + 8 + _KEY, y)])
        if kind == "kernel":
            drawn.set("stroke-dasharray", dashes or "none")
        label(root, LEFT + 14 + _KEY, y + 4, meaning, "start")
        y += 16
    _rhomb(root, LEFT + 8 + _KEY / 2, y)
    label(root, LEFT + 14 + _KEY, y + 4, "the kernel that a call takes", "start")


__all__ = ["PREDICTION_STYLE", "predicted_times"]
