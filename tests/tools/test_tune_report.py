"""`treadle tune --report`: one file whose pictures and tables say what the records say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import islice
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest
from PIL import Image

from tests.helpers.waiting import HANGS
from tests.tuning.small_model import write_model
from treadle.dialects.schedule import UseAttr
from treadle.errors import TreadleError
from treadle.schedules.search.candidate import Candidate, Task
from treadle.schedules.search.database import Database, Record
from treadle.schedules.search.programs import taken
from treadle.schedules.search.rejections import Ledger
from treadle.schedules.search.rejections import Rejection as Rejected
from treadle.schedules.search.trials import Trial
from treadle.target.host import hardware_of, host_target
from treadle.target.options import CompileOptions
from treadle.tools.charts import Scale, scale_of
from treadle.tools.report_page import Point, best_after_each_trial, predicted_against_measured, report_page
from treadle.tools.report_source import (
    Attempt,
    GroupReport,
    Rejection,
    Report,
    database_report,
    model_report,
    rank_correlation,
)
from treadle.tools.treadle_cli import main
from treadle.tuning.model import tasks_of_model
from treadle.tuning.tasks import GroupTask

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")

ATTEMPTS = (
    Attempt("@a {n = 1}", "default", 0, 90.0, 100.0),
    Attempt("@a {n = 2}", "timed", 1, 80.0, 120.0),
    Attempt("@a {n = 3}", "chosen", 1, 40.0, 50.0),
    Attempt("@a {n = 4}", "failed", 1, 70.0, None, "it ended <the process> & more"),
)
GROUP = GroupReport(
    "matmul 8x8", "group-0", 3, 0.75, 100.0, 50.0, "the <chosen> one", "module {}", ATTEMPTS,
    (Rejection("a", "accumulators", 812, "33 accumulators"),),
)  # fmt: skip
REPORT = Report("Tuning of m.onnx", (("machine", "A Processor 2 cores"),), (GROUP,))


class Reader(HTMLParser):
    """Elements that are open at each text, the texts by element, and everything that an attribute refers to."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())


def test_the_page_is_one_file_that_says_everything() -> None:
    page = report_page(REPORT)
    read = Reader(page)
    assert page.startswith("<!doctype html>")
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert not re.search(r"https?://|@import|url\(", page)
    assert all(value.startswith("#") for _, name, value in read.attributes if name in ("href", "src"))
    identifiers = [value for _, name, value in read.attributes if name == "id"]
    assert [value[1:] for _, name, value in read.attributes if name == "href"] == identifiers == ["group-0"]
    text = " ".join(words for texts in read.texts.values() for words in texts)
    for words in ("A Processor 2 cores", "matmul 8x8", "75.0%", "2.00x", "the <chosen> one", "812", "33 accumulators",
                  "it ended <the process> & more"):  # fmt: skip
        assert words in text
    assert "prefers-color-scheme:dark" in page


def test_pictures_and_tables_can_be_read_aloud() -> None:
    read = Reader(report_page(REPORT))
    assert read.tags.count("svg") == 2
    assert sum(item == ("svg", "role", "img") for item in read.attributes) == 2
    assert "matmul 8x8: predicted against measured time" in read.texts["title"]
    assert "3 candidates with both times, 1 without a measured one." in " ".join(read.texts["desc"])
    assert read.tags.count("caption") == read.tags.count("table")
    assert all(name != "scope" or value == "col" for _, name, value in read.attributes)
    assert ("html", "lang", "en") in read.attributes


def test_a_group_that_was_not_timed_has_no_pictures() -> None:
    read = Reader(report_page(replace(REPORT, groups=(replace(GROUP, attempts=(), default_us=None, best_us=None),))))
    assert "svg" not in read.tags
    assert "Not timed." in read.texts["p"]


def marks(picture: Element) -> dict[str, list[tuple[float, float]]]:
    """Where the points are, by kind."""
    found: dict[str, list[tuple[float, float]]] = {}
    for group in picture.iter("g"):
        _, shape = group
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d", " ".join(shape.attrib.values()))]
        found.setdefault(shape.attrib["class"], []).append((numbers[0], numbers[1]))
    return found


def test_points_lie_where_their_times_are() -> None:
    points = [Point(a.kind, a.predicted_us, a.us, a.schedule) for a in ATTEMPTS]
    found = marks(predicted_against_measured(points, "matmul"))
    assert {kind: len(places) for kind, places in found.items()} == {"timed": 1, "default": 1, "chosen": 1, "failed": 1}
    (chosen,), (default,), (timed,), (failed,) = (found[kind] for kind in ("chosen", "default", "timed", "failed"))
    assert chosen[0] < failed[0] < timed[0] < default[0], "further right is longer predicted"
    assert failed[1] < timed[1] < default[1] < chosen[1], "further up is longer measured, and above all no time"


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
def test_the_diagonal_is_where_both_times_agree(factor: float) -> None:
    """Also where no predicted time is within the range of the measured ones."""
    points = [Point("timed", 10.0 * n * factor, 10.0 * n, "") for n in (1, 2, 3)]
    picture = predicted_against_measured([*points, Point("timed", 20.0, 20.0, "agrees")], "matmul")
    (line,) = [each for each in picture.iter("polyline") if each.attrib["class"] == "ideal"]
    (x0, y0), (x1, y1) = (map(float, pair.split(",")) for pair in line.attrib["points"].split())
    x, y = marks(picture)["timed"][-1]
    assert (y - y0) / (x - x0) == pytest.approx((y1 - y0) / (x1 - x0), abs=0.02)
    labels = [each.text for each in picture.iter("text")]
    assert {"predicted, µs, log scale", "measured in the search, µs, log scale"} <= set(labels)


def test_one_candidate_has_no_picture() -> None:
    read = Reader(report_page(replace(REPORT, groups=(replace(GROUP, attempts=ATTEMPTS[:1]),))))
    assert "svg" not in read.tags


def test_times_of_the_search_are_told_from_those_of_the_last_timing() -> None:
    confirmed = replace(GROUP, default_us=555.6, best_us=479.8)
    text = " ".join(Reader(report_page(replace(REPORT, groups=(confirmed,)))).texts["p"])
    assert "555.6 µs by default, 479.8 µs with the best schedule" in text
    assert "times of the search, in which the default took 100 µs when it was timed alone" in text


def test_the_best_time_falls_in_steps() -> None:
    picture = best_after_each_trial([10.0, 12.0, None, 5.0, 7.0], "matmul")
    (line,) = [each for each in picture.iter("polyline") if each.attrib["class"] == "best"]
    heights = [float(pair.partition(",")[2]) for pair in line.attrib["points"].split()]
    assert heights == sorted(heights)
    assert len(set(heights)) == 2
    assert "From 10 to 5 µs in 5 trials." in (each.text for each in picture.iter("desc"))


@pytest.mark.parametrize(("low", "high"), [(3.9, 4.1), (1.0, 3.5), (3.0, 30.0), (0.02, 7e6), (5.0, 5.0)])
def test_scales_have_round_ticks_inside(low: float, high: float) -> None:
    scale = scale_of([low, high], 0.0, 100.0)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(0 <= scale(tick) <= 100 for tick in ticks)
    assert all(len(f"{tick:.6g}".strip("0.")) <= 5 for tick in ticks)
    assert 0 < scale(low) <= scale(high) < 100
    assert Scale(1.0, 100.0, 0.0, 10.0)(10.0) == pytest.approx(5.0)


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 300]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826817)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    assert GROUP.correlation == pytest.approx(0.5)
    assert GROUP.model_error == pytest.approx(1.25)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[GroupTask]:
    path = write_model(tmp_path_factory.mktemp("model") / "m.onnx")
    return tasks_of_model(path, host_target(), {}, CompileOptions())


@pytest.fixture(autouse=True)
def few_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.schedules.search.rejections.MOST", 30)


def candidates(task: GroupTask, *, nest: bool) -> list[Candidate]:
    """Three candidates of a template, other ones than the default, or of the first program that tiles."""
    (program, *_) = [each for each in task.search.programs if (each.template is None) == nest]
    found = Task(task.search.anchor, task.search.target, (program,))
    if not nest:
        return [each for each in found.distinct() if each != task.default][:3]
    name = program.sym_name.data
    every = (Candidate(name, decisions) for decisions in found.samplers[name].enumerate())
    return list(islice((each for each in every if is_legal(found, each)), 3))


def is_legal(task: Task, candidate: Candidate) -> bool:
    """Whether it replays."""
    try:
        task.replay(candidate)
    except TreadleError:
        return False
    return True


def filled(folder: Path, tasks: Sequence[GroupTask], *, nest: bool = False) -> Database:
    """Records of every task: its default, a failure, and two others, of which the last is the entry of the first."""
    database, hardware = Database(folder), hardware_of(host_target())
    for number, task in enumerate(tasks):
        default, (first, second, third) = task.default, candidates(task, nest=nest and number == 0)
        trials = [
            Trial(default.program, default.decisions, 0, 10.0, None, 9.0),
            Trial(first.program, first.decisions, 1, None, None, 8.0, "it is wrong", of=2),
            Trial(second.program, second.decisions, 1, 30.0, 20.0, 14.0, of=2),
            Trial(third.program, third.decisions, 2, 8.0, 16.0, 6.0),
        ]
        ledger, program = Ledger(), next(name for name in task.search.by_name if name != default.program)
        ledger.reject(Rejected(program, "accumulators", 31, 0.5, Candidate(program, {"n": 4}), "6, 2 too many"))
        counted = {"random 0 1": ledger} if number == 0 else {}
        database.add_trials(task.digest, task.label, hardware, trials, programs=task.texts, ledgers=counted)
        if number == 0:
            record = Record(5.0, 10.0, "cpu", hardware, "gcc 12.2", "0123456789ab", "2026-11-22")
            use = task.search.replay(third)
            schedule = use if isinstance(use, UseAttr) else taken(task.search.by_name[third.program], third.decisions)
            database.write(task.program.module, task.digest, schedule, record)
    return database


@pytest.mark.parametrize("nest", [False, True])
def test_a_models_report_is_made_of_records(tasks: list[GroupTask], tmp_path: Path, nest: bool) -> None:
    filled(tmp_path, tasks, nest=nest)
    report = model_report("m.onnx", tasks, tmp_path, hardware_of(host_target()), 0)
    product, softmax = report.groups
    assert (product.name, product.count, softmax.count) == ("unpack_matmul_relu 20x48", 2, 1)
    assert (product.share, softmax.share) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert [each.kind for each in product.attempts] == ["default", "failed", "timed", "chosen"]
    assert [each.kind for each in softmax.attempts] == ["default", "failed", "timed", "timed"]
    assert [each.us for each in product.attempts] == [10.0, None, 15.0, 5.0], "relative to the reference"
    assert (product.ratio, softmax.ratio) == (2.0, 1.0)
    (program, *_) = [each for each in tasks[0].search.programs if (each.template is None) == nest]
    assert product.chosen.startswith(f'schedule.program @{program.sym_name.data} for "cpu" {{')
    assert "taken" in product.chosen
    assert product.rejected
    searched, surveyed, *_ = product.rejected
    assert (searched.limit, searched.count, searched.example[-16:]) == ("accumulators", 31, "}: 6, 2 too many")
    assert surveyed.program == "matmul_cpu", "of which no search has looked at a candidate"
    assert dict(report.facts)["kernels"] == "0.03 -> 0.02 ms, 1.50 times as fast"
    Reader(report_page(report))


def test_a_finished_database_has_a_report(
    tasks: list[GroupTask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "db"
    filled(folder, tasks)
    report = database_report(folder)
    assert {group.name for group in report.groups} == {"unpack_matmul_relu 20x48", "softmax"}
    chosen = [each for group in report.groups for each in group.attempts if each.kind == "chosen"]
    assert len(chosen) == 1, "knobs that follow from others are no decisions of its candidate"
    assert dict(report.facts)["machine"] == hardware_of(host_target())
    rejected = {group.name: group.rejected for group in report.groups}
    assert rejected["softmax"] is None, "nobody counted"
    assert [each.count for each in rejected["unpack_matmul_relu 20x48"] or ()] == [31]
    assert main(["tune", "--database", str(folder), "--report", str(tmp_path / "out.html")]) == 0
    assert (tmp_path / "out.html").read_text() == report_page(report)
    assert main(["tune", "--database", str(folder), "--report", "-"]) == 0
    assert capsys.readouterr().out == report_page(report)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--report", "out.html"], "there are no records; accepted: a database that `treadle tune` wrote"),
        ([], "there is no model; accepted: a model to tune, or --report FILE for what a database holds"),
    ],
)
def test_no_report_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["tune", "--database", str(tmp_path), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_damaged_entry_is_named_and_the_rest_is_shown(
    tasks: list[GroupTask], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "db", tasks)
    whole = database_report(tmp_path / "db")
    (entry,) = (tmp_path / "db").glob("*/*.mlir")
    for damage in (lambda: entry.write_text("no IR"), lambda: (entry.unlink(), os.mkfifo(entry))):
        damage()
        found = database_report(tmp_path / "db")
        assert [str(entry) in line for line in found.damaged] == [True]
        assert [len(group.attempts) for group in found.groups] == [len(group.attempts) for group in whole.groups]
        assert model_report("m", tasks, tmp_path / "db", hardware_of(host_target()), 0).damaged == found.damaged
    assert main(["tune", "--database", str(tmp_path / "db"), "--report", str(tmp_path / "r.html")]) == 0
    assert f"left out of the report: {entry}: is a FIFO" in capsys.readouterr().err
    assert f"Left out: {entry}: is a FIFO" in (tmp_path / "r.html").read_text()


def test_damaged_records_are_named_and_the_rest_is_shown(tasks: list[GroupTask], tmp_path: Path) -> None:
    filled(tmp_path, tasks)
    for records in tmp_path.glob("*/*.jsonl"):
        records.unlink()
        records.symlink_to("/dev/zero")
    found = database_report(tmp_path)
    assert all("is a device, not a regular file" in line for line in found.damaged)
    assert found.damaged
    assert [group.ratio is not None for group in found.groups].count(True) == 1


@pytest.mark.slow
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(tmp_path: Path, scheme: str) -> None:
    """It lays the page out without an error of its own, and the background is that of the scheme."""
    path = tmp_path / "r.html"
    path.write_text(report_page(REPORT))
    shown = tmp_path / "r.png"
    number, profile = {"dark": 0, "light": 1}[scheme], tmp_path / "profile"
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=900,1200",
               f"--blink-settings=preferredColorScheme={number}", f"--user-data-dir={profile}"]  # fmt: skip
    subprocess.run([*command, f"--screenshot={shown}", path.as_uri()], check=True, capture_output=True, timeout=HANGS)
    dumped = subprocess.run([*command, "--dump-dom", path.as_uri()], check=True, capture_output=True, timeout=HANGS)
    dom = dumped.stdout.decode()
    assert dom.count("<svg") == 2
    assert dom.count("<tr") == report_page(REPORT).count("<tr")
    colours = picture_colours(shown)
    page, other = ((255, 255, 255), (20, 23, 27)) if scheme == "light" else ((20, 23, 27), (255, 255, 255))
    assert colours.get(page, 0) > 0.6
    assert colours.get(other, 0) < 0.2
    accent = (181, 71, 8) if scheme == "light" else (255, 180, 84)
    assert colours.get(accent, 0) > 0, "the chosen candidate is drawn"


def picture_colours(path: Path) -> dict[tuple[int, ...], float]:
    """The part of a picture that each colour has."""
    with Image.open(path) as image:
        found = image.convert("RGB").getcolors(1 << 24) or []
    whole = sum(count for count, _ in found)
    return {tuple(colour): count / whole for count, colour in found if isinstance(colour, tuple)}
