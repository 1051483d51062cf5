"""The demo: its parts by themselves, and the whole on the real recogniser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from examples import read_text
from examples.read_text import HEIGHT, WIDTH, alphabet, decode, draw, main, preprocess
from tests.models.agreement import SMALLER
from tests.models.catalog import require_model

SHORT = ("Treadle", SMALLER["ppocrv4_rec"]["x"][-1])
"""A line, and the width at which every run compiles the recogniser: its cache gives the model to whoever is second."""


def one_hot(classes: list[int], count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes][None]


def test_decoding_joins_repetitions_and_drops_blanks() -> None:
    characters = alphabet({"character": "a\nb"})
    assert characters == ["", "a", "b", " "]
    assert decode(one_hot([0, 1, 1, 0, 1, 2, 2, 3, 0, 2], 4), characters) == "aab b"
    assert decode(one_hot([0, 0], 4), characters) == ""


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="the model has 5 classes, its metadata names 4"):
        decode(one_hot([0], 5), ["", "a", "b", " "])
    with pytest.raises(ValueError, match="no entry 'character'"):
        alphabet({})


def test_pixels_are_scaled_padded_and_blue_first() -> None:
    pixels = preprocess(Image.new("RGB", (HEIGHT, HEIGHT // 2), (255, 0, 51)))
    assert pixels.shape == (1, 3, HEIGHT, WIDTH) and pixels.dtype == np.float32
    np.testing.assert_allclose(pixels[0, :, 5, 2 * HEIGHT - 1], [-0.6, -1.0, 1.0], atol=1e-6)
    assert not pixels[..., 2 * HEIGHT :].any()


def test_a_long_line_is_squeezed() -> None:
    assert preprocess(draw("many words " * 9)).shape == (1, 3, HEIGHT, WIDTH)


@pytest.mark.parametrize(
    ("text", "width"), [SHORT, pytest.param(read_text.DEFAULT_TEXT, WIDTH, marks=pytest.mark.slow)]
)
def test_it_reads_what_it_drew(
    text: str, width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_model("ppocrv4_rec")
    monkeypatch.setattr(read_text, "WIDTH", width)
    status = main([text, "--output", str(tmp_path / "out"), "--threads", "2"])
    output = capsys.readouterr().out
    assert status == 0, output
    drawn, read = (line.split(":", 1)[1].strip() for line in output.splitlines()[:2])
    assert drawn == read == text
    texts = list((tmp_path / "out" / "sm_80" / "kernels").glob("*.cu"))
    assert texts and all("__global__" in path.read_text() for path in texts)


def test_another_text_than_the_drawn_one_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_model("ppocrv4_rec")
    text, width = SHORT
    monkeypatch.setattr(read_text, "WIDTH", width)
    monkeypatch.setattr(read_text, "decode", lambda scores, characters: "something else")
    assert main([text, "--output", str(tmp_path / "out"), "--threads", "2"]) == 1


def test_bad_arguments_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_model("ppocrv4_rec")
    assert main(["--output", str(tmp_path / "out"), "--threads", "0"]) == 2
    assert capsys.readouterr().err.startswith("read_text: ")
