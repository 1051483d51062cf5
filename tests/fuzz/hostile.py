"""Hostile files in a process of their own, whose memory is limited: `python -m tests.fuzz.hostile KIND FIRST LAST`.

Each outcome is success or one error of the kind that users see. Anything else is a finding, and is printed as a line
`SEED what`. A line `SEED` before each attempt says which one a crash or a hang belongs to.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
from onnx import ModelProto, TensorProto, helper
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.xdsl_opt_main import xDSLOptMain

import treadle
from tests.fuzz.generate import case_of_seed
from tests.fuzz.mutate import mutate_message, mutated_bytes, mutated_json, mutated_text
from tests.helpers.filecheck import run_tool
from tests.helpers.mlir_collector import is_ir_test
from tests.helpers.onnx_models import linear_model
from tests.helpers.program_batch import print_program
from tests.helpers.run_lines import read_run_lines
from treadle import ir
from treadle.artifact.manifest import MANIFEST
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model
from treadle.frontends.onnx.check import check_model

MEMORY = 4 << 30
SECONDS = 20
"""Of the processor: beside other processes an attempt may last much longer."""
WAITING = 10
"""So many times as long an attempt may last in all, as one that waits for what never comes."""
TESTS = Path(__file__).parents[1]
NOT_IN_PROCESS = ("--help", "--version", "-o")

Attempt = Callable[[int, Path], None]


class Late(BaseException):
    """An attempt takes too long; no `except Exception` stops it."""


def attempt_model(seed: int, _: Path) -> None:
    """A drawn model with changed fields or bytes is imported, lowered and printed."""
    random = Random(seed)
    proto = case_of_seed(seed).model()
    if random.random() < 0.7:
        for _mutation in range(random.choice((1, 1, 2, 3))):
            mutate_message(random, proto)
        content = proto.SerializeToString()
    else:
        content = mutated_bytes(random, proto.SerializeToString())
    with suppress(TreadleError):
        check_model(content)
    print_program("mutated", import_model(content))


def attempt_external(seed: int, folder: Path) -> None:
    """A model whose weights' external data is described wrongly."""
    random = Random(seed)
    (folder / "w.bin").write_bytes(np.arange(64, dtype=np.float32).tobytes())
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], data_location=TensorProto.EXTERNAL)
    entries = {"location": "w.bin", "offset": "0", "length": "256"}
    for key, value in random.sample(sorted(entries.items()), random.randint(1, 3)):
        weights.external_data.add(key=key, value=value)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x", "y")]
    proto = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:], [weights]), ir_version=10)
    for _ in range(random.choice((1, 2, 3))):
        _mutate_entries(random, proto)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    import_model(folder / "m.onnx")


_LOCATIONS = (
    "..",
    ".",
    "/",
    "/dev/zero",
    "/etc/passwd",
    "../w.bin",
    "w.bin\0",
    "./w.bin",
    "a/../w.bin",
    "m.onnx",
    "w" * 5000,
)
_NUMBERS = (
    "-1",
    "1",
    "255",
    "257",
    "9" * 30,
    "9" * 5000,
    "0x10",
    "1e3",
    "",
    " 4",
    "٤",
    "4_0",
    "nan",
    "18446744073709551616",
)


def _mutate_entries(random: Random, proto: ModelProto) -> None:
    (weights,) = proto.graph.initializer
    if random.random() < 0.2:
        mutate_message(random, weights)
        return
    if random.random() < 0.3 or not weights.external_data:
        weights.external_data.add(key=random.choice(("location", "offset", "length", "checksum", "")))
    entry = random.choice(weights.external_data)
    entry.value = random.choice(_LOCATIONS if entry.key == "location" else _NUMBERS)


def attempt_manifest(seed: int, folder: Path) -> None:
    """An artifact with another manifest is opened; what still fits may be."""
    random = Random(seed)
    original = _artifact(folder.parent)
    shutil.copytree(original, folder / "saved")
    path = folder / "saved" / MANIFEST
    if random.random() < 0.8:
        content = json.loads(path.read_text())
        for _ in range(random.choice((1, 1, 2, 4))):
            content = mutated_json(random, content)
        path.write_text(json.dumps(content))
    else:
        path.write_bytes(mutated_bytes(random, path.read_bytes()))
    treadle.load(folder / "saved", threads=1).open().close()


def _artifact(folder: Path) -> Path:
    saved = folder / "original"
    if not saved.exists():
        treadle.compile(linear_model(folder / "m.onnx"), "cpu").save(saved)
    return saved


def attempt_text(seed: int, folder: Path) -> None:
    """An IR test with other tokens goes through the tool as its RUN line says, or through the whole pipeline."""
    random = Random(seed)
    files = [path for path in sorted(TESTS.rglob("*.mlir")) if is_ir_test(path)]
    path = random.choice(files)
    text = path.read_text()
    steps = [s for line in read_run_lines(text, path) for s in line.steps if s.tool == "treadle-opt"]
    arguments = [a for a in random.choice(steps).arguments if a != str(path)] if steps else ["--to", "lower"]
    if any(a.startswith(NOT_IN_PROCESS) for a in arguments):
        return
    changed = folder / "m.mlir"
    changed.write_text(mutated_text(random, "\n".join(x for x in text.splitlines() if "RUN:" not in x)))
    outcome = run_tool("treadle-opt", (str(changed), *arguments))
    lines = outcome.stderr.splitlines()
    if outcome.status not in (0, 2) or (outcome.status == 2 and len(lines) != 1):
        raise AssertionError(f"{path.relative_to(TESTS)}: status {outcome.status}, {' / '.join(lines[-3:])}")


def attempt_stage(seed: int, folder: Path) -> None:
    """The text that a stage left, with other tokens, is read by `treadle-opt` and by stock `xdsl-opt`: each prints it,
    or has one diagnostic that names the place."""
    random = Random(seed)
    target, stage, text = random.choice(_stages(folder.parent))
    path = folder / "m.mlir"
    path.write_text(mutated_text(random, text))
    outcome = run_tool("treadle-opt", (str(path),))
    lines = outcome.stderr.splitlines()
    if outcome.status not in (0, 2) or (outcome.status == 2 and (len(lines) != 1 or lines[0].count(": ") < 2)):
        raise AssertionError(f"{target}, {stage}: status {outcome.status}, {' / '.join(lines[-3:])}")
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            xDSLOptMain(args=[str(path)]).run()
    except (ParseError, DiagnosticException):
        return
    except Exception as error:
        own = Path(treadle.__file__).parent
        if any(own in Path(frame.filename).parents for frame in traceback.extract_tb(error.__traceback__)):
            raise  # xDSL's own operations raise more than diagnostics


@cache
def _stages(folder: Path) -> list[tuple[str, str, str]]:
    """Target, stage and text of a model with a range, after every stage."""
    found: list[tuple[str, str, str]] = []
    for target in ("avx2", "sm_80"):
        module, after = import_model(linear_model(folder / "l.onnx", "n"), {"n": treadle.Dim("n", 1, 9)}), None
        for stage in ir.STAGES:
            ir.lower(module, target, after=after, to=stage)
            found.append((target, stage, ir.print_text(module)))
            after = stage
    return found


ATTEMPTS: Mapping[str, Attempt] = {
    "models": attempt_model,
    "external": attempt_external,
    "manifests": attempt_manifest,
    "texts": attempt_text,
    "stages": attempt_stage,
}


def findings(kind: str, first: int, last: int) -> Iterator[str]:
    """What is wrong with the seeds from `first` to before `last`, tried in processes of their own."""
    while first < last:
        command = [sys.executable, "-m", "tests.fuzz.hostile", kind, str(first), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        tried = [line for line in done.stdout.splitlines() if line]
        yield from (f"{kind} {line}" for line in tried if " " in line)
        if done.returncode == 0:
            return
        reached = int(tried[-1].split()[0]) if tried else first
        yield f"{kind} {reached} ended with {done.returncode}: {done.stderr[-500:]}"
        first = reached + 1


def try_seed(seed: int, attempt: Attempt, folder: Path) -> None:
    """Makes an attempt, and prints what is wrong with it."""
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAITING * SECONDS)
    try:
        attempt(seed, folder)
    except TreadleError as error:
        if "\n" in str(error):
            print(seed, f"an error of several lines: {str(error)!r}")
    except (Exception, Late) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        print(seed, f"{type(error).__name__}: {str(error)[:300]!r} in {frame.filename}:{frame.lineno}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _late(number: int, _: object) -> None:
    raise Late(f"still busy after {SECONDS} s" if number == signal.SIGPROF else f"waits for {WAITING * SECONDS} s")


def main() -> None:
    """Tries the seeds of the command line."""
    kind, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error")
    with TemporaryDirectory() as folder:
        for seed in range(first, last):
            print(seed, flush=True)
            each = Path(folder) / str(seed)
            each.mkdir()
            try_seed(seed, ATTEMPTS[kind], each)
            shutil.rmtree(each, ignore_errors=True)


if __name__ == "__main__":
    main()
