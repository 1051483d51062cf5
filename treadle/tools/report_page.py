"""The page that `treadle tune --report` writes: one HTML file without scripts, fonts or files from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from treadle.tools import charts
from treadle.tools.report_source import Attempt, GroupReport, Rejection, Report

# The charts of a tuning report: predicted against measured time, and the best time after each trial.

_LEGEND = 90
_FAILED_BAND = 20
"""Height of the strip above the plot in which candidates without a time stand."""


@dataclass(frozen=True)
class Point:
    """A candidate in a picture. Times in microseconds; `measured` is None if it has none.

    kind: `timed`, `default`, `chosen` or `failed`; title: what its tooltip says
    """

    kind: str
    predicted: float | None
    measured: float | None
    title: str


def predicted_against_measured(points: Sequence[Point], name: str) -> Element:
    """A candidate's measured time over its predicted time, on equal logarithmic scales; the dashed line is where they
    agree.

    Candidates that have no time stand above the plot. There has to be one with both times.
    """
    timed = [point for point in points if point.measured and point.predicted]
    failed = [point for point in points if not point.measured and point.predicted]
    predicted = [point.predicted for point in (*timed, *failed) if point.predicted]
    shown = [*predicted, *(point.measured for point in timed if point.measured)]
    across = charts.across(shown)
    up = charts.up(shown, _FAILED_BAND)
    root = charts.chart(
        f"{name}: predicted against measured time",
        f"{len(timed)} candidates with both times, {len(failed)} without a measured one. "
        "The table below has the same numbers.",
    )
    charts.draw_axes(root, across, up, "predicted, µs, log scale", "measured in the search, µs, log scale")
    charts.line(root, "ideal", [(across(across.low), up(up.low)), (across(across.high), up(up.high))])
    order = {"timed": 0, "default": 1, "chosen": 2}
    for point in sorted(timed, key=lambda each: order.get(each.kind, 0)):
        assert point.predicted
        assert point.measured
        charts.mark(root, point.kind, across(point.predicted), up(point.measured), point.title)
    for point in failed:
        assert point.predicted
        charts.mark(root, point.kind, across(point.predicted), charts.TOP + _FAILED_BAND / 2, point.title)
    _legend(root, points)
    return root


def best_after_each_trial(times: Sequence[float | None], name: str) -> Element:
    """The best time in microseconds after each trial, as steps, the first one being the default's; None for a trial
    that failed. The default has to have a time."""
    best: list[float] = []
    for time in times:
        known = best[-1:] + ([] if time is None else [time])
        best.append(min(known))
    across = charts.counted(len(times))
    up = charts.up(best)
    first, last = f"{best[0]:.4g}", f"{best[-1]:.4g}"
    root = charts.chart(f"{name}: the best time after each trial", f"From {first} to {last} µs in {len(times)} trials.")
    charts.draw_axes(root, across, up, "trial", "best of the search, µs, log scale")
    steps = [(across(1), up(best[0]))]
    for number, time in enumerate(best[1:], 2):
        steps += [(across(number), steps[-1][1]), (across(number), up(time))]
    charts.line(root, "best", steps)
    return root


_MEANING = {"timed": "candidate", "default": "default", "chosen": "chosen", "failed": "no time"}


def _legend(root: Element, points: Sequence[Point]) -> None:
    """The kinds that occur, at the right above the plot."""
    present = {point.kind for point in points if point.predicted}
    x = charts.WIDTH - charts.RIGHT - sum(_LEGEND for kind in _MEANING if kind in present) + 10
    for kind, meaning in _MEANING.items():
        if kind in present:
            charts.mark(root, kind, x, 10)
            charts.label(root, x + 12, 14, meaning)
            x += _LEGEND


_MANY = 400
"""Attempts that a table lists; a page with all of a long search would be slow. The picture has all of them."""


def report_page(report: Report) -> str:
    """The whole page."""
    root, body = charts.page(report.title)
    header = SubElement(body, "header")
    SubElement(header, "h1").text = report.title
    add_tuning(header, SubElement(body, "main"), report)
    return charts.page_text(root)


def add_tuning(header: Element, main: Element, report: Report) -> None:
    """What the page consists of but its title: facts with a table of groups, and a section a group."""
    _add_summary(header, report)
    for group in report.groups:
        _add_group(main, group)


def _add_summary(header: Element, report: Report) -> None:
    facts = SubElement(header, "dl")
    for name, value in report.facts:
        SubElement(facts, "dt").text = name
        SubElement(facts, "dd").text = value
    for entry in report.damaged:
        SubElement(header, "p", {"class": "damaged"}).text = f"Left out: {entry}"
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
    rows = charts.table(
        header, "groups in descending order of their part of the time", ["group"], [n for n, _ in shown]
    )
    for group in report.groups:
        row = SubElement(rows, "tr")
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
    rows = charts.table(details, caption, ["schedule"], ["predicted, µs", "measured, µs", "round"], ["note"])
    for each in ordered[:_MANY]:
        row = SubElement(rows, "tr", {} if each.kind == "timed" else {"class": each.kind})
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
    rows = charts.table(details, "by program and limit", ["program", "limit"], ["candidates"], ["closest one"])
    for each in sorted(rejected, key=lambda one: -one.count):
        row = SubElement(rows, "tr")
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


def _time(us: float | None) -> str:
    """Microseconds with three or four digits."""
    if us is None:
        return ""
    return f"{us:.0f}" if us >= 1000 else f"{us:.4g}"
