"""The models whose printed text has a fingerprint, and the targets that each is lowered for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from onnx import ModelProto

from tests.frontends.onnx.node_cases import SUPPORTED, data_of, thinned
from tests.helpers.onnx_models import convolutions, encoder_layer
from tests.models.catalog import MODELS
from tests.models.ranges import QUICK
from tests.models.shortened import REPEATED, shortened
from treadle.shapes.dim import Shapes
from treadle.target.options import Precision

_EVERYWHERE = ("avx512", "avx2", "sse2", "neon", "sm_80", "sm_90")
_WARPGROUPS = "sm_90a"
"""Differs from sm_90 in products, convolutions and attention of 16 bits alone."""
TARGETS = (*_EVERYWHERE, _WARPGROUPS)

_NARROW = ("minilm", "mtcnn_pnet", "mtcnn_onet", "light_squeezenet")
"""Models in f16 and bf16, too: attention, products, convolutions of one and of three pixels, channels that no vector
divides. Every precision of every model would be three times the work."""


@dataclass(frozen=True)
class Case:
    """A model to lower; `load` gives its file, or the model itself, and may write into the folder it is given."""

    name: str
    load: Callable[[Path], Path | ModelProto]
    shapes: Shapes = field(default_factory=dict[str, Sequence[int]])
    precision: Precision = "f32"
    targets: Sequence[str] = _EVERYWHERE


def all_cases() -> Mapping[str, Case]:
    """The catalogue at its fixed shapes and in ranges, layers in f16, and one of ONNX's own graphs for each set of
    operators."""
    catalog = [Case(name, partial(_whole, name), model.input_shapes) for name, model in MODELS.items()]
    narrow = [
        Case(f"{name} {precision}", partial(_whole, name), MODELS[name].input_shapes, precision, targets)
        for name in _NARROW
        for precision, targets in _PRECISIONS
    ]
    ranged = [
        Case(f"{name} ranges", partial(shortened if name in REPEATED else _whole, name), ranges.shapes)
        for name, ranges in QUICK.items()
    ]
    written = [case for case in SUPPORTED if "_expanded" not in case.name]
    kept = thinned(written, 1)
    graphs = [Case(case.name, partial(_node, n)) for n, case in enumerate(SUPPORTED) if case.name in kept]
    layers = [
        Case(f"encoder layer {batch} x {words}", partial(_layer, batch, words), targets=("sm_80", "sm_90", _WARPGROUPS))
        for batch, words in ((8, 512), (1, 128))
    ]
    layers += [
        Case(
            f"convolutions of {images} images", partial(_convolutions, images), targets=("sm_80", "sm_90", _WARPGROUPS)
        )
        for images in (1, 32)
    ]
    return {case.name: case for case in (*catalog, *narrow, *ranged, *layers, *graphs)}


_PRECISIONS: Sequence[tuple[Precision, Sequence[str]]] = (
    ("f16", TARGETS),
    ("bf16", TARGETS),
    ("tf32", ("sm_80", "sm_90")),
)


def _whole(name: str, folder: Path) -> Path:
    del folder
    return MODELS[name].path()


def _layer(batch: int, words: int, folder: Path) -> Path:
    return encoder_layer(folder / "layer.onnx", batch, words)


def _convolutions(images: int, folder: Path) -> Path:
    return convolutions(folder / "convolutions.onnx", images)


def _node(number: int, folder: Path) -> ModelProto:
    del folder
    return data_of(SUPPORTED[number])[0][0]
