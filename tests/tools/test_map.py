"""treadle map: pictures that say what the mapping says, as text and as SVG, and what is refused."""

from __future__ import annotations

import itertools
import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from docs.build.architecture import PICTURES
from tests.helpers.bless import assert_golden
from treadle.dialects.task import Mapping, parse_mapping, repeat, replicate, spatial
from treadle.errors import TreadleError
from treadle.tools import map_command
from treadle.tools.map_command import (
    COLOURS,
    MOST_VISITS,
    Picture,
    colour_of,
    columns_within,
    draw_svg,
    draw_text,
    picture,
)
from treadle.tools.treadle_cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "task-mappings.md"
SVG = "{http://www.w3.org/2000/svg}"

MAPPINGS = [
    "spatial(4, 2) * repeat(2, 2)",
    "repeat(2, 2)",
    "spatial(2, 2, order = (1, 0)) * repeat(2, 1)",
    "spatial(2) * repeat(2) * spatial(2)",
    "repeat(2, 1, 2) * spatial(1, 2, 2)",
    "repeat(2, 1, 1, 3) * spatial(1, 2, 2, 1)",
    "replicate(3) * spatial(2, 2)",
    "spatial(2, 1) * replicate(2) * repeat(1, 2)",
    "custom(4, 4, workers = 4, steps = 4, map = (s, (w + s) mod 4))",
]

IR = """
loop.func @load(%A: memref<64x8xf32>) grid(%b in 1) threads(%t in 128) {
  task.for (%i, %k) in #task.map<repeat(2, 1) * spatial(16, 8)>(%t) {
    task.for (%e) in #task.map<repeat(3)> {
    }
  }
}
"""

TEXT_OF_REPLICAS = """\
spatial(2) * replicate(3) * repeat(2): 4 tasks, 6 workers, 2 steps each
each cell is worker:step

     0     1     2     3
 0-2:0 0-2:1 3-5:0 3-5:1
"""

TEXT_OF_SLICES = """\
repeat(2, 1, 1) * spatial(1, 2, 2): 2 x 2 x 2 tasks, 4 workers, 2 steps each
each cell is worker:step

(0, *, *)
    0   1
0 0:0 1:0
1 2:0 3:0

(1, *, *)
    0   1
0 0:1 1:1
1 2:1 3:1
"""

TEXT_OF_A_FILE = """\
@load at in.mlir:3:3
repeat(2, 1) * spatial(16, 8): 32 x 8 tasks, 128 workers, 2 steps each
each cell is worker:step; a colour is a warp
only rows 0 to 1 of 32, columns 0 to 1 of 8; --limit 32 draws all

    0   1
0 0:0 1:0
1 8:0 9:0

@load at in.mlir:4:5
repeat(3): 3 tasks, 1 worker, 3 steps each
each cell is worker:step
only columns 0 to 1 of 3; --limit 3 draws all

   0   1
 0:0 0:1
"""


def drawn(text: str, limit: int = 64) -> Picture:
    return picture(parse_mapping(text), limit)


def done(cells: list[tuple[tuple[int, ...], tuple[int, ...], int]]) -> dict[int, list[tuple[int, ...]]]:
    """Each worker's tasks in the order of their steps."""
    workers = {worker for _, who, _ in cells for worker in who}
    return {w: [t for t, who, _ in sorted(cells, key=lambda cell: cell[2]) if w in who] for w in workers}


def cells_of_svg(root: ElementTree.Element) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Task, workers and step of every cell of an SVG."""
    cells = root.findall(f".//{SVG}g[@class='cell']")
    return [(numbers(c, "task"), numbers(c, "workers"), int(c.attrib["data-step"])) for c in cells]


def numbers(cell: ElementTree.Element, name: str) -> tuple[int, ...]:
    return tuple(map(int, cell.attrib[f"data-{name}"].split()))


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `#RRGGBB`."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("text", MAPPINGS)
def test_the_layout_is_the_mapping(text: str) -> None:
    mapping, shown = parse_mapping(text), drawn(text)
    assert done([(c.task, c.workers, c.step) for c in shown.cells]) == {w: mapping(w) for w in range(mapping.workers)}
    assert [c.task for c in shown.cells] == list(itertools.product(*map(range, mapping.shape)))
    assert shown.left_out == ""


@settings(max_examples=40)
@given(
    st.lists(
        st.builds(
            lambda make, dims, order: make(*dims, order=order),
            st.sampled_from([repeat, spatial]),
            st.tuples(st.integers(1, 3), st.integers(1, 3)),
            st.permutations(range(2)),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 3),
)
def test_any_svg_holds_the_mapping(parts: list[Mapping], replicas: int) -> None:
    mapping = replicate(replicas)
    for part in parts:
        mapping = mapping * part
    root = ElementTree.fromstring(draw_svg([picture(mapping, 32)]))
    assert done(cells_of_svg(root)) == {w: mapping(w) for w in range(mapping.workers)}


@pytest.mark.parametrize("text", MAPPINGS)
def test_an_svg_shows_numbers_colours_and_order(text: str) -> None:
    shown = drawn(text)
    root = ElementTree.fromstring(draw_svg([shown]))
    corners: dict[tuple[int, ...], tuple[int, int]] = {}
    for cell in root.findall(f".//{SVG}g[@class='cell']"):
        rect, who, step = cell
        workers = numbers(cell, "workers")
        assert rect.attrib["fill"] == colour_of(workers[0], shown.by_warp)
        assert re.findall(r"\d+", who.text or "")[0] == str(workers[0]) and step.text == cell.attrib["data-step"]
        x, y, width, height = (int(rect.attrib[name]) for name in ("x", "y", "width", "height"))
        assert x + width < int(root.attrib["width"]) and y + height < int(root.attrib["height"])
        corners[numbers(cell, "task")] = x, y
    assert len(set(corners.values())) == len(corners)
    for task, (x, y) in corners.items():
        right = corners.get((*task[:-1], task[-1] + 1))
        assert right is None or (right[0] > x and right[1] == y)
    tasks = parse_mapping(text)(0)
    by_slice = [t for part in sorted({t[:-2] for t in tasks}) for t in tasks if t[:-2] == part]
    points = [p for line in root.findall(f".//{SVG}polyline") for p in line.attrib["points"].split()]
    assert [task_under(corners, point) for point in points] == (by_slice if len(tasks) > 1 else [])


def task_under(corners: dict[tuple[int, ...], tuple[int, int]], point: str) -> tuple[int, ...]:
    """The task in whose cell a point of a route lies."""
    at = tuple(map(int, point.split(",")))
    return max((t for t, (x, y) in corners.items() if x < at[0] and y < at[1]), key=lambda t: corners[t][::-1])


def test_an_svg_needs_nothing_else() -> None:
    text = draw_svg([drawn("repeat(2, 2)")])
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"href|@import|url\((?!#)|<script|<image", text)


def test_titles_are_escaped_and_harmless() -> None:
    title = 'a<b>&"c" \x1b[31m\x00\ud800 \u00e9'
    shown = picture(repeat(2), 32, title)
    root = ElementTree.fromstring(draw_svg([shown]).encode())
    expected = 'a<b>&"c" \ufffd[31m\ufffd\ufffd \u00e9'
    assert expected in [t.text for t in root.iter(f"{SVG}text")]
    assert draw_text(shown).plain.startswith(expected)


def test_colours_are_legible_and_belong_to_workers() -> None:
    assert len(set(COLOURS)) == len(COLOURS)
    assert all((luminance(colour) + 0.05) / 0.05 >= 7 for colour in COLOURS)
    assert [colour_of(w) for w in range(8)] == list(COLOURS)
    for distance in (1, 2, 4, 8, 16, 32, 64):
        same = sum(colour_of(w) == colour_of(w + distance) for w in range(1024))
        assert same <= 64, f"{same} of 1024 neighbours at {distance} share their colour"


def test_the_threads_of_a_warp_share_a_colour(capsys: pytest.CaptureFixture[str]) -> None:
    shown = picture(repeat(1) * spatial(128), 128)
    for cell in shown.cells:
        assert cell.colour == COLOURS[cell.workers[0] // 32]
    assert not picture(spatial(32), 32).by_warp and not picture(spatial(48), 48).by_warp
    assert "(its warp's colour)" in draw_svg([shown]) and "a colour is a warp" in draw_text(shown).plain


def test_a_dark_page_has_light_text_outside_of_cells() -> None:
    dark = re.search(r"@media\(prefers-color-scheme:dark\)\{(.*)\}", draw_svg([drawn("repeat(2, 2)")]))
    assert dark is not None
    colours = dict(re.findall(r"([^{}]+)\{fill:(#\w{3,6})\}", dark[1]))
    assert luminance(colours[".page"]) < 0.01 and colours[".cell text"] == "#000"
    assert all(
        (luminance(colours[kind]) + 0.05) / (luminance(colours[".page"]) + 0.05) >= 7 for kind in ("text", ".axis")
    )


def test_a_mapping_of_several_loops_is_drawn_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.mlir"
    path.write_text("\n".join(f"task.for (%i{n}) in #task.map<repeat({2 if n else 3})> {{}}" for n in range(4)))
    assert main(["map", str(path)]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(path))]
    assert titles == [f"{path}:1:1", f"{path}:2:1 and 2 other loops"]


def test_text_is_coloured_where_there_are_colours() -> None:
    text = draw_text(drawn("spatial(2) * repeat(2)"))
    styled = [(text.plain[s.start : s.end].strip(), str(s.style)) for s in text.spans]
    assert styled == [(f"{w}:{s}", f"black on {COLOURS[w]}") for w in range(2) for s in range(2)]


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ("spatial(2) * replicate(3) * repeat(2)", TEXT_OF_REPLICAS),
        ("repeat(2, 1, 1) * spatial(1, 2, 2)", TEXT_OF_SLICES),
    ],
)
def test_text(mapping: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", mapping]) == 0
    assert capsys.readouterr() == (expected, "")


def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "spatial(4, 2) * repeat(2, 2)"]) == 0
    assert capsys.readouterr().out in PAGE.read_text()


def test_the_pages_pictures_are_up_to_date(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^\$ treadle (map .* -o docs/images/\S+)$", PAGE.read_text(), re.MULTILINE)
    names = {Path(shlex.split(command)[-1]).name for command in commands}
    shown = set(re.findall(r"\]\(images/([^)]*)\)", PAGE.read_text()))
    for command in commands:
        *words, path = shlex.split(command)
        made = tmp_path / "made.svg"
        assert main([*words, str(made)]) == 0
        assert_golden(made.read_text(), ROOT / path)
    others = {Path(name).name for name in PICTURES}
    assert names == shown == {path.name for path in (ROOT / "docs" / "images").glob("*.svg")} - others


def test_every_task_loop_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.mlir").write_text(IR)
    assert main(["map", "in.mlir", "--limit", "2"]) == 0
    assert capsys.readouterr() == (TEXT_OF_A_FILE, "")
    assert main(["map", "in.mlir", "--limit", "2", "-o", "out.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "out.svg: 2 pictures"
    assert lines[1] == "@load at in.mlir:3:3: only rows 0 to 1 of 32, columns 0 to 1 of 8; --limit 32 draws all"
    root = ElementTree.parse("out.svg").getroot()
    titles = [text.text for text in root.findall(f".//{SVG}text[@class='title']")]
    assert titles == ["@load at in.mlir:3:3", "@load at in.mlir:4:5"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mlir", "out.svg"]


def test_big_grids_are_cut_and_say_so() -> None:
    mapping = spatial(4, 2) * repeat(2, 2) * spatial(4, 8) * repeat(4, 4)
    shown = picture(mapping, 32)
    assert len(shown.cells) == 32 * 32
    assert shown.left_out == "only rows 0 to 31 of 128, columns 0 to 31 of 128; --limit 128 draws all"
    assert shown.left_out in draw_text(shown).plain and shown.left_out in draw_svg([shown])
    assert all(mapping(c.workers[0])[c.step] == c.task for c in shown.cells)
    slices = drawn("repeat(5, 2, 2) * spatial(1, 2, 1)", 4)
    assert [part.outer for part in slices.slices] == [(0,), (1,), (2,), (3,)]
    assert slices.left_out == "only slices 0 to 3 of 5; --limit 5 draws all"


def test_a_route_breaks_where_tasks_are_not_drawn() -> None:
    (part,) = drawn("repeat(2, 4)", 3).slices
    assert part.route(0) == [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1), (1, 2)]]


def test_a_narrow_terminal_gets_fewer_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = drawn("repeat(2, 9)")
    assert columns_within(shown, 22) == 4 and columns_within(shown, 1) == 1

    def terminal(*, highlight: bool, soft_wrap: bool) -> Console:
        return Console(
            force_terminal=True, width=22, color_system="truecolor", highlight=highlight, soft_wrap=soft_wrap
        )

    monkeypatch.setattr(map_command, "Console", terminal)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["map", "repeat(2, 9)"]) == 0
    output = capsys.readouterr().out
    assert "only columns 0 to 3 of 9; the terminal is too narrow, -o FILE.svg has room" in output
    assert "\x1b[30;48;2;119;170;221m  0:0\x1b[0m" in output


REFUSED: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "malformed": (["repeat(4"], ("'repeat(4' has the end", "accepted: ')'")),
    "unknown part": (["rotate(4)"], ("'rotate'", "accepted: repeat, spatial")),
    "other digits": (["repeat(\u00b2)"], ("accepted: an integer of at most 18 digits",)),
    "huge number": (["repeat(" + "9" * 5000 + ")"], ("accepted: an integer of at most 18 digits",)),
    "ranks": (["repeat(2) * repeat(2, 2)"], ("composes 1 with 2 dimensions",)),
    "no tasks": (["replicate(3)"], ("replicate(3) has no tasks", "accepted: a mapping with a shape")),
    "missed": (["custom(4, workers = 2, map = (w))"], ("no exact cover: task (2,) is missed", "accepted:")),
    "repeated": (["custom(2, workers = 4, map = (w mod 2))"], ("task (0,) is done twice, by workers 0 and 2",)),
    "outside": (["custom(4, workers = 4, map = (w + 1))"], ("task (4,) of worker 3 lies outside",)),
    "too many tasks": (["repeat(2000000, 999999999)"], ("too many tasks", f"accepted: at most {MOST_VISITS}")),
    "nested": (["custom(1, workers = 1, map = (" + "(" * 9000 + "w))"], ("nested too deeply", "accepted:")),
    "no mapping": (["nothing"], ("'nothing' is neither a mapping nor a file", "accepted: a mapping such as")),
    "absent": (["absent.mlir"], ("absent.mlir: cannot read: No such file", "accepted:")),
    "folder": (["folder.mlir"], ("folder.mlir: cannot read: Is a directory", "accepted:")),
    "not text": (["binary.mlir"], ("binary.mlir: not text", "accepted: IR as UTF-8 text")),
    "malformed IR": (["malformed.mlir"], ("malformed.mlir:3:1: Expected block argument",)),
    "no loop": (["loopless.mlir"], ("loopless.mlir: holds no task.for", "accepted: IR from stage 'kernels'")),
    "missed in IR": (["missed.mlir"], ("missed.mlir:1:", "task (2,) is missed")),
    "folder of output": (["repeat(2)", "-o", "absent/m.svg"], ("absent/m.svg: cannot write", "accepted:")),
    "output is a folder": (["repeat(2)", "-o", "folder.svg"], ("folder.svg: cannot write", "accepted:")),
    "format of output": (["repeat(2)", "-o", "m.png"], ("m.png: unknown format", "accepted: a name that ends in .svg")),
    "limit": (["repeat(2)", "--limit", "0"], ("--limit: 0", "accepted: 1 upwards")),
    "limit of words": (["repeat(2)", "--limit", "all"], ("--limit", "accepted:")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.mlir").mkdir()
    (tmp_path / "folder.svg").mkdir()
    (tmp_path / "binary.mlir").write_bytes(b"\xff\xfe")
    (tmp_path / "malformed.mlir").write_text("func.func @f() {\n  task.for (\n}\n")
    (tmp_path / "loopless.mlir").write_text("func.func @f() {\n  func.return\n}\n")
    (tmp_path / "missed.mlir").write_text(
        "task.for (%i) in #task.map<custom(4, workers = 1, steps = 2, map = (s))> {\n}\n"
    )
    before = sorted(tmp_path.rglob("*"))
    arguments, words = REFUSED[case]
    for output in ([], ["-o", "made.svg"]):
        assert main(["map", *output, *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("treadle: ")
        assert all(word in captured.err for word in words), captured.err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = tmp_path / "m.svg"
    final.write_text("old")

    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main(["map", "repeat(2)", "-o", str(final)]) == 2
    assert final.read_text() == "old" and list(tmp_path.iterdir()) == [final]


def test_a_mapping_with_no_cover_is_refused_by_the_layout() -> None:
    with pytest.raises(TreadleError, match=r"task \(1,\) is missed; accepted: each task done once"):
        drawn("repeat(2) * custom(2, workers = 1, map = (0))")
