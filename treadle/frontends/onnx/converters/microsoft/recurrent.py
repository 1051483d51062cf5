"""LSTM with quantised weights, as ONNX Runtime's quantiser writes it."""

from __future__ import annotations

from functools import partial

from treadle.frontends.common.builder import GraphBuilder, Tensor
from treadle.frontends.onnx.converters.microsoft import DOMAIN
from treadle.frontends.onnx.converters.microsoft.quantized import dynamically_quantized_product
from treadle.frontends.onnx.converters.recurrent import Matrix, check_weights, entry, lstm_of
from treadle.frontends.onnx.node import Node
from treadle.frontends.onnx.registry import converts

_SCALES = {1: 8, 2: 10}
"""The input that has the scales of a matrix, by that of the matrix; the next one has the zero points."""


@converts("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(node: Node, g: GraphBuilder) -> list[Tensor]:
    """An LSTM that multiplies bytes: what is multiplied is quantised by its own range, that of the input of all steps
    and that of a step's states.

    ONNX Runtime's range is another one where it divides the states of a batch among threads, each of which takes that
    of its part, and backward where sequences are of different lengths, whose last steps it computes together.
    """
    return lstm_of(node, g, _bytes)


def _bytes(node: Node, g: GraphBuilder, count: int, gates: int) -> tuple[int, list[tuple[Matrix, Matrix]]]:
    """Of inputs 1 and 2, `[directions, I, gates * H]` and `[directions, H, gates * H]`, with a scale and a zero point
    each direction or each column."""
    r = node.input(2)
    size = node.int("hidden_size", r.shape[1] if r.rank == 3 else 0)
    columns = gates * size
    check_weights(node, size, ((count, node.input(0).shape[-1], columns), (count, size, columns)))

    def matrix(n: int, d: int) -> Matrix:
        scales = [node.input(_SCALES[n]), node.input(_SCALES[n] + 1)]
        for each in scales:
            if each.shape not in ((count,), (count, columns)):
                raise node.error(f"scales or zero points of shape {each.shape}", f"{(count,)} or {(count, columns)}")
        parts = tuple(entry(g, each, d) for each in (node.input(n), *scales))
        return Matrix(parts, partial(dynamically_quantized_product, node))

    return size, [(matrix(1, d), matrix(2, d)) for d in range(count)]
