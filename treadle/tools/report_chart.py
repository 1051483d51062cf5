"""The pictures of a tuning report as SVG: predicted against measured time, and the best time after each trial.

Colours are the page's CSS variables; kinds of points differ in shape, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.etree.ElementTree import Element, SubElement

WIDTH, HEIGHT = 640, 380
_LEGEND = 90
_MOST_TICKS = 8
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 46
_FAILED_BAND = 20
"""Height of the strip above the plot in which candidates without a time stand."""

CHART_STYLE = """
.chart{max-width:100%;height:auto}
.chart text{fill:var(--text);font:12px system-ui,sans-serif}
.chart .axis,.chart .grid{stroke:var(--line);stroke-width:1;fill:none}
.chart .grid{stroke-opacity:.5}
.chart .ideal{stroke:var(--faint);stroke-width:1;stroke-dasharray:5 4;fill:none}
.chart .best{stroke:var(--chosen);stroke-width:2;fill:none}
.chart .timed{fill:var(--timed);fill-opacity:.65}
.chart .default{fill:var(--text)}
.chart .chosen{fill:var(--chosen);stroke:var(--page);stroke-width:1}
.chart .failed{stroke:var(--failed);stroke-width:2;fill:none}
.chart g:hover>:not(title){stroke:var(--text);stroke-width:2}
"""


@dataclass(frozen=True)
class Point:
    """A candidate in a picture. Times in microseconds; `measured` is None if it has none.

    kind: `timed`, `default`, `chosen` or `failed`; title: what its tooltip says
    """

    kind: str
    predicted: float | None
    measured: float | None
    title: str


@dataclass(frozen=True)
class LogScale:
    """Maps positive values logarithmically to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        part = (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Three to eight round values within the scale: of a short one at equal distances, else 1, 2, 5, 10, ..."""
        if self.high < 4 * self.low:
            return _even(self.low, self.high)
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [f * 10.0**d for d in decades for f in factors if self.low <= f * 10.0**d <= self.high]
            if len(found) <= _MOST_TICKS:
                return found
        return found[:: ceil(len(found) / _MOST_TICKS)]


def _even(low: float, high: float) -> list[float]:
    """The multiples of 1, 2 or 5 times a power of ten between two values, as many as fit."""
    steps = [f * 10.0**d for d in range(floor(log10(high - low)) - 1, ceil(log10(high - low)) + 1) for f in (1, 2, 5)]
    step = next(step for step in steps if (high - low) / step < _MOST_TICKS)
    return [step * n for n in range(ceil(low / step), floor(high / step) + 1)]


def scale_of(values: Sequence[float], start: float, end: float) -> LogScale:
    """A scale with some air around the values, at least 1.5 from end to end."""
    low, high = min(values), max(values)
    middle, factor = (low * high) ** 0.5, max((high / low) ** 0.5 * 1.15, 1.5**0.5)
    return LogScale(middle / factor, middle * factor, start, end)


def predicted_against_measured(points: Sequence[Point], name: str) -> Element:
    """A candidate's measured time over its predicted time, on equal logarithmic scales; the dashed line is where they
    agree.

    Candidates that have no time stand above the plot. There has to be one with both times.
    """
    timed = [point for point in points if point.measured and point.predicted]
    failed = [point for point in points if not point.measured and point.predicted]
    predicted = [point.predicted for point in (*timed, *failed) if point.predicted]
    shown = [*predicted, *(point.measured for point in timed if point.measured)]
    across = scale_of(shown, LEFT, WIDTH - RIGHT)
    up = scale_of(shown, HEIGHT - BOTTOM, TOP + _FAILED_BAND)
    root = chart(
        f"{name}: predicted against measured time",
        f"{len(timed)} candidates with both times, {len(failed)} without a measured one. "
        "The table below has the same numbers.",
    )
    draw_axes(root, across, up, "predicted, µs, log scale", "measured in the search, µs, log scale")
    line(root, "ideal", [(across(across.low), up(up.low)), (across(across.high), up(up.high))])
    order = {"timed": 0, "default": 1, "chosen": 2}
    for point in sorted(timed, key=lambda each: order.get(each.kind, 0)):
        assert point.predicted
        assert point.measured
        _mark(root, point, across(point.predicted), up(point.measured))
    for point in failed:
        assert point.predicted
        _mark(root, point, across(point.predicted), TOP + _FAILED_BAND / 2)
    _legend(root, points)
    return root


def best_after_each_trial(times: Sequence[float | None], name: str) -> Element:
    """The best time in microseconds after each trial, as steps, the first one being the default's; None for a trial
    that failed. The default has to have a time."""
    best: list[float] = []
    for time in times:
        known = best[-1:] + ([] if time is None else [time])
        best.append(min(known))
    across = _linear(1, max(len(times), 2), LEFT, WIDTH - RIGHT)
    up = scale_of(best, HEIGHT - BOTTOM, TOP)
    first, last = f"{best[0]:.4g}", f"{best[-1]:.4g}"
    root = chart(f"{name}: the best time after each trial", f"From {first} to {last} µs in {len(times)} trials.")
    _frame(root)
    _rows(root, up, "best of the search, µs, log scale")
    label(root, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "trial", "middle")
    for number in sorted({1, len(times) // 2, len(times)} - {0}):
        label(root, across(number), HEIGHT - BOTTOM + 16, str(number), "middle")
    steps = [(across(1), up(best[0]))]
    for number, time in enumerate(best[1:], 2):
        steps += [(across(number), steps[-1][1]), (across(number), up(time))]
    line(root, "best", steps)
    return root


def chart(title: str, description: str) -> Element:
    """An empty picture of the page's size."""
    root = Element("svg", {"class": "chart", "role": "img", "viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": str(WIDTH)})
    SubElement(root, "title").text = title
    SubElement(root, "desc").text = description
    return root


def draw_axes(root: Element, across: LogScale, up: LogScale, horizontal: str, vertical: str) -> None:
    """Both axes with their ticks and names."""
    _frame(root)
    for value in across.ticks():
        x = across(value)
        line(root, "grid", [(x, HEIGHT - BOTTOM), (x, TOP)])
        label(root, x, HEIGHT - BOTTOM + 16, f"{value:g}", "middle")
    label(root, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, horizontal, "middle")
    _rows(root, up, vertical)


def _rows(root: Element, up: LogScale, vertical: str) -> None:
    for value in up.ticks():
        line(root, "grid", [(LEFT, up(value)), (WIDTH - RIGHT, up(value))])
        label(root, LEFT - 6, up(value) + 4, f"{value:g}", "end")
    label(root, 6, 14, vertical, "start")


def _frame(root: Element) -> None:
    corner = [(LEFT, TOP), (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)]
    line(root, "axis", corner)


_MARKS: Mapping[str, Callable[[float, float], tuple[str, dict[str, str]]]] = {
    "timed": lambda x, y: ("circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4"}),
    "default": lambda x, y: ("rect", {"x": f"{x - 5:.1f}", "y": f"{y - 5:.1f}", "width": "10", "height": "10"}),
    "chosen": lambda x, y: ("path", {"d": f"M{x:.1f} {y - 8:.1f}l7 8l-7 8l-7 -8z"}),
    "failed": lambda x, y: ("path", {"d": f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"}),
}
_MEANING = {"timed": "candidate", "default": "default", "chosen": "chosen", "failed": "no time"}


def _mark(root: Element, point: Point, x: float, y: float) -> None:
    group = SubElement(root, "g")
    SubElement(group, "title").text = point.title
    tag, where = _MARKS[point.kind](x, y)
    SubElement(group, tag, {"class": point.kind, **where})


def _legend(root: Element, points: Sequence[Point]) -> None:
    """The kinds that occur, at the right above the plot."""
    present = {point.kind for point in points if point.predicted}
    x = WIDTH - RIGHT - sum(_LEGEND for kind in _MEANING if kind in present) + 10
    for kind, meaning in _MEANING.items():
        if kind in present:
            tag, where = _MARKS[kind](x, 10)
            SubElement(root, tag, {"class": kind, **where})
            label(root, x + 12, 14, meaning, "start")
            x += _LEGEND


def line(root: Element, kind: str, points: Sequence[tuple[float, float]]) -> Element:
    """A line through some points."""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return SubElement(root, "polyline", {"class": kind, "points": text})


def label(root: Element, x: float, y: float, text: str, anchor: str) -> None:
    """A text at a place: its `start`, `middle` or `end`."""
    SubElement(root, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}).text = text


def _linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


__all__ = [
    "BOTTOM",
    "CHART_STYLE",
    "HEIGHT",
    "LEFT",
    "RIGHT",
    "TOP",
    "WIDTH",
    "LogScale",
    "Point",
    "best_after_each_trial",
    "chart",
    "draw_axes",
    "label",
    "line",
    "predicted_against_measured",
    "scale_of",
]  # fmt: skip
