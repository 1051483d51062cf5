"""Products with weights of few bits beside ONNX Runtime, on this machine's processor.

    python -m benchmarks.few_bits 1x896x4864x4 1x4864x896x4 1x896x4864x8 8x896x4864x4 128x896x4864x4
    python -m benchmarks.few_bits --layers 64 1x896x4864xint4 1x896x4864xint8 1x896x4864xbf16 1x896x4864xfloat

A product is rows x terms x columns x weights; those of one row here are a token's in a model of 0.5 B parameters. The
weights are the bits of MatMulNBits in blocks of 32, as the model has them, or what the compiler stores floats as
(`treadle.compile(..., weights="int4")`): ONNX Runtime then has the same numbers as MatMulNBits, and floats for bf16.

--layers: so many products in a row, of which every other one has terms and columns swapped, so that weights come from
    farther than a core's cache; times are of one of them.

--precision: of Treadle's products; bf16 rounds operands of many rows for a core's matrix unit (docs/adr/0087).

Both sides are called from Python, in turn, with as many threads. Raw numbers go to `benchmarks/results/`. Measure on
a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from rich.console import Console
from rich.table import Table

import treadle
from benchmarks.arguments import positive
from benchmarks.machine import describe_run
from benchmarks.measure import relative_error
from benchmarks.result_files import RESULTS, write_results
from treadle.bench.interleave import interleave
from treadle.passes.graph.graph_quantize_weights import quantized
from treadle.target.options import PRECISIONS, WEIGHTS, Precision

_BLOCK = 32
_BATCH_SECONDS = 0.05
_SCALE_BYTES = {"int4": 2, "int8": 2, "bf16": 0, "float": 0}
_BITS = {"int4": 4, "int8": 8, "bf16": 16, "float": 32}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Product:
    """`rows x terms x columns x weights`."""

    text: str
    rows: int
    terms: int
    columns: int
    weights: str

    @classmethod
    def parse(cls, text: str) -> Product:
        """ValueError for another form."""
        rows, terms, columns, weights = text.split("x")
        if weights not in WEIGHTS:
            int(weights)
        return cls(text, int(rows), int(terms), int(columns), weights)

    @property
    def nbytes(self) -> float:
        """Of weights and scales: those of MatMulNBits are f32."""
        bits, scale = _BITS.get(self.weights), _SCALE_BYTES.get(self.weights, 4)
        return self.terms * self.columns * ((bits or int(self.weights)) / 8 + scale / _BLOCK)


@dataclass(frozen=True)
class Row:
    """Microseconds of a product by side, and how far the results are apart."""

    product: str
    treadle_us: float
    peer_us: float
    error: float

    @property
    def gigabytes(self) -> float:
        """Bytes of weights and scales a second, in 10^9."""
        return Product.parse(self.product).nbytes / self.treadle_us / 1e3


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description="Products with weights of few bits beside ONNX Runtime.")
    parser.add_argument("products", nargs="+", type=Product.parse, help="rows x terms x columns x weights")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--layers", type=positive, default=1)
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    rows = [compared(product, args.rounds, args.threads, args.layers, args.precision) for product in args.products]
    Console().print(table(rows))
    settings: dict[str, Any] = {"rounds": args.rounds, "threads": args.threads, "layers": args.layers}
    settings |= {"precision": args.precision}
    settings |= {"peer": onnxruntime.__version__}
    print(f"written to {write_results('few_bits', describe_run() | settings, [asdict(r) for r in rows], args.output)}")


def compared(product: Product, rounds: int, threads: int, layers: int = 1, precision: Precision = "f32") -> Row:
    """Times one product."""
    model, peer_model = product_models(product, layers)
    given = np.random.default_rng(1).standard_normal((product.rows, product.terms)).astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(peer_model.SerializeToString(), options)
    weights = product.weights if product.weights in WEIGHTS else None
    with treadle.compile(model, threads=threads, weights=weights, precision=precision) as compiled:
        got, wanted = compiled(given), [np.asarray(each) for each in session.run(None, {"x": given})]
        sides = {
            "treadle": partial(_repeated, partial(compiled, given)),
            "peer": partial(_repeated, partial(session.run, None, {"x": given})),
        }
        times = interleave(sides, rounds, _BATCH_SECONDS)
    mine, peer = (times[side].median * 1e6 / layers for side in sides)
    return Row(product.text, mine, peer, relative_error(got, wanted))


def _repeated(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def product_models(product: Product, layers: int = 1) -> tuple[ModelProto, ModelProto]:
    """The products of random weights as Treadle and as the peer takes them."""
    random, sides = (
        np.random.default_rng(0),
        tuple[list[tuple[NodeProto, Arrays]], list[tuple[NodeProto, Arrays]]](([], [])),
    )
    for layer in range(layers):
        terms, columns = (product.terms, product.columns) if layer % 2 == 0 else (product.columns, product.terms)
        pair = _nodes(product, terms, columns, random)
        for nodes, (node, arrays) in zip(sides, pair, strict=True):
            names = {name: f"{name}{layer}" for name in arrays}
            node.input[:] = ["x" if layer == 0 else f"y{layer - 1}", *names.values()]
            node.output[:] = [f"y{layer}"]
            nodes.append((node, {names[name]: array for name, array in arrays.items()}))
    mine, peer = (_model(product, nodes) for nodes in sides)
    return mine, peer


def _nodes(product: Product, terms: int, columns: int, random: np.random.Generator) -> list[tuple[NodeProto, Arrays]]:
    """A node with its constants for either side."""
    if product.weights not in WEIGHTS:
        blocks, bits = -(-terms // _BLOCK), int(product.weights)
        numbers = random.integers(0, 256, (columns, blocks, _BLOCK * bits // 8)).astype(np.uint8)
        scales = random.uniform(0.001, 0.02, (columns, blocks)).astype(np.float32)
        return [_few_bits(terms, columns, bits, numbers, scales) for _ in range(2)]
    matrix = random.standard_normal((terms, columns), np.float32) / np.float32(np.sqrt(terms))
    exact = (make_node("MatMul", ["x", "w"], ["y"]), {"w": matrix})
    if product.weights == "float":
        return [exact, (make_node("MatMul", ["x", "w"], ["y"]), {"w": matrix})]
    if product.weights == "bf16":
        narrow = matrix.astype(ml_dtypes.bfloat16).astype(np.float32)
        return [exact, (make_node("MatMul", ["x", "w"], ["y"]), {"w": narrow})]
    bits = _BITS[product.weights]
    numbers, scales = quantized(matrix, bits, _BLOCK)
    above = (numbers.T.astype(np.int16) + (1 << bits - 1)).astype(np.uint8).reshape(columns, -1, _BLOCK)
    packed = above if bits == 8 else np.bitwise_or(above[..., ::2], np.left_shift(above[..., 1::2], np.uint8(4)))
    return [exact, _few_bits(terms, columns, bits, packed, np.ascontiguousarray(scales.T.astype(np.float32)))]


def _few_bits(
    terms: int, columns: int, bits: int, numbers: NDArray[np.uint8], scales: NDArray[np.float32]
) -> tuple[NodeProto, Arrays]:
    attributes: dict[str, Any] = {"K": terms, "N": columns, "bits": bits, "block_size": _BLOCK}
    node = make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft", **attributes)
    return node, {"b": numbers, "s": scales}


def _model(product: Product, nodes: Sequence[tuple[NodeProto, Arrays]]) -> ModelProto:
    x = make_tensor_value_info("x", TensorProto.FLOAT, [product.rows, product.terms])
    constants = [from_array(array, name) for _, arrays in nodes for name, array in arrays.items()]
    y = ValueInfoProto(name=nodes[-1][0].output[0])
    graph = make_graph([node for node, _ in nodes], "product", [x], [y], constants)
    domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
    return make_model(graph, opset_imports=domains, ir_version=9)


def table(rows: Sequence[Row]) -> Table:
    """A line for each product."""
    found = Table(title="Microseconds of products with weights of few bits")
    for head in ("product", "Treadle", "ONNX Runtime", "ONNX Runtime / Treadle", "GB/s", "error"):
        found.add_column(head, justify="right")
    for each in rows:
        ratio = each.peer_us / each.treadle_us
        found.add_row(
            each.product, f"{each.treadle_us:.0f}", f"{each.peer_us:.0f}", f"{ratio:.2f}", f"{each.gigabytes:.1f}",
            f"{each.error:.1e}",
        )  # fmt: skip
    return found


if __name__ == "__main__":
    main()
