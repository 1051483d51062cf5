"""The graph of a compiled model's launches as a picture, by a layered layout; and its arena over the launches.

The layout is Sugiyama's ("Methods for visual understanding of hierarchical system structures", 1981): ranks by the
longest path, order within a rank by barycentres, then places along a rank that are nearest to those of the neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from xml.etree.ElementTree import Element, SubElement

from treadle.tools import charts

# The layout: nodes are numbered so that edges lead from smaller numbers to greater ones.

Edge = tuple[int, int]
Point = tuple[float, float]

WIDTH, GAP, ROW_GAP = 236.0, 26.0, 40.0
"""Pixels: of a box, and between boxes side by side, and between ranks."""
_THREAD = 8.0
"""The width that a line takes in a rank which it crosses."""
LONGEST = 12
"""Ranks that a line may span; a longer edge is named at its end instead: a mask that every layer reads would cover the
picture with lines, and take a place in every rank."""
_SWEEPS = 4


@dataclass(frozen=True)
class Layout:
    """Where everything is, in pixels.

    corners: the upper left corner of each node's box
    lines: for each edge that is drawn, the points at which it enters and leaves ranks
    """

    corners: tuple[Point, ...]
    lines: Mapping[Edge, tuple[Point, ...]]
    width: float
    height: float


def layered(heights: Sequence[float], edges: Sequence[Edge]) -> Layout:
    """A layout of boxes of these heights, each `WIDTH` wide: edges lead downwards, boxes do not overlap."""
    ranks = ranks_of(len(heights), edges)
    near = [(a, b) for a, b in edges if ranks[b] - ranks[a] <= LONGEST]
    crossing = _Crossing(heights, ranks, near)
    order = _ordered(crossing)
    xs = _places(crossing, order)
    left = min((x - crossing.widths[n] / 2 for n, x in enumerate(xs)), default=0.0)
    tall = [max((heights[n] for n in rank if n < len(heights)), default=0.0) for rank in order]
    tops = [0.0, *accumulate(height + ROW_GAP for height in tall)]
    corners = tuple((xs[n] - WIDTH / 2 - left, tops[ranks[n]]) for n in range(len(heights)))
    lines: dict[Edge, tuple[Point, ...]] = {}
    for edge, path in crossing.paths.items():
        first, *between, last = path
        points = [(xs[first] - left, tops[ranks[first]] + heights[first])]
        for n in between:
            top = tops[crossing.ranks[n]]
            points += [(xs[n] - left, top), (xs[n] - left, top + tall[crossing.ranks[n]])]
        lines[edge] = (*points, (xs[last] - left, tops[ranks[last]]))
    right = max((x + crossing.widths[n] / 2 for n, x in enumerate(xs)), default=0.0)
    return Layout(corners, lines, right - left, max(tops[-1] - ROW_GAP, 0.0))


def far_edges(count: int, edges: Sequence[Edge]) -> list[Edge]:
    """The edges that a layout draws no line for."""
    ranks = ranks_of(count, edges)
    return [(a, b) for a, b in dict.fromkeys(edges) if ranks[b] - ranks[a] > LONGEST]


def ranks_of(count: int, edges: Sequence[Edge]) -> list[int]:
    """The rank of each node: the longest path to it; of one without a predecessor, just above its first user."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in edges:
        before[b].append(a)
        after[a].append(b)
    ranks = [0] * count
    for n in range(count):
        ranks[n] = 1 + max((ranks[m] for m in before[n]), default=-1)
    return [
        max(min(ranks[m] for m in after[n]) - 1, 0) if after[n] and not before[n] else ranks[n] for n in range(count)
    ]


class _Crossing:
    """The nodes, and behind them a thread for each rank that an edge crosses, so that all edges join neighbours.

    paths: the nodes and threads of each edge; above, below: the neighbours of each
    """

    def __init__(self, heights: Sequence[float], ranks: Sequence[int], edges: Sequence[Edge]):
        self.ranks = list(ranks)
        self.widths = [WIDTH] * len(heights)
        self.paths: dict[Edge, list[int]] = {}
        for a, b in dict.fromkeys(edges):
            threads = [self._thread(rank) for rank in range(ranks[a] + 1, ranks[b])]
            self.paths[a, b] = [a, *threads, b]
        self.above: list[list[int]] = [[] for _ in self.ranks]
        self.below: list[list[int]] = [[] for _ in self.ranks]
        for path in self.paths.values():
            for a, b in pairwise(path):
                self.below[a].append(b)
                self.above[b].append(a)

    def _thread(self, rank: int) -> int:
        self.ranks.append(rank)
        self.widths.append(_THREAD)
        return len(self.ranks) - 1


def _ordered(crossing: _Crossing) -> list[list[int]]:
    """The nodes of each rank from left to right."""
    order: list[list[int]] = [[] for _ in range(max(crossing.ranks, default=-1) + 1)]
    for n, rank in enumerate(crossing.ranks):
        order[rank].append(n)
    at = [0.0] * len(crossing.ranks)
    for rank in order:
        _number(rank, at)
    for sweep in range(_SWEEPS):
        neighbours = crossing.below if sweep % 2 else crossing.above
        for rank in reversed(order) if sweep % 2 else order:
            keys = {n: _mean([at[m] for m in neighbours[n]], at[n]) for n in rank}
            rank.sort(key=keys.__getitem__)
            _number(rank, at)
    return order


def _number(rank: Sequence[int], at: list[float]) -> None:
    for place, n in enumerate(rank):
        at[n] = place / len(rank)


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _places(crossing: _Crossing, order: Sequence[Sequence[int]]) -> list[float]:
    """The middle of each node and thread along its rank."""
    xs = [0.0] * len(crossing.ranks)
    for sweep in range(_SWEEPS + 1):
        neighbours = crossing.below if sweep % 2 else crossing.above
        for rank in reversed(order) if sweep % 2 else order:
            wanted = [_mean([xs[m] for m in neighbours[n]], xs[n]) for n in rank]
            for n, x in zip(rank, separated(wanted, [crossing.widths[n] for n in rank]), strict=True):
                xs[n] = x
    return xs


def separated(wanted: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The middles of boxes in a row, in this order and `GAP` apart, with the least squares of distances from those that
    are wanted: isotonic regression by pooling adjacent violators."""
    shifts = [0.0, *accumulate((a + b) / 2 + GAP for a, b in pairwise(widths))]
    pools: list[tuple[float, int]] = []  # the sum and the number of values that share a place
    for value, shift in zip(wanted, shifts, strict=False):
        total, count = value - shift, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, more = pools.pop()
            total, count = total + before, count + more
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return [mean + shift for mean, shift in zip(means, shifts, strict=False)]


# The picture of a graph.

_LINE = 16.0
_LETTERS, _BOLD_LETTERS = 32, 26
"""Of a text in a box; its tooltip has the rest."""

STYLE = """
.net text{fill:var(--text);font:12px system-ui,sans-serif}.net .faint{fill:var(--faint)}
.net .box{fill:var(--panel);stroke:var(--line)}.net .heat{fill:var(--hot)}
.net .edge{fill:none;stroke:var(--faint);stroke-width:1.2;stroke-opacity:.7}
.net .head{font-weight:600}.net a{cursor:pointer}.net a:hover text{text-decoration:underline}
.net .on>.box,.net .on>.value{stroke:var(--chosen);stroke-width:3}
.net a.on text{fill:var(--chosen);font-weight:600}
.net .value{fill:var(--timed);fill-opacity:.3;stroke:var(--timed);stroke-width:.6}
.net .value:hover{fill-opacity:.6}
.net .grid{stroke:var(--line);stroke-width:1}.net .end{text-anchor:end}
"""


@dataclass(frozen=True)
class Row:
    """A text in a box, and the id of what it stands for."""

    text: str
    link: str = ""


@dataclass(frozen=True)
class Box:
    """A box of the graph.

    title, link: its first line, and the id of what it stands for; rows: the others
    related: ids of everything that belongs to it; heat: from 0 to 1, how hot its colour is
    """

    title: str
    link: str
    rows: tuple[Row, ...] = ()
    related: tuple[str, ...] = ()
    heat: float = 0.0


def graph_picture(boxes: Sequence[Box], edges: Sequence[Edge], title: str) -> Element:
    """The boxes and lines between them; an edge over more than `LONGEST` ranks is a row of the box at its end."""
    named: dict[int, list[Row]] = {}
    for a, b in far_edges(len(boxes), edges):
        named.setdefault(b, []).append(Row(f"from {boxes[a].title}", boxes[a].link))
    heights = [_height(box, len(named.get(n, ()))) for n, box in enumerate(boxes)]
    layout = layered(heights, edges)
    root = _picture(title, layout.width + 2, layout.height + 2)
    SubElement(root, "path", {"class": "edge", "d": "".join(map(_curve, layout.lines.values()))})
    for number, box in enumerate(boxes):
        _draw_box(root, box, [*box.rows, *named.get(number, ())], layout.corners[number], heights[number])
    return root


def _picture(title: str, width: float, height: float) -> Element:
    size = {"viewBox": f"-1 -1 {width:.0f} {height:.0f}", "width": f"{width:.0f}", "height": f"{height:.0f}"}
    root = Element("svg", {"class": "net", "role": "img", **size})
    SubElement(root, "title").text = title
    return root


def _height(box: Box, more: int) -> float:
    return _LINE * (1 + len(box.rows) + more) + 8


def _curve(points: Sequence[Point]) -> str:
    """A line through points, whose every second part crosses a rank and is straight; it ends with an arrowhead."""
    (x, y), *rest = points
    parts = [f"M{x:.0f} {y:.0f}"]
    for number, (to_x, to_y) in enumerate(rest):
        middle = (y + to_y) / 2
        bent = number % 2 == 0
        parts.append(f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}" if bent else f"V{to_y:.0f}")
        x, y = to_x, to_y
    return "".join([*parts, "m-4 -7l4 7l4 -7"])


def _draw_box(root: Element, box: Box, rows: Sequence[Row], corner: Point, height: float) -> None:
    x, y = corner
    group = SubElement(root, "g", {"data-r": " ".join((box.link, *box.related))})
    charts.box(group, "box", x, y, WIDTH, height).set("rx", "4")
    if box.heat > 0:
        charts.box(group, "heat", x, y, WIDTH, height).attrib |= {
            "rx": "4",
            "fill-opacity": f"{0.7 * box.heat**0.5:.2f}",
        }
    for number, row in enumerate((Row(box.title, box.link), *rows)):
        parent = SubElement(group, "a", {"href": f"#{row.link}", "data-r": row.link}) if row.link else group
        letters = _LETTERS if number else _BOLD_LETTERS
        text = charts.label(parent, x + 8, y + _LINE * (number + 1), _cut(row.text, letters), "" if number else "head")
        if len(row.text) > letters:
            SubElement(text, "title").text = row.text


def _cut(text: str, letters: int) -> str:
    """A text without its middle where it is too long: names differ at their ends."""
    kept = letters // 3
    return text if len(text) <= letters else f"{text[:kept]}…{text[kept + 1 - letters :]}"


# The arena over the launches.

_LEFT, _TOP, _BOTTOM = 70.0, 12.0, 34.0
_TALL = 320.0
_MOST_STEP, _LEAST_STEP, _FULL, _APART = 28.0, 3.0, 900.0, 70.0


@dataclass(frozen=True)
class Lifetime:
    """A tensor in the arena: bytes from `start` on, from one launch to another, both included."""

    name: str
    start: int
    nbytes: int
    first: int
    last: int
    link: str
    related: tuple[str, ...] = ()


def arena_picture(lifetimes: Sequence[Lifetime], nbytes: int, steps: int, link: Callable[[int], str]) -> Element:
    """The bytes of an arena upwards, the launches from left to right; link: the id of a launch."""
    step = min(max(_FULL / max(steps, 1), _LEAST_STEP), _MOST_STEP)
    width, height = _LEFT + step * steps + 12, _TOP + _TALL + _BOTTOM
    root = _picture(f"the arena of {nbytes} bytes over {steps} launches", width, height)
    scale = charts.Scale(0, max(nbytes, 1) / 1e6, _TOP + _TALL, _TOP, is_log=False)
    for value in charts.even_ticks(scale.low, scale.high):
        y = scale(value)
        charts.line(root, "grid", [(_LEFT, y), (_LEFT + step * steps, y)])
        charts.label(root, _LEFT - 6, y + 4, f"{value:g} MB", "end faint")
    for number in _marks(steps, step):
        anchor = SubElement(root, "a", {"href": f"#{link(number)}"})
        charts.label(anchor, _LEFT + step * number, _TOP + _TALL + 16, str(number), "faint")
    charts.label(root, _LEFT, height - 3, "number of the launch", "faint")
    for each in lifetimes:
        x, y = _LEFT + step * each.first, scale((each.start + each.nbytes) / 1e6)
        anchor = SubElement(root, "a", {"href": f"#{each.link}", "data-r": " ".join((each.link, *each.related))})
        tall = max(scale(each.start / 1e6) - y, 0.5)
        found = charts.box(anchor, "value", x, y, step * (each.last - each.first + 1), tall)
        SubElement(
            found, "title"
        ).text = f"{each.name}: {each.nbytes} bytes from {each.start} on, launches {each.first} to {each.last}"
    return root


def _marks(steps: int, step: float) -> list[int]:
    """Numbers of launches that are written below a picture, some pixels apart."""
    return list(range(0, steps, max(1, round(_APART / step))))
