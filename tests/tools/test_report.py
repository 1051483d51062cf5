"""`treadle report`: one page whose tables, pictures and links say what the compiler and the measurement say."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import UnknownLoc

import treadle
from tests.helpers.onnx_models import save_model, two_products, value
from tests.helpers.quick_bench import measure_briefly
from tests.helpers.waiting import HANGS
from tests.tools.test_certify import PRODUCT
from treadle.api import resolve_target
from treadle.bench.interleave import Times
from treadle.bench.model import OWN, Benchmark, KernelTime
from treadle.bench.peaks import Launch, Peaks, launches_of, module_of
from treadle.compiler.request import CompileRequest
from treadle.dialects.location import ModelNode
from treadle.model import CompiledModel
from treadle.runtime.inputs import Given, inputs_of
from treadle.tools import report_command
from treadle.tools.bench_command import kernel_cells
from treadle.tools.graph_picture import GAP, LONGEST, WIDTH, far_edges, layered, ranks_of, separated
from treadle.tools.model_page import model_page
from treadle.tools.model_report import (
    Decisions,
    Group,
    Kernel,
    ModelReport,
    Step,
    Value,
    decisions_of,
    program_of,
)
from treadle.tools.oracle import check_model
from treadle.tools.report_command import measured, report_of
from treadle.tools.treadle_cli import main

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NASTY = "up \"<b>&' </script><script>alert(1)</script> \x1b[2J \u202e"
SECONDS = 0.02


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose first node has a name that neither HTML nor a terminal should read."""
    draw = np.random.default_rng(3)
    a, b = (draw.standard_normal(shape).astype(np.float32) for shape in ((16, 48), (48, 16)))
    return two_products(tmp_path_factory.mktemp("report") / "m.onnx", a, b, NASTY)


@pytest.fixture(scope="module")
def model(path: Path) -> CompiledModel:
    return treadle.compile(path, shapes={"n": 24}, threads=2)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements of `SECONDS`, which the command would refuse."""
    measure_briefly(monkeypatch)
    monkeypatch.setattr(report_command, "_LEAST_SECONDS", SECONDS)


def request(path: Path) -> CompileRequest:
    return CompileRequest(path, resolve_target("cpu"), {"n": (24,)})


class Tree(HTMLParser):
    """A page as a tree; every element but the void ones has to be closed."""

    def __init__(self, page: str):
        super().__init__()
        self.root = Element("page")
        self.open = [self.root]
        self.feed(page)
        self.close()
        assert self.open == [self.root], "every element is closed"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        element = SubElement(self.open[-1], tag, {name: text or "" for name, text in attrs})
        if tag not in ("meta", "br"):
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        parent = self.open[-1]
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + data
        else:
            parent.text = (parent.text or "") + data

    def section(self, name: str) -> Element:
        """A section by its id."""
        return next(each for each in self.root.iter("section") if each.get("id") == name)

    def rows(self, section: str) -> list[list[str]]:
        """The texts of the cells of a section's first table."""
        body = next(self.section(section).iter("tbody"))
        return [["".join(cell.itertext()) for cell in row] for row in body]


def svg(section: Element) -> Element:
    return next(section.iter("svg"))


def command(*arguments: str) -> int:
    return main(["report", *arguments, "--seconds", str(SECONDS), "--threads", "2"])


@pytest.fixture(scope="module")
def page(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Tree]:
    """The page of the small model, as the command writes it."""
    with pytest.MonkeyPatch.context() as patch:
        measure_briefly(patch)
        patch.setattr(report_command, "_LEAST_SECONDS", SECONDS)
        output = tmp_path_factory.mktemp("page") / "page.html"
        assert command(str(path), "--shape", "n=24", "-o", str(output)) == 0
        yield Tree(output.read_text())


def test_the_page_is_one_file_of_its_own(page: Tree) -> None:
    """Nothing from elsewhere, each link leads to one element, and no name of the model is markup."""
    elements = list(page.root.iter())
    ids = [each.get("id") for each in elements if each.get("id")]
    assert len(ids) == len(set(ids))
    assert not any(name in ("src", "data", "action") for each in elements for name in each.attrib)
    links = [each.get("href", "") for each in elements if "href" in each.attrib]
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert all(link.startswith("#") for link in links)
    assert {word for each in elements for word in each.get("data-r", "").split()} <= set(ids)
    (script,) = page.root.iter("script")
    assert script.text is not None
    assert not re.search(r"https?://|fetch|import|innerHTML", script.text)
    text = "".join(page.root.itertext())
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert(1)</script> \\x1b[2J" in text, "the name is there, as text"


def test_every_node_has_its_launches(page: Tree, model: CompiledModel) -> None:
    rows = page.rows("nodes")
    assert [row[1] for row in rows] == ["MatMul", "Relu", "MatMul", "Add", "Softmax"]
    assert [row[0] for row in rows][1:] == ["clamp", "down", "skip", "norm"]
    launches = launches_of(model.artifact)
    for row in rows[1:]:
        expected = [str(n) for n, launch in enumerate(launches) if f"{row[1]} '{row[0]}'" in launch.nodes]
        assert row[2].split(", ") == expected
    assert rows[0][2] == rows[1][2], "the product and what is fused into it"


def test_what_belongs_to_a_node_is_marked_everywhere(page: Tree) -> None:
    """A click marks all elements whose `data-r` has the id: of `clamp`, one row in each table, and one box."""
    (clamp,) = [row.get("id", "") for row in page.section("nodes").iter("tr") if "clamp" in "".join(row.itertext())]
    for section, tag, count in (
        ("graph", "g", 1), ("launches", "tr", 1), ("kernels", "tr", 1), ("nodes", "tr", 1), ("decisions", "tr", 1),
        ("memory", "tr", 0), ("texts", "details", 1),
    ):  # fmt: skip
        marked = [each for each in page.section(section).iter(tag) if clamp in each.get("data-r", "").split()]
        assert len(marked) == count, section
    (row,) = [each for each in page.section("launches").iter("tr") if clamp in each.get("data-r", "").split()]
    around = row.get("data-r", "").split()
    assert {word[0] for word in around} == {"l", "g", "k", "n"}
    kernel = next(word for word in around if word[0] == "k")
    (text,) = [each for each in page.section("texts").iter("pre") if each.get("id") == kernel]
    assert [each.get("href") for each in text.iter("a")] == [f"#{word}" for word in around if word[0] == "n"]


def test_decisions_are_those_of_the_pipeline(page: Tree, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(path), "--shape", "n=24", "--to", "schedule", "--explain-fusion", "-o", "-"]) == 0
    printed, said = capfd.readouterr()
    schedules = re.findall(r"schedule (#schedule\.use<.*?}>)", printed)
    assert [row[1] for row in page.rows("decisions")] == schedules
    remarks = re.findall(r"remark: (.*) -> (.*): (not fused|fused), (.*)", said)
    verdicts = {"fused": "yes", "not fused": "no"}
    expected = [[producer, user, verdicts[verdict], why] for producer, user, verdict, why in remarks]
    assert [[cell for cell in row] for row in page.rows("fusion")] == expected


def test_errors_are_those_of_the_check(page: Tree, path: Path, model: CompiledModel) -> None:
    inputs = inputs_of(model, {}, 0)
    check = check_model(path, inputs, model.run(inputs))
    rows = page.rows("errors")
    assert [row[2] for row in rows] == ["treadle", "ONNX Runtime"]
    for row, each in zip(rows, (*check.own, *check.reference), strict=True):
        assert row[0] == "y"
        assert row[3:6] == [f"{each.absolute:.3g}", f"{each.worst:.3g}", f"{each.mean:.3g}"]
        assert row[-1] == "agrees"


def test_times_and_bytes_are_those_of_the_bench(model: CompiledModel) -> None:
    report = measured(report_of(model, Decisions(), "m"), model, Given(), 0, SECONDS)
    tree = Tree(model_page(report))
    result = report.benchmark
    assert result is not None
    launches = launches_of(model.artifact)
    for row, time, launch in zip(tree.rows("launches"), result.launches, launches, strict=True):
        assert row[4:10] == kernel_cells(time, result)[2:8]
        assert row[10:12] == [str(launch.operations), str(launch.nbytes)]
    kernels = {row[0]: row for row in tree.rows("kernels")}
    for kernel in result.kernels:
        assert kernels[kernel.name][3:9] == kernel_cells(kernel, result)[2:8]
    widths = [
        float(each.get("style", "")[6:-1]) for each in tree.section("launches").iter("span") if "style" in each.attrib
    ]
    most = max(time.seconds for time in result.launches)
    assert widths[::2] == [pytest.approx(100 * time.seconds / most, abs=0.01) for time in result.launches]


def test_the_graph_has_a_box_a_launch_and_lines_along_the_data(page: Tree, model: CompiledModel) -> None:
    picture = svg(page.section("graph"))
    boxes = [each for each in picture.iter("g")]
    assert len(boxes) == 1 + len(launches_of(model.artifact)) + 1
    (lines,) = picture.iter("path")
    # x to the first product and to the sum, each launch to the next, and the last to y.
    assert lines.get("d", "").count("M") == 2 + len(boxes) - 2


def test_tensors_in_the_arena_do_not_share_bytes_while_they_are_used(tmp_path: Path) -> None:
    """Of a model whose plan reuses memory: lifetimes come from what kernels read and write, the plan from the graph."""
    nodes, inputs = list[onnx.NodeProto](), "x"
    for n in range(6):
        nodes.append(helper.make_node("Softmax", [inputs], [f"s{n}"], f"norm{n}", axis=n % 2))
        nodes.append(helper.make_node("Concat", [f"s{n}", inputs], [f"c{n}"], f"join{n}", axis=0))
        nodes.append(helper.make_node("ReduceMean", [f"c{n}"], [f"m{n}"], f"mean{n}", axes=[0], keepdims=1))
        nodes.append(helper.make_node("Add", [f"m{n}", inputs], [f"a{n}"], f"add{n}"))
        inputs = f"a{n}"
    path = save_model(tmp_path / "m.onnx", nodes, [value("x", (32, 64))], [value(inputs, (32, 64))])
    compiled = treadle.compile(path)
    _, values = program_of(compiled.artifact, module_of(compiled.artifact), ())
    held = [each for each in values if each.kind == "arena" and each.writer is not None]
    assert len(held) > 6
    assert all(each.readers for each in held), "nothing is written in vain"
    assert max(each.start + each.nbytes for each in held) == compiled.manifest.arena_bytes
    for n, one in enumerate(held):
        for other in held[n + 1 :]:
            meet = _last(one) >= (other.writer or 0) and _last(other) >= (one.writer or 0)
            share = max(one.start, other.start) < min(one.start + one.nbytes, other.start + other.nbytes)
            assert not (meet and share), (one, other)
    tree = Tree(model_page(report_of(compiled, Decisions(), "m")))
    drawn = [each for each in svg(tree.section("memory")).iter("rect") if each.get("class") == "value"]
    assert len(drawn) == len(held)
    tallest = max(range(len(held)), key=lambda n: held[n].nbytes)
    for rect, each in zip(drawn, held, strict=True):
        ratio = float(rect.get("height", "")) / float(drawn[tallest].get("height", ""))
        assert ratio == pytest.approx(each.nbytes / held[tallest].nbytes, abs=0.02)


def _last(value: Value) -> int:
    return max(value.readers, default=value.writer or 0)


def test_launches_of_equal_kernels_are_in_their_own_groups(tmp_path: Path) -> None:
    nodes, x = list[onnx.NodeProto](), "x"
    for n in range(3):
        nodes.append(helper.make_node("Softmax", [x], [f"s{n}"], f"norm{n}"))
        nodes.append(helper.make_node("MatMul", [f"s{n}", "w"], [f"p{n}"], f"product{n}"))
        nodes.append(helper.make_node("Relu", [f"p{n}"], [f"r{n}"], f"clamp{n}"))
        x = f"r{n}"
    weights = [numpy_helper.from_array(np.ones((32, 32), np.float32), "w")]
    path = save_model(tmp_path / "m.onnx", nodes, [value("x", (8, 32))], [value(x, (8, 32))], weights)
    compiled = treadle.compile(path)
    groups = decisions_of(CompileRequest(path, resolve_target("cpu"))).groups
    steps, _ = program_of(compiled.artifact, module_of(compiled.artifact), groups)
    assert len({step.kernels for step in steps}) == 2, "equal kernels are one"
    assert [step.group for step in steps] == list(range(6))
    for n, step in enumerate(steps):
        own = [f"product{n // 2}", f"clamp{n // 2}"] if n % 2 else [f"norm{n // 2}"]
        assert [node.name for node in step.located] == own
        assert set(step.located) <= set(step.nodes)


def test_the_program_s_calls_lead_to_launches(page: Tree) -> None:
    first = next(page.section("texts").iter("pre"))
    links = [(each.get("href"), each.text or "") for each in first.iter("a")]
    assert [link for link, _ in links] == [f"#l{n}" for n in range(len(page.rows("launches")))]
    for (_, text), row in zip(links, page.rows("launches"), strict=True):
        assert text.startswith(f"treadle_pool_run(pool, {row[1]}, ")


def test_a_kernel_s_text_is_that_of_the_folder_with_its_operations(page: Tree, model: CompiledModel) -> None:
    kernels = {each.get("data-name"): each for each in page.section("texts").iter("pre") if "id" in each.attrib}
    for name, pre in kernels.items():
        assert "".join(pre.itertext()) == model.artifact.read_text(f"kernels/{name}.c")
    (inner,) = [
        "".join(pre.itertext())
        for details in page.section("texts").iter("details")
        if (details.find("pre") is kernels["softmax"])
        for pre in details.findall("details/pre")
    ]
    lines = ["  " + line for line in inner.splitlines()]
    assert "\n".join(lines) in model.artifact.module_text()
    assert lines[0].startswith("  func.func @softmax(")
    assert lines[-1] == "  }"


def test_tuning_is_a_section_of_a_model_with_a_database(path: Path, tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    output = tmp_path / "page.html"
    assert (
        command(str(path), "--shape", "n=24", "--no-check", "--database", str(tmp_path / "db"), "-o", str(output)) == 0
    )
    tree = Tree(output.read_text())
    groups = tree.rows("tuning")
    assert len(groups) == len(tree.rows("decisions"))
    assert "".join(tree.section("tuning").itertext()).count("Not timed.") == len(groups)


def test_a_range_is_curves_and_tables(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "page.html"
    assert command(str(path), "--shape", "n=1..256", "--no-check", "-o", str(output)) == 0
    assert "1..256" in output.read_text()
    tree = Tree(output.read_text())
    rows = tree.rows("range")
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert all(float(low) <= float(middle) <= float(high) for _, middle, low, high in rows)
    picture = svg(tree.section("range"))
    titles = [each.text or "" for each in picture.iter("title")][1:]
    assert titles == [f"n = {row[0]}: {row[1]} ms" for row in rows]
    assert "errors" not in [each.get("id") for each in tree.root.iter("section")]
    assert not any("extent(" in "".join(each.itertext()) for each in svg(tree.section("graph")).iter("g"))


def test_a_dispatch_has_its_border_and_its_certificate(tmp_path: Path) -> None:
    source = tmp_path / "product.mlir"
    source.write_text(PRODUCT)
    with treadle.compile(source, "cpu", after="schedule") as compiled:
        compiled.save(tmp_path / "folder")
    assert command(str(tmp_path / "folder"), "-o", str(tmp_path / "page.html")) == 0
    tree = Tree((tmp_path / "page.html").read_text())
    (row,) = tree.rows("launches")
    assert row[1] == "product, product_2"
    assert "shapes or data decide" in "".join(tree.root.itertext())
    times, predicted = tree.section("range").iter("svg")
    # Kernels change above 8 and above 24; predictions lie at 2 and 16, between which one border is.
    assert [each.get("class") for each in times.iter("polyline")].count("border") == 2
    assert [each.get("class") for each in predicted.iter("polyline")].count("border") == 1 + 1
    assert "e0 <= 8 ? 0 : (e0 <= 24 ? 1 : 0)" in "".join(tree.section("range").itertext())


def test_a_loop_is_a_step_of_the_kernels_that_it_runs(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Tanh", ["s"], ["t"]), helper.make_node("Identity", ["c"], ["d"])],
        "b",
        [value("i", (), TensorProto.INT64), value("c", (), TensorProto.BOOL), value("s", (8,))],
        [value("d", (), TensorProto.BOOL), value("t", (8,))],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "first"),
        helper.make_node("Loop", ["n", "", "r"], ["z"], "loop", body=body),
        helper.make_node("Softmax", ["z"], ["y"], "last"),
    ]
    path = save_model(
        tmp_path / "m.onnx", nodes, [value("x", (8,)), value("n", (), TensorProto.INT64)], [value("y", (8,))]
    )
    compiled = treadle.compile(path)
    report = report_of(compiled, Decisions(), "m")
    assert [step.kind for step in report.steps] == ["launch", "loop", "launch"]
    assert "tanh" in report.steps[1].kernels[0]
    arena = {each.writer: each.readers for each in report.values if each.kind == "arena" and each.readers}
    assert arena == {0: (1,), 1: (2,)}
    assert Tree(model_page(report)).rows("launches")[1][1].startswith(report.steps[1].kernels[0])


def test_text_for_a_gpu_is_not_measured(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with treadle.compile(path, "sm_80", {"n": 24}, device="emulator") as compiled:
        compiled.save(tmp_path / "folder")
    assert command(str(tmp_path / "folder"), "-o", str(tmp_path / "page.html")) == 0
    tree = Tree((tmp_path / "page.html").read_text())
    assert "Nothing was run or measured: sm_80 is not this machine's processor." in "".join(tree.root.itertext())
    assert len(tree.rows("launches")) == len(compiled.manifest.launches)
    assert all(row[-2].isdigit() and row[-1].isdigit() for row in tree.rows("launches")), "operations and bytes"
    texts = tree.section("texts")
    assert "__global__" in "".join(texts.itertext())
    assert {each.get("href") for each in texts.iter("a")} == {f"#n{n}" for n in range(len(tree.rows("nodes")))}


def test_ir_of_a_stage_has_the_decisions_that_its_stage_left(path: Path, tmp_path: Path) -> None:
    whole = decisions_of(request(path))
    for stage in ("define", "schedule", "plan"):
        assert main(["compile", str(path), "--shape", "n=24", "--to", stage, "-o", str(tmp_path / stage)]) == 0
        found = decisions_of(CompileRequest(tmp_path / stage / f"{stage}.mlir", resolve_target("cpu")))
        labels = [group.label for group in found.groups]
        assert labels == ([] if stage == "plan" else [group.label for group in whole.groups])
        assert len(found.remarks) == (len(whole.remarks) if stage == "define" else 0)


@pytest.mark.parametrize("damage", ["module.mlir.gz", "kernels/softmax.c", "manifest.json", "weights"])
def test_a_damaged_folder_is_one_error(
    model: CompiledModel, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = tmp_path / "folder", tmp_path / "page.html"
    model.save(folder)
    file = next((folder / damage).iterdir()) if damage == "weights" else folder / damage
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-7])
    assert command(str(folder), "-o", str(output)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(file) in line
    assert "accepted: " in line
    assert not output.exists()


def test_options_that_do_not_fit_are_refused(
    model: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "folder")
    output = str(tmp_path / "page.html")
    for arguments, says in (
        (["report", str(tmp_path / "folder"), "--shape", "n=3", "-o", output], "--shape needs the model itself"),
        (["report", str(tmp_path / "folder"), "--threads", "0", "-o", output], "0 is not a number of threads"),
        (["report", str(tmp_path / "folder"), "--seconds", "0", "-o", output], "0 seconds"),
        (["report", str(tmp_path / "none.onnx"), "-o", output], "none.onnx"),
        (["report", str(tmp_path / "none.onnx"), "-o", str(tmp_path / "no" / "page.html")], "page.html: cannot write"),
    ):
        assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line


def test_a_page_on_stdout_is_the_page_alone(
    model: CompiledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.save(tmp_path / "folder")
    assert command(str(tmp_path / "folder"), "-o", "-") == 0
    text = capsys.readouterr().out
    assert text.startswith("<!doctype html>")
    assert text.endswith("</html>\n")
    assert len(Tree(text).rows("launches")) == len(launches_of(model.artifact))


def large_report(launches: int, nodes_each: int) -> ModelReport:
    """Launches in a chain, each reading the one a hundred before it, too, with long names and texts."""
    names = [[ModelNode(f"/model/decoder/layers.{n}/block.{n % 7}/self_attention/projection_{m}/MatMul", "MatMul")
              for m in range(nodes_each)] for n in range(launches)]  # fmt: skip
    times = [
        KernelTime(f"k{n % 50}", (Launch(f"k{n % 50}", "", 10**6, 10**5),), 1e-5 * (n % 9 + 1)) for n in range(launches)
    ]
    steps = [Step("launch", (f"k{n % 50}",), tuple(own[:8]), tuple(own), n, times[n]) for n, own in enumerate(names)]
    values = [
        Value(f"tensor_{n}", "arena", 4096 * (n % 5), 4096, n, tuple(r for r in (n + 1, n + 100) if r < launches))
        for n in range(launches)
    ]
    groups = [
        Group(f"group_{n}", "#schedule.use<generic_cpu>", tuple(own), UnknownLoc()) for n, own in enumerate(names)
    ]
    kernels = [Kernel(f"k{n}", f"kernels/k{n}.c", "int x;\n" * 20_000, "a product") for n in range(50)]
    together = tuple(KernelTime(f"k{n}", times[n].launches, times[n].seconds) for n in range(50))
    result = Benchmark({OWN: Times((1.0,), 1)}, together, Peaks(1e11, 1e10), 2, 0.0, tuple(times))
    nodes = tuple(node for own in names for node in own)
    return ModelReport(
        "large", (), (), Decisions(nodes, tuple(groups)), tuple(steps), tuple(values), tuple(kernels), "int y;\n",
        5 * 4096, result,
    )  # fmt: skip


def test_ten_thousand_nodes_are_a_page_that_a_browser_can_show() -> None:
    text = model_page(large_report(5_000, 2))
    assert len(text.encode()) < 20e6
    assert len(re.findall(r'<tr id="n\d+"', text)) == 10_000
    assert len(re.findall(r'<tr id="l\d+"', text)) == 5_000
    assert "The text is in the folder: kernels/k" in text, "not all texts are on it"


# The layout of the graph.


def drawn_graph(seed: int) -> tuple[list[float], list[tuple[int, int]]]:
    draw = random.Random(seed)
    count = draw.randrange(1, 60)
    edges = [
        (draw.randrange(max(0, n - draw.choice((2, 8, 50))), n), n)
        for n in range(1, count)
        for _ in range(draw.randrange(3))
    ]
    return [draw.uniform(20, 120) for _ in range(count)], edges


@pytest.mark.parametrize("seed", range(25))
def test_boxes_are_apart_and_lines_lead_downwards(seed: int) -> None:
    heights, edges = drawn_graph(seed)
    layout = layered(heights, edges)
    spots = [(x, y, x + WIDTH, y + height) for (x, y), height in zip(layout.corners, heights, strict=True)]
    assert min(spot[0] for spot in spots) >= 0
    assert max(spot[2] for spot in spots) <= layout.width + 1e-6
    assert max(spot[3] for spot in spots) <= layout.height + 1e-6
    for n, one in enumerate(spots):
        for other in spots[n + 1 :]:
            aside = one[2] <= other[0] - GAP + 1e-6 or other[2] <= one[0] - GAP + 1e-6
            assert aside or one[3] < other[1] or other[3] < one[1]
    assert set(layout.lines) | set(far_edges(len(heights), edges)) == set(edges)
    for (a, b), points in layout.lines.items():
        assert points[0][1] == pytest.approx(spots[a][3])
        assert points[-1][1] == pytest.approx(spots[b][1])
        assert [y for _, y in points] == sorted(y for _, y in points)
        for x, y in points[1:-1]:  # a line passes between the boxes of a rank
            assert not any(left < x < right and top < y < bottom for left, top, right, bottom in spots)


def test_ranks_are_longest_paths_and_long_edges_are_named() -> None:
    chain = [(n, n + 1) for n in range(LONGEST + 2)]
    edges = [*chain, (0, LONGEST + 2), (LONGEST + 3, LONGEST + 4), (LONGEST, LONGEST + 4)]
    assert ranks_of(LONGEST + 5, edges) == [*range(LONGEST + 3), LONGEST, LONGEST + 1]
    assert far_edges(LONGEST + 5, edges) == [(0, LONGEST + 2)]
    assert (0, LONGEST + 2) not in layered([20.0] * (LONGEST + 5), edges).lines


@pytest.mark.parametrize("seed", range(20))
def test_places_in_a_row_are_the_nearest_to_those_that_are_wanted(seed: int) -> None:
    """No feasible change makes the sum of squares smaller, which is convex."""
    draw = random.Random(seed)
    wanted, widths = ([draw.uniform(a, b) for _ in range(6)] for a, b in ((0, 900), (8, 200)))
    found = separated(wanted, widths)
    apart = [(a + b) / 2 + GAP for a, b in pairwise(widths)]
    assert all(b - a >= least - 1e-9 for a, b, least in zip(found, found[1:], apart, strict=False))
    cost = sum((x - w) ** 2 for x, w in zip(found, wanted, strict=True))
    for _ in range(300):
        other = [x + draw.gauss(0, 3) for x in found]
        if all(b - a >= least for a, b, least in zip(other, other[1:], apart, strict=False)):
            assert sum((x - w) ** 2 for x, w in zip(other, wanted, strict=True)) >= cost - 1e-9


# In a browser.


class Browser:
    """Chromium without a window, by the WebDriver protocol (W3C, "WebDriver", 2018)."""

    def __init__(self, port: int, profile: Path):
        self.address = f"http://127.0.0.1:{port}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=900,900", f"--user-data-dir={profile}"]
        wanted = {"goog:chromeOptions": {"args": options}, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.send("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.address += f"/session/{session['sessionId']}"

    def send(self, path: str, content: object = None, method: str = "POST") -> Any:
        """What a command gives."""
        data = None if method != "POST" else json.dumps(content or {}).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.address + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(asked, timeout=HANGS) as answer:
            return json.load(answer)["value"]

    def click(self, selector: str) -> None:
        """A click on the first element that a selector of CSS finds, in the middle of the window."""
        self.run(f'document.querySelector("{selector}").scrollIntoView({{block: "center", inline: "center"}})')
        found = self.send("/element", {"using": "css selector", "value": selector})
        self.send(f"/element/{next(iter(found.values()))}/click")

    def run(self, script: str) -> Any:
        """What the body of a function gives."""
        return self.send("/execute/sync", {"script": script, "args": []})


@contextmanager
def browser(profile: Path) -> Generator[Browser]:
    assert DRIVER is not None
    with subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            port = next(
                int(found[1]) for line in driver.stdout if (found := re.search(r"started.* on port (\d+)", line))
            )
            opened = Browser(port, profile)
            try:
                yield opened
            finally:
                opened.send("", method="DELETE")
        finally:
            driver.terminate()


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver is installed")
def test_clicks_mark_sort_and_filter(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    assert command(str(path), "--shape", "n=24", "-o", str(output)) == 0
    marked = (
        "return [...document.querySelectorAll('tr.on')].map(e => e.closest('section').id + ' ' + e.cells[0].innerText)"
    )
    with browser(tmp_path / "profile") as shown:
        shown.send("/url", {"url": output.as_uri()})
        assert shown.run("return alert.toString().includes('native') && !document.querySelector('.on')")
        shown.click("#graph a[href='#n1'] text")
        assert shown.run("return document.getElementById('bar').innerText").split()[:3] == ["×", "node", "clamp"]
        found = shown.run(marked)
        assert {"nodes clamp", "launches 0"} <= set(found)
        assert shown.run("return document.querySelectorAll('#graph g.on').length") == 1
        shown.click("#launches a[href='#l1']")
        assert shown.run("return document.getElementById('bar').innerText").split()[:3] == ["×", "launch", "1"]
        assert shown.run("return document.querySelector('#graph g.on a').getAttribute('href')") == "#l1"
        shown.click("#bar button")
        assert not shown.run(marked)
        column = "return [...document.querySelectorAll('#nodes tbody tr:not(.off)')].map(e => e.cells[1].innerText)"
        shown.click("#nodes th:nth-child(2) button")
        assert shown.run(column) == ["Add", "MatMul", "MatMul", "Relu", "Softmax"]
        shown.click("#nodes th:nth-child(2) button")
        assert shown.run(column) == ["Softmax", "Relu", "MatMul", "MatMul", "Add"]
        shown.click("#launches th:nth-child(10) button")
        counts = "return [...document.querySelectorAll('#launches tbody tr')].map(e => Number(e.cells[9].innerText))"
        assert shown.run(counts) == sorted(shown.run(counts))
        field = shown.send("/element", {"using": "css selector", "value": "#nodes input"})
        shown.send(f"/element/{next(iter(field.values()))}/value", {"text": "matmul down"})
        assert shown.run(column) == ["MatMul"]
        assert shown.run("return document.documentElement.scrollWidth <= innerWidth"), (
            "nothing is wider than the window"
        )
        assert shown.send("/se/log", {"type": "browser"}) == [], "no error in the console"
