"""Attention of few queries over a cache of keys and values, on this machine's processor, beside ONNX Runtime.

    python -m benchmarks.decode_attention 14/2x1x64 32/8x1x128 --used 128 1024 4096 --threads 1

A size is query heads / heads of keys and values x queries x the size of a head. The cache has room for 4,096 keys, of
which those that are used are a number in the call's data. The sides are the kernel of each template, the operators that
attention is made of, both compiled for this processor, and GroupQueryAttention of ONNX Runtime, whose past and present
are one buffer. They are called in turn from Python, one call after the other on another cache, so that none stays in
the second caches. GB/s are those of the keys and values that are used. The raw numbers go to `benchmarks/results/`.
Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from rich.console import Console
from rich.table import Table
from xdsl.dialects.builtin import ModuleOp

from benchmarks.arguments import positive
from benchmarks.attention import built, changes
from benchmarks.machine import describe_run
from benchmarks.measure import relative_error
from benchmarks.result_files import RESULTS, write_results
from treadle.bench.interleave import interleave
from treadle.dialects.graph import AttentionOp
from treadle.dialects.schedule import Choice
from treadle.ir import Entry, tensor_type
from treadle.passes.graph.graph_decompose_attention import written_out
from treadle.schedules.templates import TEMPLATES
from treadle.tuning.measure import InterleavedTimer, Operands

ROOM = 4096
_READ_BYTES = 16 << 20
"""Keys and values that are used between two calls with the same cache."""
_MOST_CACHES = 64
_BATCH_SECONDS = 0.03
Array = NDArray[Any]


@dataclass(frozen=True)
class Size:
    """One attention."""

    heads: int
    groups: int
    rows: int
    size: int

    @staticmethod
    def parse(text: str) -> Size:
        """`14/2x1x64`; argparse's error for other text."""
        heads, _, rest = text.partition("/")
        parts = [positive(part) for part in (heads, *rest.split("x"))]
        if len(parts) != 4:
            raise argparse.ArgumentTypeError(f"{text!r} is not HEADS/GROUPSxQUERIESxSIZE")
        return Size(*parts)

    def __str__(self) -> str:
        return f"{self.heads}/{self.groups}x{self.rows}x{self.size}"

    def module(self, *, whole: bool) -> ModuleOp:
        """The program, behind the passes of graphs: attention as one operator, or written out."""
        shapes = {"q": (1, self.heads, self.rows, self.size)}
        shapes |= dict.fromkeys(("k", "v"), (1, self.groups, ROOM, self.size))
        numbers = {name: tensor_type("int64", ()) for name in ("length", "past")}
        entry = Entry({name: tensor_type("float32", shape) for name, shape in shapes.items()} | numbers)
        q, k, v = (entry[name] for name in ("q", "k", "v"))
        op = AttentionOp(q, k, v, None, entry["length"], entry["past"], scale=self.size**-0.5, causal=True)
        *_, result = [entry.add(step) for step in ([op] if whole else written_out(op))]
        if not whole:
            op.erase()
        return entry.module({"y": result})

    def peer(self) -> ModelProto:
        """GroupQueryAttention with a past that has room."""
        width = self.groups * self.size
        floats = {"q": (1, self.rows, self.heads * self.size), "k": (1, self.rows, width), "v": (1, self.rows, width)}
        kept = (1, self.groups, ROOM, self.size)
        inputs = {name: (TensorProto.FLOAT, shape) for name, shape in floats.items()}
        inputs |= dict.fromkeys(("pk", "pv"), (TensorProto.FLOAT, kept))
        inputs |= {"last": (TensorProto.INT32, (1,)), "total": (TensorProto.INT32, ())}
        outputs = {"y": floats["q"], "nk": kept, "nv": kept}
        node = make_node(
            "GroupQueryAttention", list(inputs), list(outputs), domain="com.microsoft", num_heads=self.heads,
            kv_num_heads=self.groups,
        )  # fmt: skip
        given = [make_tensor_value_info(name, *each) for name, each in inputs.items()]
        results = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
        domains = [make_opsetid("", 18), make_opsetid("com.microsoft", 1)]
        return make_model(make_graph([node], "g", given, results), opset_imports=domains, ir_version=9)


@dataclass(frozen=True)
class Row:
    """Microseconds of a call by side."""

    size: str
    used: int
    us: Mapping[str, float]
    error: float

    def gigabytes(self, side: str) -> float:
        """Bytes of the keys and values that are used a second, in 10^9."""
        size = Size.parse(self.size)
        return _bytes(size, self.used) / self.us[side] / 1e3


def _bytes(size: Size, used: int) -> int:
    return 8 * size.groups * used * size.size


class _Calls(InterleavedTimer):
    """The programs, each of which can be called so many times."""

    def repeated(self, number: int, count: int) -> None:
        """Calls, each with the next cache."""
        for _ in range(count):
            self._call(number)


class Peer:
    """ONNX Runtime on caches of its own."""

    def __init__(self, size: Size, inputs: Sequence[Array], caches: int, threads: int):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(size.peer().SerializeToString(), options)
        q, k, v, length, past = inputs
        rows = slice(int(past), int(length))
        joined = [np.ascontiguousarray(each.transpose(0, 2, 1, 3)).reshape(1, size.rows, -1) for each in (
            q, k[..., rows, :], v[..., rows, :]
        )]  # fmt: skip
        last, total = np.array([int(length) - 1], np.int32), np.array(length, np.int32)
        self._given = dict(zip(("q", "k", "v"), joined, strict=True)) | {"last": last, "total": total}
        self._y = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(joined[0]))
        self._bindings = [self._binding(k, v) for _ in range(caches)]
        self._next = cycle(self._bindings)

    def _binding(self, k: Array, v: Array) -> Any:
        binding = self._session.io_binding()
        for name, value in self._given.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
        for past, present, value in (("pk", "nk", k), ("pv", "nv", v)):
            shared = onnxruntime.OrtValue.ortvalue_from_numpy(value.copy())
            binding.bind_ortvalue_input(past, shared)
            binding.bind_ortvalue_output(present, shared)
        binding.bind_ortvalue_output("y", self._y)
        return binding

    def repeated(self, count: int) -> None:
        """Calls, each with the next cache."""
        for _ in range(count):
            self._session.run_with_iobinding(next(self._next))

    def result(self, size: Size) -> Array:
        """As the programs give it."""
        self.repeated(1)
        return np.asarray(self._y.numpy()).reshape(1, size.rows, size.heads, size.size).transpose(0, 2, 1, 3)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="+", type=Size.parse)
    parser.add_argument("--used", nargs="+", type=positive, default=[128, 1024, ROOM], help="keys, of 4096")
    parser.add_argument("--choices", nargs="+", default=[], metavar="KNOB=N", help="of attention_decode_cpu, by commas")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=20)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    variants = {name: changes(name) for name in args.choices}
    found = [row for size in args.sizes for row in measured(size, args.used, variants, args.threads, args.rounds)]
    Console(width=160).print(table(found))
    settings = {"threads": args.threads, "rounds": args.rounds, "peer": onnxruntime.__version__}
    rows: list[dict[str, object]] = [asdict(each) for each in found]
    print(f"written to {write_results('decode_attention', describe_run() | settings, rows, args.output)}")


def measured(
    size: Size, lengths: Sequence[int], variants: Mapping[str, Mapping[str, Choice]], threads: int, rounds: int
) -> list[Row]:
    """Times one size with several numbers of keys."""
    decode, other = TEMPLATES["attention_decode_cpu"], TEMPLATES["attention_cpu"]
    programs = {"decode": built(size.module(whole=True), {}, decode)}
    programs |= {name: built(size.module(whole=True), choices, decode) for name, choices in variants.items()}
    programs |= {
        "attention_cpu": built(size.module(whole=True), {}, other),
        "operators": built(size.module(whole=False), None),
    }
    return [_measured(size, used, programs, threads, rounds) for used in lengths]


def _measured(size: Size, used: int, programs: Mapping[str, Any], threads: int, rounds: int) -> Row:
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, size.heads, size.rows, size.size)).astype(np.float32)]
    inputs += [rng.standard_normal((1, size.groups, ROOM, size.size)).astype(np.float32) for _ in "kv"]
    inputs += [np.array(used), np.array(used - size.rows)]
    caches = max(1, min(_MOST_CACHES, -(-_READ_BYTES // _bytes(size, used))))
    (_, program), *_ = programs.values()
    # Constants of the list: keys and values, of which there are copies.
    operands = Operands(inputs, program.outputs, (1, 2), caches * (inputs[1].nbytes + inputs[2].nbytes))
    arena = max(each.arena_bytes for _, each in programs.values())
    images = [Path(path).read_bytes() for path, _ in programs.values()]
    constants = [constant.array() for constant in programs["operators"][1].constants]
    calls, peer = _Calls(images, arena, operands, threads, constants), Peer(size, inputs, caches, threads)
    try:
        wanted = peer.result(size)
        error = max(relative_error(calls.outputs(n), [wanted]) for n in range(len(programs)))
        sides: dict[str, Callable[[int], None]] = {name: partial(calls.repeated, n) for n, name in enumerate(programs)}
        times = interleave(sides | {"ONNX Runtime": peer.repeated}, rounds, _BATCH_SECONDS)
    finally:
        calls.close()
    return Row(str(size), used, {name: round(each.median * 1e6, 2) for name, each in times.items()}, error)


def table(found: Sequence[Row]) -> Table:
    """A line for each size and number of keys."""
    result = Table(title="Medians in us, and GB/s of keys and values")
    for head in ("size", "keys", *found[0].us, "error"):
        result.add_column(head, justify="left" if head == "size" else "right")
    for row in found:
        times = [f"{us:.0f} ({row.gigabytes(side):.1f})" for side, us in row.us.items()]
        result.add_row(row.size, str(row.used), *times, f"{row.error:.1e}")
    return result


if __name__ == "__main__":
    main()
