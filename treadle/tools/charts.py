"""Pictures as SVG, charts among them, and HTML pages that show charts; no scripts, fonts or files from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from treadle.errors import printable

# What every picture consists of.


def picture(title: str, style: str) -> Element:
    """An empty picture; `picture_text` gives it its size."""
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
    SubElement(root, "title").text = title
    SubElement(root, "style").text = style
    size = {"viewBox": "0 0 8 8", "refX": "7", "refY": "4", "markerWidth": "6", "markerHeight": "6", "orient": "auto"}
    marker = SubElement(SubElement(root, "defs"), "marker", {"id": "arrow", **size})
    SubElement(marker, "path", {"class": "arrowhead", "d": "M0 0L8 4L0 8z"})
    SubElement(root, "rect", {"class": "page", "width": "100%", "height": "100%"})
    return root


def picture_text(root: Element, width: float, height: float) -> str:
    """A picture of some pixels as the text of a file."""
    right, bottom = _pixel(width), _pixel(height)
    root.attrib |= {"width": right, "height": bottom, "viewBox": f"0 0 {right} {bottom}"}
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def label(parent: Element, x: float, y: float, text: str, kind: str = "") -> Element:
    """A text that begins at a place, unless its class says that it ends there or has its middle there."""
    element = SubElement(parent, "text", {"class": kind, "x": _pixel(x), "y": _pixel(y)})
    element.text = text
    return element


def line(parent: Element, kind: str, points: Iterable[tuple[float, float]]) -> Element:
    """A line through some points."""
    text = " ".join(f"{_pixel(x)},{_pixel(y)}" for x, y in points)
    return SubElement(parent, "polyline", {"class": kind, "points": text})


def box(parent: Element, kind: str, x: float, y: float, width: float, height: float) -> Element:
    """A rectangle."""
    sides = (("x", x), ("y", y), ("width", width), ("height", height))
    return SubElement(parent, "rect", {"class": kind, **{name: _pixel(value) for name, value in sides}})


def _pixel(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


# Charts. Colours are the page's CSS variables; kinds of points differ in shape, too.

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 46
_MOST_TICKS = 8

_CHART_STYLE = """
.chart{max-width:100%;height:auto}
.chart text{fill:var(--text);font:12px system-ui,sans-serif}
.chart .middle{text-anchor:middle}.chart .end{text-anchor:end}
.chart .axis,.chart .grid{stroke:var(--line);stroke-width:1;fill:none}
.chart .grid{stroke-opacity:.5}
.chart .ideal{stroke:var(--faint);stroke-width:1;stroke-dasharray:5 4;fill:none}
.chart .best{stroke:var(--chosen);stroke-width:2;fill:none}
.chart .timed{fill:var(--timed);fill-opacity:.65}
.chart .default{fill:var(--text)}
.chart .chosen{fill:var(--chosen);stroke:var(--page);stroke-width:1}
.chart .failed{stroke:var(--failed);stroke-width:2;fill:none}
.chart .kernel{stroke:var(--timed);stroke-width:1.5;fill:none}
.chart .border{stroke:var(--failed);stroke-width:1;stroke-dasharray:2 3;fill:none}
.chart g:hover>:not(title){stroke:var(--text);stroke-width:2}
"""


@dataclass(frozen=True)
class Scale:
    """Maps values to pixels, logarithmically or, of whole numbers, evenly."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = True

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        at, low, high = map(log10, (value, self.low, self.high)) if self.is_log else (value, self.low, self.high)
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Three to eight round values within the scale: of a short one at equal distances, else 1, 2, 5, 10, ..."""
        if not self.is_log or self.high < 4 * self.low:
            return even_ticks(self.low, self.high, 0 if self.is_log else 1)
        decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = [f * 10.0**d for d in decades for f in factors if self.low <= f * 10.0**d <= self.high]
            if len(found) <= _MOST_TICKS:
                return found
        return found[:: ceil(len(found) / _MOST_TICKS)]


def even_ticks(low: float, high: float, least: float = 0) -> list[float]:
    """The multiples of 1, 2 or 5 times a power of ten between two values, as many as fit, at the least distance."""
    steps = [f * 10.0**d for d in range(floor(log10(high - low)) - 1, ceil(log10(high - low)) + 1) for f in (1, 2, 5)]
    step = next(step for step in steps if step >= least and (high - low) / step < _MOST_TICKS)
    return [step * n for n in range(ceil(low / step), floor(high / step) + 1)]


def scale_of(values: Sequence[float], start: float, end: float) -> Scale:
    """A logarithmic scale with some air around the values, at least 1.5 from end to end."""
    low, high = min(values), max(values)
    middle, factor = (low * high) ** 0.5, max((high / low) ** 0.5 * 1.15, 1.5**0.5)
    return Scale(middle / factor, middle * factor, start, end)


def across(values: Sequence[float]) -> Scale:
    """The scale of a chart's horizontal axis."""
    return scale_of(values, LEFT, WIDTH - RIGHT)


def counted(number: int) -> Scale:
    """The scale of a horizontal axis of whole numbers from 1 on."""
    return Scale(1, max(number, 2), LEFT, WIDTH - RIGHT, is_log=False)


def up(values: Sequence[float], left_free: float = 0) -> Scale:
    """The scale of a chart's vertical axis, with some pixels above it left free."""
    return scale_of(values, HEIGHT - BOTTOM, TOP + left_free)


def chart(title: str, description: str) -> Element:
    """An empty chart of the page's size."""
    root = Element("svg", {"class": "chart", "role": "img", "viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": str(WIDTH)})
    SubElement(root, "title").text = title
    SubElement(root, "desc").text = description
    return root


def draw_axes(root: Element, across: Scale, up: Scale, horizontal: str, vertical: str) -> None:
    """Both axes with their ticks and names."""
    line(root, "axis", [(LEFT, TOP), (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)])
    for value in across.ticks():
        x = across(value)
        line(root, "grid", [(x, HEIGHT - BOTTOM), (x, TOP)])
        label(root, x, HEIGHT - BOTTOM + 16, f"{value:g}", "middle")
    for value in up.ticks():
        y = up(value)
        line(root, "grid", [(LEFT, y), (WIDTH - RIGHT, y)])
        label(root, LEFT - 6, y + 4, f"{value:g}", "end")
    label(root, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, horizontal, "middle")
    label(root, 6, 14, vertical)


_MARKS: Mapping[str, Callable[[float, float], tuple[str, dict[str, str]]]] = {
    "timed": lambda x, y: ("circle", {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "4"}),
    "default": lambda x, y: ("rect", {"x": f"{x - 5:.1f}", "y": f"{y - 5:.1f}", "width": "10", "height": "10"}),
    "chosen": lambda x, y: ("path", {"d": f"M{x:.1f} {y - 8:.1f}l7 8l-7 8l-7 -8z"}),
    "failed": lambda x, y: ("path", {"d": f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"}),
}


def mark(parent: Element, kind: str, x: float, y: float, tooltip: str | None = None) -> None:
    """A point; its kind is `timed`, `default`, `chosen` or `failed`."""
    if tooltip is not None:
        parent = SubElement(parent, "g")
        SubElement(parent, "title").text = tooltip
    tag, where = _MARKS[kind](x, y)
    SubElement(parent, tag, {"class": kind, **where})


# Pages.

_PAGE_STYLE = """
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


def page(title: str) -> tuple[Element, Element]:
    """An empty page, and its body."""
    root = Element("html", {"lang": "en"})
    head = SubElement(root, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width,initial-scale=1"})
    SubElement(head, "title").text = title
    SubElement(head, "style").text = _PAGE_STYLE + _CHART_STYLE
    return root, SubElement(root, "body")


def page_text(root: Element) -> str:
    """A page as the text of a file. Control characters of names are escaped: HTML has no way to contain them."""
    return printable("<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n")


def table(
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
