"""Draws a line of text, reads it with a compiled recogniser, and writes the same model as CUDA C++.

    python examples/read_text.py [TEXT] [--output DIR] [--threads N]

The model is PP-OCRv4's text recogniser, which the wheel `rapidocr-onnxruntime` carries as data (`make venv` installs
it). The exit status is 0 if the text that was read is the text that was drawn, 1 if not, 2 if something is missing.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import treadle
from treadle.tools.progress_bar import progress_bar

Array = NDArray[Any]

DEFAULT_TEXT = "Treadle reads text, 2026"
WHEEL = "rapidocr-onnxruntime"
MODEL = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
CUDA_TARGET = "sm_80"

HEIGHT, WIDTH = 48, 320
"""Pixels that the recogniser is given: every line of text is scaled to this height, and padded to this width."""
RUNS = 10
"""Calls of which the median latency is told."""
ERROR_LEVEL = 3
"""ONNX Runtime's log level: errors only."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the example on `argv` (default: the process's arguments); its exit status."""
    args = _arguments(argv)
    try:
        return read_text(args.text, Path(args.output), args.threads)
    except (treadle.TreadleError, PackageNotFoundError, ValueError) as error:
        print(f"read_text: {error}", file=sys.stderr)
        return 2


def read_text(text: str, output: Path, threads: int | None) -> int:
    """Draws, compiles, reads, compares, writes; 0 if `text` was read."""
    path = model_path()
    picture = draw(text)
    pixels = preprocess(picture)
    shapes = {"x": pixels.shape}

    start = time.perf_counter()
    with progress_bar() as progress:
        model = treadle.compile(path, "cpu", shapes, threads=threads, progress=progress)
    compiled = time.perf_counter() - start
    (scores,) = model(pixels)
    found = decode(scores, alphabet(model.metadata))

    print(f"drawn:     {text}")
    print(f"read:      {found}")
    print(f"compiled:  {compiled:.2f} s for the CPU (a second time it comes from the cache)")
    print(f"latency:   {latency(model, pixels) * 1e3:.2f} ms, median of {RUNS}")
    print(f"error:     {against_onnx_runtime(path, pixels, scores)}")

    with progress_bar() as progress:
        cuda = treadle.compile(path, CUDA_TARGET, shapes, progress=progress)
    cuda.save(output / CUDA_TARGET)
    picture.save(output / "picture.png")
    kernels = sum(name.endswith(".cu") for name in cuda.manifest.files)
    print(f"cuda:      {kernels} kernels for {CUDA_TARGET} in {output / CUDA_TARGET / 'kernels'}")
    if found == text:
        return 0
    print("read_text: the text that was read is not the one that was drawn", file=sys.stderr)
    return 1


def model_path() -> Path:
    """The recogniser's file; PackageNotFoundError or ValueError if it is not installed."""
    try:
        path = Path(str(distribution(WHEEL).locate_file(MODEL)))
    except PackageNotFoundError as error:
        raise ValueError(f"{WHEEL} is not installed; `make venv` installs it") from error
    if not path.is_file():
        raise ValueError(f"{WHEEL} is installed without {MODEL}; version 1.4.4 has it")
    return path


def draw(text: str) -> Image.Image:
    """Black text on white with a small margin, in the font that Pillow carries; no font of the system is needed."""
    font = ImageFont.load_default(size=32)
    left, top, right, bottom = font.getbbox(text)
    margin = 8
    size = int(right - left) + 2 * margin, int(bottom - top) + 2 * margin
    picture = Image.new("RGB", size, "white")
    ImageDraw.Draw(picture).text((margin - left, margin - top), text, fill="black", font=font)
    return picture


def preprocess(picture: Image.Image) -> Array:
    """The recogniser's input, float32[1, 3, HEIGHT, WIDTH], as PP-OCR prepares it.

    The picture keeps its aspect ratio (a longer one is squeezed), channels are blue, green, red, values lie in
    [-1, 1], and what is right of the picture is zero.
    """
    width = min(WIDTH, max(1, round(picture.width * HEIGHT / picture.height)))
    scaled = picture.convert("RGB").resize((width, HEIGHT), Image.Resampling.BILINEAR)
    channels = np.asarray(scaled, np.float32)[:, :, ::-1].transpose(2, 0, 1)
    pixels = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    pixels[0, :, :, :width] = (channels / 255.0 - 0.5) / 0.5
    return pixels


def alphabet(metadata: Mapping[str, str]) -> list[str]:
    """What each class of the recogniser means: nothing, then the lines of its metadata, then a space."""
    if "character" not in metadata:
        raise ValueError("the model's metadata has no entry 'character'")
    return ["", *metadata["character"].splitlines(), " "]


def decode(scores: Array, characters: Sequence[str]) -> str:
    """Greedy CTC decoding of scores [1, steps, classes]: the best class of each step, repetitions once, no blanks.

    Graves et al., "Connectionist Temporal Classification", ICML 2006, section 3.2, best path decoding.
    """
    if scores.shape[-1] != len(characters):
        raise ValueError(f"the model has {scores.shape[-1]} classes, its metadata names {len(characters)}")
    best = scores[0].argmax(axis=-1)
    first_of_run = np.diff(best, prepend=-1) != 0
    return "".join(characters[int(index)] for index in best[first_of_run])


def latency(model: treadle.CompiledModel, pixels: Array) -> float:
    """The median time of a call, in seconds."""
    seconds: list[float] = []
    for _ in range(RUNS):
        start = time.perf_counter()
        model(pixels)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def against_onnx_runtime(path: Path, pixels: Array, scores: Array) -> str:
    """The largest difference from ONNX Runtime's scores, in words."""
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError:
        return "not compared; ONNX Runtime is not installed"
    options = runtime.SessionOptions()
    options.log_severity_level = ERROR_LEVEL
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    expected: Array = session.run(None, {"x": pixels})[0]
    return f"{np.abs(scores - expected).max():.1e} at most against ONNX Runtime (scores lie in [0, 1])"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw a line of text and read it with a compiled model.")
    parser.add_argument("text", nargs="?", default=DEFAULT_TEXT, help=f"what is drawn (default: {DEFAULT_TEXT!r})")
    parser.add_argument("--output", default="build/read_text", metavar="DIR", help="where the CUDA text is written")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of a call")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
