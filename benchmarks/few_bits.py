"""Products with weights of 4 and 8 bits (MatMulNBits, blocks of 32) beside ONNX Runtime, on this machine's processor.

    python -m benchmarks.few_bits 1x896x4864x4 1x4864x896x4 1x896x4864x8 8x896x4864x4 128x896x4864x4

A product is rows x terms x columns x bits; those of one row here are a token's in a model of 0.5 B parameters. Both
sides are called from Python, in turn, with as many threads. The raw numbers go to `benchmarks/results/`. Measure on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto
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

_BLOCK = 32
_BATCH_SECONDS = 0.05


@dataclass(frozen=True)
class Row:
    """Microseconds of a call by side, and how far the results are apart."""

    product: str
    treadle_us: float
    peer_us: float
    error: float

    @property
    def gigabytes(self) -> float:
        """Bytes of weights and scales a second, in 10^9."""
        _, terms, columns, bits = (int(each) for each in self.product.split("x"))
        return terms * columns * (bits / 8 + 4 / _BLOCK) / self.treadle_us / 1e3


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description="Products with weights of few bits beside ONNX Runtime.")
    parser.add_argument("products", nargs="+", help="rows x terms x columns x bits")
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    rows = [compared(product, args.rounds, args.threads) for product in args.products]
    Console().print(table(rows))
    settings: dict[str, Any] = {"rounds": args.rounds, "threads": args.threads, "peer": onnxruntime.__version__}
    print(f"written to {write_results('few_bits', describe_run() | settings, [asdict(r) for r in rows], args.output)}")


def compared(product: str, rounds: int, threads: int) -> Row:
    """Times one product."""
    rows, terms, columns, bits = (int(each) for each in product.split("x"))
    model, x = product_model(rows, terms, columns, bits), np.random.default_rng(1).standard_normal((rows, terms))
    given = x.astype(np.float32)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    with treadle.compile(model, threads=threads) as compiled:
        got, wanted = compiled(given), [np.asarray(each) for each in session.run(None, {"x": given})]
        sides = {
            "treadle": partial(_repeated, partial(compiled, given)),
            "peer": partial(_repeated, partial(session.run, None, {"x": given})),
        }
        times = interleave(sides, rounds, _BATCH_SECONDS)
    mine, peer = (times[side].median * 1e6 for side in sides)
    return Row(product, mine, peer, relative_error(got, wanted))


def _repeated(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def product_model(rows: int, terms: int, columns: int, bits: int) -> ModelProto:
    """One MatMulNBits of random weights."""
    random, blocks = np.random.default_rng(0), -(-terms // _BLOCK)
    arrays: dict[str, NDArray[Any]] = {
        "b": random.integers(0, 256, (columns, blocks, _BLOCK * bits // 8)).astype(np.uint8),
        "s": random.uniform(0.001, 0.02, (columns, blocks)).astype(np.float32),
    }
    attributes: dict[str, Any] = {"K": terms, "N": columns, "bits": bits, "block_size": _BLOCK}
    node = make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **attributes)
    x = make_tensor_value_info("x", TensorProto.FLOAT, [rows, terms])
    constants = [from_array(array, name) for name, array in arrays.items()]
    graph = make_graph([node], "product", [x], [ValueInfoProto(name="y")], constants)
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
