"""The first minutes on a GPU: tests, then benchmarks, in order of value, within a limit, into one folder of JSON.

    make gpu-first [ARGS="--seconds 480 --output DIR"]

What is worth most comes first, and each step is a process of its own with a limit of its own: a step that fails or
takes too long costs its part and no more, and what it had written stays. `steps.json` says of each step what it was
for, how it ended, its seconds and the end of its output; beside it lie the files that the steps write. `--rehearse`
runs every step on its smallest case, without limits of their own, to see that all of it works. Without a GPU there is
one line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

from benchmarks.gpu import slug
from benchmarks.machine import ROOT, describe_gpu, describe_run
from benchmarks.result_files import RESULTS
from treadle.backends.cuda.gpu_probe import why_no_gpu

_PEERS = ("--peers", "treadle", "torch eager", "Triton", "ONNX Runtime")
"""Without `torch.compile`, whose tuning alone would take the minutes."""
_LAST_LINES = 40


@dataclass(frozen=True)
class Step:
    """A part of the first minutes.

    arguments: of the interpreter; OUTPUT stands for the folder of results
    seconds:   after which it is stopped
    smallest:  what takes the place of `arguments` in a rehearsal
    """

    name: str
    why: str
    arguments: tuple[str, ...]
    seconds: float
    smallest: tuple[str, ...] | None = None


def _tests(name: str, *paths: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-m", "gpu", "-q", f"--junitxml=OUTPUT/{name}.xml", *paths)


def _bench(name: str, *options: str) -> tuple[str, ...]:
    return ("benchmarks/run.py", "--gpu", *options, *_PEERS, "--output", f"OUTPUT/{name}")


def _spaces(*options: str) -> tuple[str, ...]:
    return ("benchmarks/run.py", "--gpu-spaces", *options, "--output", "OUTPUT")


STEPS = (
    Step(
        "conformance",
        "Does each function of treadle_cuda.h do on the device what it does on the emulator?",
        _tests("conformance", "tests/backends/cuda/conformance"),
        60,
    ),
    Step(
        "kernels",
        "Launches, arena, shared memory, limits, occupancy; graphs of every kind of template agree with NumPy.",
        _tests("kernels", "tests/backends/cuda/test_gpu.py"),
        60,
        _tests("kernels", "tests/backends/cuda/test_gpu.py", "-k", "arena or shared or squeeze"),
    ),
    Step(
        "operators",
        "Products, rows and norms against PyTorch, Triton and ONNX Runtime.",
        _bench(
            "operators",
            *("--precision", "f32", "f16", "tf32", "--rounds", "10", "--batch-ms", "3", "--workloads"),
            *("matmul_1024", "matmul_4096", "softmax_4096x1024", "layer_norm_4096x768"),
        ),
        90,
        _bench(
            "operators", "--precision", "f32", "f16", "--rounds", "1", "--batch-ms", "1", "--workloads", "matmul_128"
        ),
    ),
    Step(
        "models",
        "Whole models, batch 1.",
        _bench(
            "models",
            *("--precision", "f32", "f16", "--rounds", "10", "--workloads"),
            *("bert_base", "resnet50", "gpt2", "mobilenet_v2", "minilm", "light_resnet50"),
        ),
        130,
        _bench("models", "--rounds", "1", "--batch-ms", "1", "--workloads", "softmax_128x8192"),
    ),
    Step(
        "schedules",
        "Where does the default stand in its space?",
        _spaces("--seconds", "80", "--rounds", "8"),
        100,
        _spaces(
            *("--workers", "0", "--rounds", "3", "--flush-mib", "0"),
            *("--case", "channels last, 8 x 64 x 56 x 56"),
        ),
    ),
    Step(
        "agreement",
        "Real models agree with ONNX Runtime.",
        _tests("agreement", "tests/models/test_models_gpu.py"),
        60,
        _tests("agreement", "tests/models/test_models_gpu.py", "-k", "ppocr_cls"),
    ),
)
"""In order of value; their limits add up to more than the whole has: what is left over goes to the later ones."""


def main(argv: Sequence[str] | None = None, interpreter: Sequence[str] = (sys.executable,)) -> int:
    """Runs the steps; 0 if all of them passed, and where there is no GPU.

    interpreter: the command that runs a step's arguments
    """
    args = _arguments(argv)
    reason = why_no_gpu()
    if reason is not None:
        print(f"gpu-first skipped: {reason}")
        return 0
    circumstances = describe_run() | describe_gpu()
    folder = args.output or RESULTS / f"gpu-first-{slug(str(circumstances['gpu']))}-{str(circumstances['date'])[:10]}"
    folder.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.seconds
    rows: list[Mapping[str, object]] = []
    for step in STEPS:
        left = end - time.monotonic()
        limit = left if args.rehearse else min(step.seconds, left)
        arguments = step.smallest if args.rehearse and step.smallest else step.arguments
        command = [*interpreter, *(each.replace("OUTPUT", str(folder)) for each in arguments)]
        row = judged(run_step(step, command, limit) | tests_of(folder / f"{step.name}.xml"))
        rows.append(row)
        # What was found stays, whatever becomes of the next step.
        (folder / "steps.json").write_text(json.dumps(circumstances | {"steps": rows}, indent=1) + "\n")
        print(f"{step.name}: {row['ended']} after {row['seconds']} s")
    print(f"written to {folder}")
    return int(any(row["ended"] != "passed" for row in rows))


def run_step(
    step: Step, command: Sequence[str], limit: float, clock: Callable[[], float] = time.monotonic
) -> dict[str, object]:
    """How a step ended: "passed", "failed", "stopped" at its limit, or "no time left"; for JSON."""
    about: dict[str, object] = {"step": step.name, "why": step.why, "command": list(command[1:])}
    if limit <= 0:
        return about | {"ended": "no time left", "seconds": 0.0, "output": []}
    start = clock()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            ended = "failed" if process.returncode else "passed"
        except subprocess.TimeoutExpired:
            # Its own children, too: compilers would take the time of the next step.
            kill_group(process.pid)
            output, _ = process.communicate()
            ended = "stopped"
    seconds = round(clock() - start, 1)
    return about | {"ended": ended, "seconds": seconds, "output": output.splitlines()[-_LAST_LINES:]}


def tests_of(report: Path) -> dict[str, object]:
    """Each test of a JUnit report by name, with what it said where it did not pass; the report itself goes."""
    if not report.is_file():
        return {}
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        bad = next((each for each in case if each.tag in ("failure", "error", "skipped")), None)
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        outcomes[name] = "passed" if bad is None else f"{bad.tag}: {bad.get('message', '')}"
    report.unlink()
    return {"tests": outcomes}


def judged(row: Mapping[str, object]) -> Mapping[str, object]:
    """A step of tests, all of which were skipped, is "skipped": it has shown nothing."""
    tests = row.get("tests")
    outcomes = list(cast("Mapping[str, str]", tests).values()) if isinstance(tests, dict) else []
    if row["ended"] == "passed" and outcomes and all(each.startswith("skipped") for each in outcomes):
        return dict(row) | {"ended": "skipped"}
    return row


def kill_group(process: int) -> None:
    """Ends a process and those that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Test and measure on a GPU what is worth most, within minutes.")
    parser.add_argument("--seconds", type=float, default=470.0, metavar="S", help="for all steps (default 470)")
    parser.add_argument("--rehearse", action="store_true", help="every step on its smallest case")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default: a folder in benchmarks/results")
    return parser.parse_args(argv)
