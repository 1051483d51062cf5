"""The page that `treadle tune --report` writes: one HTML file without scripts, fonts or files from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.etree.ElementTree import Element, SubElement, tostring

from treadle.tools.report_source import Attempt, GroupReport, Rejection, Report

# The pictures of a tuning report as SVG: predicted against measured time, and the best time after each trial.
#
# Colours are the page's CSS variables; kinds of points differ in shape, too.

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


PAGE_STYLE = """
:root{color-scheme:light dark;--page:#ffffff;--panel:#f5f6f8;--text:#1b1f24;--faint:#59626e;--line:#c4cad2;
--timed:#0b62c4;--chosen:#b54708;--failed:#b42318}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--panel:#1e2228;--text:#e7e9ec;--faint:#a3acb8;--line:#464e59;
--timed:#6cb0ff;--chosen:#ffb454;--failed:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 20px 64px;max-width:1360px;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 4px;padding-top:12px;border-top:1px solid var(--line)}
h3{font-size:15px;margin:20px 0 4px}p{margin:4px 0}.faint{color:var(--faint)}
a{color:var(--timed)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:8px 0}
caption{text-align:left;color:var(--faint);padding-bottom:4px}
th,td{padding:3px 12px 3px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{font-weight:600}
.number{text-align:right;white-space:nowrap}
tr.chosen{font-weight:600}tr.chosen td:first-child{border-left:3px solid var(--chosen);padding-left:8px}
tr.failed td,.damaged{color:var(--failed)}
code,pre{font:13px/1.45 ui-monospace,monospace}
pre{background:var(--panel);padding:12px;overflow-x:auto;border-radius:4px;margin:8px 0}
h1,h2,p,dd,summary{overflow-wrap:anywhere}
.charts{display:flex;flex-wrap:wrap;gap:16px}
.charts figure{margin:8px 0;flex:1 1 480px;min-width:min(480px,100%);max-width:660px}
@media (max-width:560px){.charts figure{flex-basis:100%}}
details{margin:8px 0}summary{cursor:pointer;font-weight:600}
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:2px 16px;margin:8px 0}
dt{color:var(--faint)}dd{margin:0}
"""
_MANY = 400
"""Attempts that a table lists; a page with all of a long search would be slow. The picture has all of them."""


def report_page(report: Report) -> str:
    """The whole page."""
    root = Element("html", {"lang": "en"})
    head = SubElement(root, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"})
    SubElement(head, "title").text = report.title
    SubElement(head, "style").text = PAGE_STYLE + CHART_STYLE
    body = SubElement(root, "body")
    _add_summary(body, report)
    main = SubElement(body, "main")
    for group in report.groups:
        _add_group(main, group)
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def _add_summary(body: Element, report: Report) -> None:
    header = SubElement(body, "header")
    SubElement(header, "h1").text = report.title
    facts = SubElement(header, "dl")
    for name, value in report.facts:
        SubElement(facts, "dt").text = name
        SubElement(facts, "dd").text = value
    for line in report.damaged:
        SubElement(header, "p", {"class": "damaged"}).text = f"Left out: {line}"
    columns: list[tuple[str, Callable[[GroupReport], str | None]]] = [
        ("count", lambda g: None if g.count is None else str(g.count)),
        ("share", lambda g: None if g.share is None else f"{g.share:.1%}"),
        ("tried", lambda g: str(len(g.attempts))),
        ("rejected", lambda g: None if g.rejected is None else str(sum(each.count for each in g.rejected))),
        ("default, µs", lambda g: _time(g.default_us)),
        ("best, µs", lambda g: _time(g.best_us)),
        ("default / best", lambda g: None if g.ratio is None else f"{g.ratio:.2f}x"),
        ("rank correlation", lambda g: None if g.correlation is None else f"{g.correlation:.2f}"),
    ]
    shown = [(name, text) for name, text in columns if any(text(group) is not None for group in report.groups)]
    table = _table(header, "groups in descending order of their part of the time", ["group"], [n for n, _ in shown])
    for group in report.groups:
        row = SubElement(table, "tr")
        SubElement(SubElement(row, "td"), "a", {"href": f"#{group.anchor}"}).text = group.name
        for _, text in shown:
            SubElement(row, "td", {"class": "number"}).text = text(group) or ""


def _add_group(main: Element, group: GroupReport) -> None:
    section = SubElement(main, "section", {"id": group.anchor, "aria-label": group.name})
    SubElement(section, "h2").text = group.name
    SubElement(section, "p").text = _result(group)
    _add_charts(section, group)
    _add_program(section, group)
    _add_attempts(section, group)
    if group.rejected is not None:
        _add_rejected(section, group.rejected)


def _result(group: GroupReport) -> str:
    """The outcome in a sentence."""
    if group.ratio is None:
        return "Not timed."
    said = f"{_time(group.default_us)} µs by default, {_time(group.best_us)} µs with the best schedule"
    said += f", {group.ratio:.2f} times as fast." if group.ratio > 1 else ": the default is kept."
    if group.correlation is not None:
        said += f" The cost model orders {group.compared} candidates with a rank correlation of {group.correlation:.2f}"
        said += f" and is off by a factor of {group.model_error:.1f} in the median." if group.model_error else "."
    return said


def _add_charts(section: Element, group: GroupReport) -> None:
    figures = SubElement(section, "div", {"class": "charts"})
    points = [_point(attempt) for attempt in group.attempts]
    if group.compared > 1:
        picture = predicted_against_measured(points, group.name)
        _add_figure(figures, picture, "Predicted against measured time; on the dashed line they agree.")
    times = [attempt.us for attempt in group.attempts]
    if len(times) > 1 and times[0] is not None:
        _add_figure(figures, best_after_each_trial(times, group.name), "The best time after each trial.")
    if len(times) > 1 and times[0] is not None and group.program is not None:
        SubElement(section, "p", {"class": "faint"}).text = (
            "Pictures and tables have the times of the search, in which the default took "
            f"{_time(times[0])} µs when it was timed alone. The times above are those of the last timing, of both "
            "schedules in turn, for longer: only these can be compared with each other."
        )


def _add_figure(figures: Element, picture: Element, caption: str) -> None:
    figure = SubElement(figures, "figure")
    figure.append(picture)
    SubElement(figure, "figcaption", {"class": "faint"}).text = caption


def _point(attempt: Attempt) -> Point:
    lines = [attempt.schedule]
    lines += [] if attempt.predicted_us is None else [f"predicted {_time(attempt.predicted_us)} µs"]
    lines += [attempt.error or ""] if attempt.us is None else [f"measured {_time(attempt.us)} µs"]
    return Point(attempt.kind, attempt.predicted_us, attempt.us, "\n".join(lines))


def _add_program(section: Element, group: GroupReport) -> None:
    SubElement(section, "h3").text = "Chosen schedule"
    SubElement(SubElement(section, "pre"), "code").text = group.chosen
    if group.program is not None:
        details = SubElement(section, "details")
        SubElement(details, "summary").text = "The group with its schedule, as the database has it"
        SubElement(SubElement(details, "pre"), "code").text = group.program


def _add_attempts(section: Element, group: GroupReport) -> None:
    details = SubElement(section, "details")
    SubElement(details, "summary").text = _counted(len(group.attempts), "tried")
    ordered = sorted(group.attempts, key=lambda each: (each.us is None, each.us or 0.0))
    left_out = len(ordered) - _MANY
    caption = "fastest first; times relative to the best one so far, which was timed with them"
    caption += f"; the {left_out} last ones are left out" if left_out > 0 else ""
    table = _table(details, caption, ["schedule"], ["predicted, µs", "measured, µs", "round"], ["note"])
    for each in ordered[:_MANY]:
        row = SubElement(table, "tr", {} if each.kind == "timed" else {"class": each.kind})
        SubElement(SubElement(row, "td"), "code").text = each.schedule
        for text in (_time(each.predicted_us), _time(each.us), str(each.round)):
            SubElement(row, "td", {"class": "number"}).text = text
        note = each.error or ("" if each.kind == "timed" else each.kind)
        SubElement(row, "td").text = note


def _add_rejected(section: Element, rejected: Sequence[Rejection]) -> None:
    details = SubElement(section, "details")
    total = sum(each.count for each in rejected)
    SubElement(details, "summary").text = _counted(total, "rejected before they were built")
    if not rejected:
        return
    table = _table(details, "by program and limit", ["program", "limit"], ["candidates"], ["closest one"])
    for each in sorted(rejected, key=lambda one: -one.count):
        row = SubElement(table, "tr")
        SubElement(SubElement(row, "td"), "code").text = each.program
        SubElement(row, "td").text = each.limit
        SubElement(row, "td", {"class": "number"}).text = str(each.count)
        SubElement(row, "td").text = each.example


def _counted(number: int, what: str) -> str:
    return (
        f"1 candidate that was {what.replace('they were', 'it was')}"
        if number == 1
        else f"{number} candidates that were {what}"
    )


def _table(
    parent: Element, caption: str, before: Iterable[str], numbers: Iterable[str], after: Iterable[str] = ()
) -> Element:
    """The body of a new table with these headings; numbers are aligned to the right."""
    table = SubElement(SubElement(parent, "div", {"class": "scroll"}), "table")
    SubElement(table, "caption").text = caption
    head = SubElement(SubElement(table, "thead"), "tr")
    for names, attributes in ((before, {}), (numbers, {"class": "number"}), (after, {})):
        for name in names:
            SubElement(head, "th", {"scope": "col", **attributes}).text = name
    return SubElement(table, "tbody")


def _time(us: float | None) -> str:
    """Microseconds with three or four digits."""
    if us is None:
        return ""
    return f"{us:.0f}" if us >= 1000 else f"{us:.4g}"
