"""Decoding and prompts of a language model beside llama.cpp, ONNX Runtime GenAI and OpenVINO, on this machine's CPU.

    make bench ARGS="--language --models /tmp/models --llama-bench bin/llama-bench --python v/bin/python"
    make bench ARGS="--language --models /tmp/models --layers 4 --vocabulary 32000 --kinds int4 --threads 1"

The model has random weights and the shape of Qwen2 0.5B (`benchmarks/language_models.py`), in f32, bf16, or with
weights of 8 and 4 bits in blocks of 32, whose activations are floats of 32 bits or, of kinds with `-bf16`, of 16. A
round reads a prompt of `--prompt` tokens and then makes `--steps` tokens, one by one, of each side in turn; every side
runs in a process of its own, and the others wait meanwhile. `--python` names a Python that has the packages
onnxruntime-genai and gguf, `--llama-bench` llama.cpp's own measurement, which makes no tokens but feeds some,
`--openvino` a Python with openvino and, where its models are not written yet, optimum-intel. OpenVINO takes f32, or
bf16, where nothing but that is asked for; with weights of few bits it takes what it does by default, which is bf16 on
processors with units for it. Sides that are not named are left out, and said. Tokens a second are medians; bytes read
are those of the weights (with their scales, and without the table of embeddings) and of keys and values. The raw
numbers go to `benchmarks/results/`. Measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import positive
from benchmarks.language_models import Decoder
from benchmarks.machine import describe_run
from benchmarks.result_files import RESULTS, write_results
from treadle.bench.peaks import measure_peaks

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("f32", "bf16", "int8", "int4", "int8-bf16", "int4-bf16")
GGUF = {"f32": "F32", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
BYTES = {"f32": 4.0, "bf16": 2.0, "int8": 1 + 2 / 32, "int4": 0.5 + 2 / 32}
"""Of a weight, with its part of a block's scale of 16 bits."""
OWN = "Treadle"


def weights_of(kind: str) -> str:
    """The form of a kind's weights."""
    return kind.partition("-")[0]


class Side(Protocol):
    """A runtime with the model open: seconds of a prompt from an empty past, and of each of the tokens behind it."""

    def read(self, tokens: int) -> float: ...
    def step(self, count: int) -> float: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Row:
    """Tokens a second of one side, round by round."""

    kind: str
    threads: int
    side: str
    prompt: list[float]
    steps: list[float]


class Worker:
    """A side in another process, which takes requests as lines of JSON."""

    def __init__(self, command: Sequence[str], request: Mapping[str, Any]):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.about = self._ask({"do": "open", **request})

    def read(self, tokens: int) -> float:
        return float(self._ask({"do": "read", "tokens": tokens})["seconds"])

    def step(self, count: int) -> float:
        return float(self._ask({"do": "step", "count": count})["seconds"])

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self._process.args} ended")
        return json.loads(answer)


class LlamaBench:
    """llama.cpp, whose program measures both at once: a process a round, whose numbers `step` has from `read`."""

    def __init__(self, program: Path, file: Path, threads: int, steps: int):
        self._command = [str(program), "-m", str(file), "-t", str(threads), "-r", "1", "-o", "json", "-ngl", "0"]
        self._steps, self._seconds = steps, 0.0

    def read(self, tokens: int) -> float:
        done = subprocess.run(
            [*self._command, "-p", str(tokens), "-n", str(self._steps)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        prompt = next(each for each in found if each["n_prompt"])
        steps = next(each for each in found if each["n_gen"])
        self._seconds = 1 / steps["avg_ts"]
        return tokens / prompt["avg_ts"]

    def step(self, count: int) -> float:
        return self._seconds

    def close(self) -> None:
        pass


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the comparison."""
    args = _arguments(argv)
    console = Console(width=None if sys.stdout.isatty() else 120)
    decoder = Decoder(layers=args.layers, vocabulary=args.vocabulary)
    rows: list[Row] = []
    for kind in args.kinds:
        for threads in args.threads:
            rows += raced(kind, threads, decoder, args, console)
    console.print(table(rows, decoder, args))
    settings = {
        key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items() if key != "output"
    }
    found = [vars(row) for row in rows]
    console.print(f"written to {write_results('language', describe_run() | settings, found, args.output)}")


def raced(kind: str, threads: int, decoder: Decoder, args: argparse.Namespace, console: Console) -> list[Row]:
    """All sides, in turn; the first round is not counted."""
    sides = _sides(kind, threads, decoder, args, console)
    rows = {name: Row(kind, threads, name, [], []) for name in sides}
    try:
        for n in range(args.rounds + 1):
            for name, side in sides.items():
                prompt, step = side.read(args.prompt), side.step(args.steps)
                if n:
                    rows[name].prompt.append(args.prompt / prompt)
                    rows[name].steps.append(1 / step)
    finally:
        for side in sides.values():
            side.close()
    return list(rows.values())


def _sides(kind: str, threads: int, decoder: Decoder, args: argparse.Namespace, console: Console) -> dict[str, Side]:
    bits = {"int8": 8, "int4": 4}.get(weights_of(kind), 32)
    room = args.prompt + args.steps + 8
    plain = decoder.write(args.models)
    request = {"model": str(plain), "kind": kind, "threads": threads, "prompt": args.prompt, "room": room}
    sides: dict[str, Side] = {OWN: Worker([sys.executable, "-m", "benchmarks.language_own"], request)}
    if args.python is None:
        console.print("not measured: ONNX Runtime GenAI (--python)")
    elif kind != "bf16":  # its processors' products are of f32, or of few bits
        folder = replace(decoder, bits=bits).write(args.models).parent
        worker = [str(args.python), str(ROOT / "benchmarks" / "language_worker.py")]
        sides["ONNX Runtime GenAI"] = Worker(
            worker, {"peer": "genai", "folder": str(folder), "threads": threads, "room": room}
        )
    if args.openvino is None:
        console.print("not measured: OpenVINO (--openvino)")
    else:
        worker = [str(args.openvino), str(ROOT / "benchmarks" / "language_worker.py")]
        precision = {"f32": "f32", "bf16": "bf16"}.get(kind)
        request = {"peer": "openvino", "threads": threads, "precision": precision}
        sides["OpenVINO"] = Worker(worker, {**request, "folder": str(_openvino(weights_of(kind), decoder, args))})
    if args.llama_bench is None or args.python is None:
        console.print("not measured: llama.cpp (--llama-bench, and --python for its file)")
    else:
        sides["llama.cpp"] = LlamaBench(args.llama_bench, _gguf(weights_of(kind), decoder, args), threads, args.steps)
    return sides


def _gguf(kind: str, decoder: Decoder, args: argparse.Namespace) -> Path:
    file = args.models / f"decoder-{decoder.layers}x{decoder.hidden}-{decoder.vocabulary}-{kind}.gguf"
    if not file.exists():
        sizes = (
            decoder.layers, decoder.hidden, decoder.heads, decoder.groups, decoder.head, decoder.intermediate,
            decoder.vocabulary,
        )  # fmt: skip
        script = str(ROOT / "benchmarks" / "gguf_decoder.py")
        subprocess.run([str(args.python), script, str(file), GGUF[kind], *map(str, sizes)], check=True)
    return file


def _openvino(kind: str, decoder: Decoder, args: argparse.Namespace) -> Path:
    stored = "f32" if kind == "bf16" else kind
    folder = args.models / f"openvino-{decoder.layers}x{decoder.hidden}-{decoder.vocabulary}-{stored}"
    if not folder.exists():
        sizes = (
            decoder.layers, decoder.hidden, decoder.heads, decoder.groups, decoder.intermediate, decoder.vocabulary,
        )  # fmt: skip
        script = str(ROOT / "benchmarks" / "openvino_export.py")
        subprocess.run([str(args.openvino), script, str(folder), stored, *map(str, sizes)], check=True)
    return folder


def table(rows: Sequence[Row], decoder: Decoder, args: argparse.Namespace) -> Table:
    """A line a side."""
    bandwidth = {threads: measure_peaks(threads).bandwidth for threads in args.threads}
    found = Table(title=f"Tokens a second; prompts of {args.prompt}")
    for head in ("weights", "threads", "side", "prompt", "best peer", "steps", "best peer", "GB/s", "of memory's"):
        found.add_column(head, justify="right")
    for row in rows:
        others = [each for each in rows if (each.kind, each.threads) == (row.kind, row.threads) and each.side != OWN]
        kept = 2 * decoder.layers * decoder.groups * decoder.head * 4 * (args.prompt + args.steps / 2)
        moved = (decoder.weights * BYTES[weights_of(row.kind)] + kept) * median(row.steps)
        ratios = ["", ""]
        if row.side == OWN and others:
            ratios = [
                f"{median(row.prompt) / max(median(each.prompt) for each in others):.2f}",
                f"{median(row.steps) / max(median(each.steps) for each in others):.2f}",
            ]
        found.add_row(
            row.kind, str(row.threads), row.side, f"{median(row.prompt):.1f}", ratios[0], f"{median(row.steps):.2f}",
            ratios[1], f"{moved / 1e9:.1f}", f"{moved / bandwidth[row.threads]:.0%}",
        )  # fmt: skip
    return found


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A language model beside other runtimes.")
    parser.add_argument("--models", type=Path, required=True, help="where the models are written, and found again")
    parser.add_argument("--python", type=Path, help="a Python with onnxruntime-genai and gguf")
    parser.add_argument("--openvino", type=Path, help="a Python with openvino, and optimum-intel to write models")
    parser.add_argument("--llama-bench", type=Path, help="llama.cpp's program")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--threads", nargs="+", type=positive, default=[1, 2])
    parser.add_argument("--layers", type=positive, default=24)
    parser.add_argument("--vocabulary", type=positive, default=151936)
    parser.add_argument("--prompt", type=positive, default=512)
    parser.add_argument("--steps", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
