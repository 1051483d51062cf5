"""What a call by ONNX Runtime's execution provider costs beyond Treadle's own: a model of one small product, called by
each, in turns. `python benchmarks/execution_provider.py [CALLS]`"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

import treadle
import treadle.onnxruntime

Provider = str | tuple[str, dict[Any, Any]]

ROUNDS = 15
SIDE = 16


def product() -> bytes:
    """y = relu(x @ w) of 16 by 16 elements, w an input."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    tensors = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIDE, SIDE]) for name in "xwy"}
    graph = helper.make_graph(nodes, "product", [tensors["x"], tensors["w"]], [tensors["y"]])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def seconds(call: Callable[[], object], calls: int) -> float:
    """Of one call, when there are several one after another."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def main() -> None:
    """Prints the time of a call of each, the median and the least of several rounds."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    treadle.onnxruntime.register()
    data = product()
    feed = {name: np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32) for name in "xw"}
    provider: Provider = ("TreadleExecutionProvider", {"threads": "1"})
    own = treadle.compile(ModelProto.FromString(data), threads=1)
    runs: dict[str, Callable[[], object]] = {
        "treadle.CompiledModel": lambda: own.run(feed),
        "ONNX Runtime, its CPU": bound(data, feed, "CPUExecutionProvider"),
        "ONNX Runtime, Treadle": bound(data, feed, provider),
        "the same by session.run": with_arrays(data, feed, provider),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, call in runs.items():
            times[name].append(seconds(call, calls))
    for name, each in times.items():
        print(f"{name:24} {1e6 * median(each):6.1f} us (least {1e6 * min(each):.1f})")


def with_arrays(data: bytes, feed: dict[str, np.ndarray], provider: Provider) -> Callable[[], object]:
    """A call as most programs write it."""
    session = onnxruntime.InferenceSession(data, providers=[provider])
    return lambda: session.run(None, feed)


def bound(data: bytes, feed: dict[str, np.ndarray], provider: Provider) -> Callable[[], object]:
    """A call of a session whose inputs and outputs are bound, which costs least in Python."""
    session = onnxruntime.InferenceSession(data, providers=[provider])
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("y", "cpu")
    return lambda: session.run_with_iobinding(binding)


if __name__ == "__main__":
    main()
