"""What a model says of its memory is what the process takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.onnx_models import linear_model
from treadle import ir
from treadle.backends.memory import Memory
from treadle.dialects.graph import MatmulOp, UnaryOp

ROWS, INNER, WIDE, COLUMNS = 512, 512, 16384, 512
MIB = 1 << 20
MEASURE = """
import sys
from pathlib import Path
import numpy as np
import treadle

def kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

small, large = sys.argv[1:]
with treadle.load(small, 1) as model:
    model(np.zeros((2, 8), np.float32))  # what any model takes
x = np.ones(({rows}, {inner}), np.float32)
Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is taken
before = kib("VmRSS:")
model = treadle.load(large, 1)
y = model(x)
print(kib("VmHWM:") - before, model.peak_memory)
"""


def mlp() -> treadle.CompiledModel:
    """relu(x @ a) @ b: two weights of 32 MiB, and a temporary of 32 MiB."""
    generator = np.random.default_rng(0)
    entry = ir.Entry({"x": ir.tensor_type("float32", (ROWS, INNER))})
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((INNER, WIDE), (WIDE, COLUMNS)))
    hidden = entry.add(UnaryOp("relu", entry.add(MatmulOp(entry["x"], entry.constant(a)))))
    return treadle.compile(entry.module({"y": entry.add(MatmulOp(hidden, entry.constant(b)))}))


def test_the_peak_is_what_a_process_takes(tmp_path: Path) -> None:
    """The parts are known; beyond them, the call's other allocations and the code are below a twentieth of 97 MiB."""
    model = mlp()
    assert model.memory.weights == 2 * 32 * MIB and model.memory.outputs == 1 * MIB and model.memory.inputs == 0
    assert 32 * MIB <= model.memory.scratch < 33 * MIB
    assert model.peak_memory == model.memory.weights + model.memory.scratch + model.memory.outputs
    treadle.compile(linear_model(tmp_path / "m.onnx")).save(tmp_path / "small")
    model.save(tmp_path / "large")
    script = MEASURE.replace("{rows}", str(ROWS)).replace("{inner}", str(INNER))
    command = [sys.executable, "-c", script, str(tmp_path / "small"), str(tmp_path / "large")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured, said = map(int, done.stdout.split())
    assert said == model.peak_memory
    assert 0.95 * said < measured * 1024 < 1.05 * said


def test_inputs_are_counted_where_they_are_copied(tmp_path: Path) -> None:
    path = linear_model(tmp_path / "m.onnx", rows="batch")
    ranged = treadle.compile(path, shapes={"batch": treadle.Dim("batch", 1, 16)}).memory
    fixed, gpu = (treadle.compile(path, target, shapes={"batch": 16}).memory for target in ("cpu", "sm_80"))
    row, result = 8 * 4, 4 * 4
    assert (fixed.inputs, fixed.outputs) == (0, 16 * result)
    assert (ranged.inputs, ranged.outputs) == (0, 16 * result)  # kernels read and write where they lie
    assert (gpu.inputs, gpu.outputs) == (16 * row, 16 * result)


def test_the_text_leaves_out_what_is_none() -> None:
    assert str(Memory(2_000_000, 0, 0, 500_000)) == "2.5 MB (weights 2.0, outputs 0.5)"
    assert str(Memory(0, 0, 0, 0)) == "0.0 MB"


@pytest.mark.parametrize("twice", [False, True])
def test_equal_constants_are_counted_once(twice: bool) -> None:
    entry = ir.Entry({"x": ir.tensor_type("float32", (24, 24)), "z": ir.tensor_type("float32", (24, 24))})
    weights = np.random.default_rng(1).standard_normal((2, 24, 24)).astype(np.float32)
    first = entry.add(MatmulOp(entry["x"], entry.constant(weights[0])))
    second = entry.add(MatmulOp(entry["z"], entry.constant(weights[0 if twice else 1])))
    model = treadle.compile(entry.module({"a": first, "b": second}))
    assert len({each.name for each in model.manifest.constants}) == (1 if twice else 2)
    assert model.memory.weights == (1 if twice else 2) * max(each.num_bytes for each in model.manifest.constants)
