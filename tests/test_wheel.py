"""The wheel by itself: README's first commands where neither the tests' extras nor a compiler of CUDA are installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.onnx_models import linear_model

REPOSITORY = Path(__file__).parents[1]
EXTRAS = ("onnxruntime", "torch", "openvino", "cuda", "nvidia", "pycuda", "sklearn", "gguf")
"""Modules that extras bring."""
BLOCKED = f"""
import sys
from importlib.machinery import PathFinder

class WithoutExtras(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRAS} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutExtras
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`treadle` of a wheel in an environment of its own, which has the dependencies of this one but the extras."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*build, "-w", str(folder), str(REPOSITORY)], check=True)
    (wheel,) = folder.glob("treadle-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    python = folder / "bare" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, str(wheel)], check=True)
    (site,) = (folder / "bare").glob("lib/python*/site-packages")
    (site / "absent.py").write_text(BLOCKED)
    # Behind the wheel's own: an installed checkout would be found there, too.
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join([*paths, "import absent"]) + "\n")
    return python.parent / "treadle"


def run(tool: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(tool), *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed")
def test_a_bare_environment_runs_the_first_commands(
    tool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    linear_model(tmp_path / "m.onnx")
    where = run(tool.parent / "python", "-c", "import treadle; print(treadle.__file__)", folder=tmp_path)
    assert str(tool.parents[1]) in where.stdout, "the wheel is what runs"
    words = {
        ("check", "m.onnx"): "MatMul",
        ("run", "m.onnx", "--check"): "ONNX Runtime is not installed; the definition alone was compared with",
        ("compile", "m.onnx", "-o", "cpu"): "units of cpu code",
        ("run", "cpu", "--threads", "2"): "y: float32[2, 4]",
        ("bench", "cpu"): "matmul",
        ("compile", "m.onnx", "--target", "sm_80", "-o", "cuda"): "pip install 'treadle[nvrtc]'",
        ("run", "m.onnx", "--device", "emulator", "--sanitize"): "y: float32[2, 4]",
        ("compile", "m.onnx", "--emit", "c-library", "-o", "library"): "m.h",
        ("compile", "m.onnx", "--emit", "onnx", "-o", "operator"): "libm.so",
        ("map", "spatial(4, 2) * repeat(2, 2)"): "",
    }
    for arguments, word in words.items():
        found = run(tool, *arguments, folder=tmp_path)
        assert found.returncode == 0, (arguments, found.stderr)
        assert word in found.stdout + found.stderr, (arguments, found.stdout, found.stderr)
    assert list((tmp_path / "cuda" / "kernels").glob("*.cu"))
