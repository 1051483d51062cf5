"""Layers of the papers' models on the CPU: their operators, whose weights are constants, ready to be lowered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from tests.helpers.graphs import Graph
from tests.helpers.winograd import after_graph
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, BinaryOp, ConvOp, MatmulOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.target import Target

Way = Literal["default", "direct", "F(2x2)", "F(4x4)"]
_TILES: Mapping[Way, int | None] = {"direct": None, "F(2x2)": 2, "F(4x4)": 4}


class Layer(Protocol):
    """Something that becomes a few kernels."""

    def lowered(self, target: str) -> ModuleOp:
        """A new module after stage `graph`."""
        ...


@dataclass(frozen=True)
class Convolution:
    """Of a square image, with `relu` behind it; padded as much as keeps the image's size where the stride is 1."""

    channels: int
    size: int
    results: int
    filter: int = 1
    stride: int = 1
    way: Way = "default"

    def lowered(self, target: str) -> ModuleOp:
        graph = Graph(np.empty((1, self.channels, self.size, self.size), np.float32))
        module = graph.module(graph.add(UnaryOp("relu", self.added(graph, graph[0]))))
        if self.way != "default":
            return after_graph(module, _TILES[self.way], target)
        lower(treadle_context(), module, Target.parse(target), to="graph")
        return module

    def added(self, graph: Graph, image: SSAValue, groups: int = 1) -> SSAValue:
        """The result for an image of the graph, with a bias for each channel."""
        weights = graph.constant(np.ones((self.results, self.channels // groups, self.filter, self.filter), np.float32))
        conv = ConvOp(image, weights, [self.stride] * 2, [self.filter // 2] * 4, [1, 1], groups)
        bias = graph.constant(np.ones((self.results, 1, 1), np.float32))
        return graph.add(BinaryOp("add", graph.add(conv), bias))


@dataclass(frozen=True)
class Depthwise:
    """Filters of 3x3 for each channel by itself and `relu6`, between convolutions of 1x1 as in an inverted residual."""

    channels: int
    size: int
    stride: int = 1

    def lowered(self, target: str) -> ModuleOp:
        graph = Graph(np.empty((1, 16, self.size, self.size), np.float32))
        zero, six = (graph.constant(np.float32(value)) for value in (0, 6))
        image = graph[0]
        for conv in self._convolutions():
            filtered = conv.added(graph, image, groups=self.channels if conv.filter == 3 else 1)
            image = graph.add(BinaryOp("min", graph.add(BinaryOp("max", filtered, zero)), six))
        module = graph.module(image)
        lower(treadle_context(), module, Target.parse(target), to="graph")
        return module

    def _convolutions(self) -> Sequence[Convolution]:
        return (
            Convolution(16, self.size, self.channels),
            Convolution(self.channels, self.size, self.channels, 3, self.stride),
            Convolution(self.channels, self.size // self.stride, 16),
        )


@dataclass(frozen=True)
class Product:
    """Of rows with a constant matrix."""

    rows: int
    depth: int
    columns: int

    def lowered(self, target: str) -> ModuleOp:
        graph = Graph(np.empty((self.rows, self.depth), np.float32))
        weights = graph.constant(np.ones((self.depth, self.columns), np.float32))
        module = graph.module(graph.add(MatmulOp(graph[0], weights)))
        lower(treadle_context(), module, Target.parse(target), to="graph")
        return module


@dataclass(frozen=True)
class Attention:
    """Of 12 heads of 64 elements."""

    tokens: int
    causal: bool

    def lowered(self, target: str) -> ModuleOp:
        graph = Graph(*(np.empty((1, 12, self.tokens, 64), np.float32) for _ in range(3)))
        whole = AttentionOp(graph[0], graph[1], graph[2], scale=0.125, causal=self.causal)
        module = graph.module(graph.add(whole))
        lower(treadle_context(), module, Target.parse(target), to="graph")
        return module


CHOSEN: Mapping[str, Layer] = {
    "ResNet-50, filters of 7x7": Convolution(3, 224, 64, filter=7, stride=2),
    "ResNet-50, filters of 1x1": Convolution(256, 56, 64),
    "ResNet-50, filters of 3x3, directly": Convolution(128, 28, 128, filter=3, way="direct"),
    "ResNet-50, filters of 3x3, F(2x2)": Convolution(128, 28, 128, filter=3, way="F(2x2)"),
    "ResNet-50, filters of 3x3 at 14 pixels, F(2x2)": Convolution(256, 14, 256, filter=3, way="F(2x2)"),
    "ResNet-50, filters of 3x3 with strides": Convolution(128, 56, 128, filter=3, stride=2),
    "MobileNet-V2, filters of 1x1": Convolution(144, 28, 32),
    "MobileNet-V2, each channel by itself": Depthwise(144, 56),
    "MobileNet-V2, each channel by itself with strides": Depthwise(96, 112, stride=2),
    "BERT, a product": Product(128, 768, 3072),
    "BERT, attention": Attention(128, causal=False),
    "GPT-2, attention": Attention(128, causal=True),
}
"""One of each kind."""


def every_layer() -> Iterator[tuple[str, Layer]]:
    """All geometries of ResNet-50's and MobileNet-V2's convolutions, of BERT's and GPT-2's products, and attention."""
    yield from CHOSEN.items()
    found: list[Layer] = [Convolution(*each) for each in _POINTWISE]
    found += [Convolution(*each, stride=2) for each in ((256, 56, 512), (512, 28, 1024), (1024, 14, 2048))]
    ways: tuple[Way, ...] = ("direct", "F(2x2)", "F(4x4)")
    square = ((64, 56), (128, 28), (256, 14), (512, 7))
    found += [Convolution(channels, size, channels, 3, way=way) for channels, size in square for way in ways]
    found += [Convolution(channels, size * 2, channels, 3, stride=2) for channels, size in square[1:]]
    found += [Depthwise(*each) for each in _DEPTHWISE]
    found += [Product(128, *each) for each in ((768, 768), (768, 2304), (3072, 768))]
    found += [Product(1, 2048, 1000), Product(1, 1280, 1000)]
    found += [Attention(tokens, causal) for tokens in (77, 512) for causal in (False, True)]
    yield from ((str(layer), layer) for layer in found)


_POINTWISE = (
    (64, 56, 64), (64, 56, 256), (256, 56, 128), (128, 28, 512), (512, 28, 128), (512, 28, 256), (256, 14, 1024),
    (1024, 14, 256), (1024, 14, 512), (512, 7, 2048), (2048, 7, 512),
    (32, 112, 16), (16, 112, 96), (96, 56, 24), (24, 56, 144), (144, 56, 24), (32, 28, 192), (192, 28, 32),
    (192, 14, 64), (64, 14, 384), (384, 14, 64), (384, 14, 96), (96, 14, 576), (576, 14, 96), (576, 7, 160),
    (160, 7, 960), (960, 7, 160), (960, 7, 320), (320, 7, 1280),
)  # fmt: skip
_DEPTHWISE = (
    (32, 112, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2), (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1),
)  # fmt: skip
