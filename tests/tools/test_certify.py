"""`treadle certify`: what it proves, what it prints, and that an edit which leaves a hole is found."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from pathlib import Path
from unittest.mock import patch
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

import treadle
from treadle.artifact.artifact import MODULE, Artifact, write_module
from treadle.errors import TreadleError
from treadle.tools.certify_command import (
    Certificate,
    Foreseen,
    Losses,
    Served,
    certify,
    check_partition,
    predicted_times,
)
from treadle.tools.treadle_cli import main

TREE = "e0 <= 8 ? 0 : (e0 <= 24 ? 1 : 0)"
PRODUCT = f"""
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x48xf32>, %n: tensor<i64>) -> tensor<64x48xf32>
    attributes {{symbols = ["n:2..64"], extents = ["n"], input_names = ["x", "w", "n"], output_names = ["y"],
                input_extents = [["n", "32"], ["32", "48"], []], output_extents = [["n", "48"]],
                output_required = [#graph.required<d0 < 0>]}} {{
  %y = graph.fused "product" {{
    %m = graph.matmul %x, %w : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
    graph.yield %m : tensor<64x48xf32>
  }} schedule #schedule.dispatch<#schedule.tree<{TREE}>, [
    #schedule.use<"matmul_cpu", {{rows = 4, vectors = 1, chunk = 16, pack = false, passes = 1}}>,
    #schedule.use<"matmul_cpu", {{rows = 8, vectors = 1, chunk = 64, pack = false, passes = 1}}>],
    #schedule.predicted<[2] 0.25 [0.5, 0.125, 0.25], [16] 0.75 [2.0, 4.0, 2.0]>>
    requires [#graph.required<d0 < 0>] : tensor<64x48xf32>
  func.return %y : tensor<64x48xf32>
}}"""


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("product")
    model = folder / "product.mlir"
    model.write_text(PRODUCT)
    with treadle.compile(model, "cpu", after="schedule") as compiled:
        compiled.save(folder / "product.treadle")
    return folder / "product.treadle"


@pytest.fixture
def folder(product: Path, tmp_path: Path) -> Path:
    """The compiled product in a folder that may be changed."""
    return shutil.copytree(product, tmp_path / "product.treadle")


def _edit(folder: Path, old: str, new: str) -> None:
    """Changes the module, and its digest, so that the file counts as unchanged."""
    text = Artifact(folder).module_text()
    assert old in text
    write_module(folder, text.replace(old, new))
    _count_as_unchanged(folder)


def _count_as_unchanged(folder: Path) -> None:
    """Writes the digest that the module's file has now into the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][MODULE] = hashlib.sha256((folder / MODULE).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_the_model_is_right_on_both_sides_of_each_border(folder: Path):
    with treadle.load(folder) as model:
        for n in (2, 7, 8, 9, 24, 25, 64):
            x, w = (np.random.default_rng(n).standard_normal(shape, np.float32) for shape in ((n, 32), (32, 48)))
            (y,) = model(x, w)
            expected = x.astype(np.float64) @ w.astype(np.float64)
            np.testing.assert_allclose(y, expected, rtol=0, atol=32 * 2.0**-23 * float(np.abs(expected).max() + 1))


def test_certified(folder: Path, capsys: pytest.CaptureFixture[str]):
    (certificate,) = certify(Artifact(folder))
    assert certificate.names == ("n",)
    assert [leaf.extents for leaf in certificate.leaves] == [((2, 8),), ((9, 24),), ((25, 64),)]
    first, second, third = [leaf.kernel for leaf in certificate.leaves]
    assert first == third != second
    # 2 takes 0.5 in place of 0.25, 16 takes 4 in place of 2.
    assert Losses.of(certificate.points) == Losses(points=2, worst=1.0, mean=1.0)
    assert [Losses.of(certificate.at(leaf)) for leaf in certificate.leaves] == [
        Losses(1, 1.0, 1.0), Losses(1, 1.0, 1.0), None
    ]  # fmt: skip
    assert main(["certify", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "25 to 64" in printed
    assert re.search(r"2 to 8 +\S+ +1 +100.0% +100.0%", printed)
    assert "worst 100.0%, mean 100.0%" in printed
    assert "certified for n:2..64: 1 groups take one of several kernels, each call exactly one" in printed


def test_the_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """One file: tables of leaves and points, and a picture with a line a kernel, one for the best, and the border."""
    path = tmp_path / "certificate.html"
    assert main(["certify", str(folder), "--report", str(path)]) == 0
    text = path.read_text()
    assert not re.search(r"(src|href)=|<script|@import", text)
    picture = fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])
    classes = [element.get("class") for element in picture.iter()]
    assert classes.count("kernel") == 2 * 2  # with the legend's
    assert (classes.count("ideal"), classes.count("border"), classes.count("chosen")) == (1 + 1, 1 + 1, 2 + 1)
    assert "without a dispatch" not in text
    titles = [element.text for element in picture.iter("title")]
    assert "n = 16: product_2, 100.0% lost" in titles
    rows = re.findall(r"<tr><td.*?</tr>", text)
    assert any("2 to 8" in row and "100.0%" in row for row in rows)
    assert any(">4000000.0<" in row and ">2000000.0<" in row for row in rows)
    capsys.readouterr()
    assert main(["certify", str(folder), "--report", "-"]) == 0
    assert "<!doctype html>" in capsys.readouterr().out


def test_the_border_is_the_trees() -> None:
    """Not between the points beside it."""
    points = tuple(Foreseen((2, s), 0.25, int(s > 11), (1e-6, 2e-6), 1e-6) for s in (1, 10, 18, 100))
    leaves = (Served("a", ((1, 4), (1, 11))), Served("b", ((1, 4), (12, 100))))
    picture = predicted_times(Certificate("e1 <= 11 ? 0 : 1", ("b", "s"), ("a", "b"), leaves, points), "it")
    (border, _) = (each for each in picture.iter("polyline") if each.get("class") == "border")
    x = float(border.get("points", "").split(",")[0])
    ends = [float(each) for each in re.findall(r"([\d.]+),", curve_of(picture))]
    across = (x - ends[0]) / (ends[-1] - ends[0])
    assert 11 < 100**across < 12
    texts = [element.text for element in picture.iter("text")]
    assert {"0: a", "1: b", "best micro-kernel at each point", "where calls change their kernel"} <= set(texts)


def curve_of(picture: Element) -> str:
    """The points of the first kernel's line."""
    return next(each.get("points", "") for each in picture.iter("polyline") if each.get("class") == "kernel")


def test_more_kernels_than_dashes_are_all_drawn() -> None:
    names = tuple(f"k{n}" for n in range(10))
    points = tuple(Foreseen((s,), 0.5, 0, tuple(1e-6 * (n + 1) for n in range(10)), 1e-6) for s in (1, 9))
    picture = predicted_times(Certificate("0", ("s",), names, (Served("k0", ((1, 9),)),), points), "it")
    kinds = [each.get("class") for each in picture.iter("polyline")]
    assert kinds.count("kernel") == 2 * 10 and kinds.count("border") == 0


def test_the_page_of_an_artifact_without_a_dispatch(tmp_path: Path) -> None:
    model = tmp_path / "one.mlir"
    model.write_text(
        re.sub(r"#schedule.dispatch<.*?(#schedule.use<.*?>),.*?>\n", r"\1\n", PRODUCT, count=1, flags=re.S)
    )
    with treadle.compile(model, "cpu", after="schedule") as compiled:
        compiled.save(tmp_path / "one.treadle")
    assert main(["certify", str(tmp_path / "one.treadle"), "--report", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "Every call of n:2..64 takes exactly one kernel" in text and "<td>product</td>" in text


def test_a_picture_of_several_extents_and_one_of_points_that_lose_nothing():
    points = tuple(Foreseen((b, s), 0.25, int(s > 4), (1e-6, 2e-6), 1e-6) for b in (1, 2) for s in (1, 8))
    leaves = (Served("a", ((1, 2), (1, 4))), Served("b", ((1, 2), (5, 8))))
    certificate = Certificate("e1 <= 4 ? 0 : 1", ("b", "s"), ("a", "b"), leaves, points)
    assert [len(certificate.at(leaf)) for leaf in leaves] == [2, 2]
    texts = [element.text for element in predicted_times(certificate, "it").iter("text")]
    assert "number of the point, log scale" in texts
    assert Losses.of(certificate.at(leaves[0])) == Losses(2, 0.0, 0.0)
    assert Losses.of([Foreseen((1,), 0.0, 0, (3.0,), 2.0)]) == Losses(1, 0.5, 0.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("e0 <= 24 ? 1 : 0", "e0 <= 24 ? 1 : 2", "alternative 2 is none: expected leaves 0 to 1"),
        ("e0 <= 24 ? 1 : 0", "e0 <= 24 ? 0 : 0", "alternative 1 has no leaf: expected leaves 0 to 1"),
        ("host.launch @product_2(", "host.launch @product_9(", "there is no kernel @product_9"),
        ('symbols = ["n:2..64"]', 'symbols = ["n:2..65"]', "the module has another range than the manifest"),
    ],
)
def test_an_entry_that_leaves_a_hole_is_found(
    folder: Path, old: str, new: str, message: str, capsys: pytest.CaptureFixture[str]
):
    _edit(folder, old, new)
    with pytest.raises(TreadleError) as caught:
        certify(Artifact(folder))
    assert message in str(caught.value)
    assert main(["certify", str(folder)]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"func.func @main() {}", b"\x1f\x8b\x08", gzip.compress(b"\xff\xfe", mtime=0)])
def test_a_module_that_is_no_compressed_text(folder: Path, data: bytes) -> None:
    (folder / MODULE).write_bytes(data)
    _count_as_unchanged(folder)
    with pytest.raises(TreadleError, match="no compressed text in UTF-8"):
        certify(Artifact(folder))


def test_equal_texts_are_equal_files(tmp_path: Path) -> None:
    """An artifact's digest is that of what was compiled, not of when."""
    found: list[bytes] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        with patch("time.time", return_value=float(len(found) + 1)):
            write_module(tmp_path / name, "builtin.module {}")
        found.append((tmp_path / name / MODULE).read_bytes())
    assert found[0] == found[1]


def test_a_changed_module_is_found(folder: Path):
    write_module(folder, Artifact(folder).module_text() + "\n")
    with pytest.raises(TreadleError, match="changed"):
        certify(Artifact(folder))


def test_a_partition():
    low, high = -(1 << 63), (1 << 63) - 1
    check_partition([[(low, 3), (low, high)], [(4, high), (low, 0)], [(4, high), (1, high)]], 2, "here")
    with pytest.raises(TreadleError, match="leaves 0 and 1 both serve a point"):
        check_partition([[(low, 4)], [(4, high)]], 1, "here")
    with pytest.raises(TreadleError, match="no leaf serves some points"):
        check_partition([[(low, 3)], [(5, high)]], 1, "here")
