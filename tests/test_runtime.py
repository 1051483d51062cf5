"""The runtime by itself: where there is NumPy and nothing else it loads what the compiler wrote, and agrees with it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import treadle
from tests.frontends.onnx.test_grouped_query_past import Cache
from tests.helpers.environment import environment_with
from tests.helpers.onnx_models import WEIGHTS, linear_model
from tests.test_states import KEPT, call
from treadle import runtime
from treadle.errors import TreadleError
from treadle.runtime.run import main

Array = NDArray[Any]
REPOSITORY = Path(__file__).parents[1]

ALONE = """
import sys
from importlib.machinery import PathFinder

class OnlyNumpy(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        known = name.partition(".")[0] in {"numpy", *ALLOWED} | sys.stdlib_module_names
        return super().find_spec(name, path, target) if known else None

sys.meta_path = [OnlyNumpy if each is PathFinder else each for each in sys.meta_path]
"""
CALLS = """
import importlib
import numpy as np
runtime = importlib.import_module(PACKAGE)
folder, calls, made, rebuild = sys.argv[1:]
with runtime.load(folder, threads=2, rebuild=rebuild == "True") as model:
    for number, name in enumerate(calls.split(",")):
        np.savez(f"{made}-{number}.npz", **model.run(dict(np.load(name))))
    print(runtime.__file__, model.states, model.symbols, model.peak_memory)
"""


def calls_elsewhere(
    python: Path | str, package: str, folder: Path, feeds: Sequence[dict[str, Array]], scratch: Path, *,
    rebuild: bool = False,
) -> tuple[list[dict[str, Array]], str]:  # fmt: skip
    """The outputs of calls of the model in a folder, made by `package` in a process that finds NumPy and nothing else;
    what it printed."""
    names = [str(scratch / f"given-{n}.npz") for n in range(len(feeds))]
    for name, feed in zip(names, feeds, strict=True):
        np.savez(name, allow_pickle=False, **feed)
    script = f"ALLOWED, PACKAGE = {[package.partition('.')[0]]}, {package!r}\n{ALONE}{CALLS}"
    command = [str(python), "-c", script, str(folder), ",".join(names), str(scratch / "made"), str(rebuild)]
    done = subprocess.run(command, cwd=scratch, env=environment_with({}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = [np.load(scratch / f"made-{n}.npz") for n in range(len(feeds))]
    return [dict(each) for each in made], done.stdout


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a range of shapes, compiled."""
    folder = tmp_path_factory.mktemp("ranged")
    path = linear_model(folder / "m.onnx", rows="n")
    treadle.compile(path, shapes={"x": (treadle.Dim("n", 1, 9), 8)}).save(folder / "ranged")
    return folder / "ranged"


def check_range(made: Callable[..., tuple[list[dict[str, Array]], str]], folder: Path) -> None:
    """`made` gives what NumPy gives along a range."""
    feeds = [{"x": np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)} for n in (1, 4, 9)]
    results, said = made(folder, feeds)
    assert "Dim(" in said and "n" in said
    for feed, result in zip(feeds, results, strict=True):
        np.testing.assert_allclose(result["y"], np.maximum(feed["x"] @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)


def check_states(made: Callable[..., tuple[list[dict[str, Array]], str]], folder: Path) -> None:
    """`made` keeps states as the compiler's own model does."""
    cache = Cache(rotary=True)
    feeds = [call(cache, past, rows) for past, rows in ((0, 5), (5, 1), (6, 1))]
    with treadle.compile(cache.file, shapes=cache.shapes, states=KEPT) as model:
        expected = [model.run(feed) for feed in feeds]
        model.save(folder / "kept")
    results, said = made(folder / "kept", feeds)
    assert "('pk', 'pv')" in said
    for own, result in zip(expected, results, strict=True):
        np.testing.assert_array_equal(result["y"], own["y"])


def test_a_process_with_nothing_but_numpy_calls_models(
    ranged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    def made(folder: Path, feeds: Sequence[dict[str, Array]]) -> tuple[list[dict[str, Array]], str]:
        return calls_elsewhere(sys.executable, "treadle.runtime", folder, feeds, tmp_path)

    check_range(made, ranged)
    check_states(made, tmp_path)


def test_the_compilers_models_are_the_runtimes(ranged: Path) -> None:
    assert isinstance(treadle.load(ranged), runtime.Model)
    assert treadle.CompiledModel.run is runtime.Model.run
    assert treadle.CompiledModel.__call__ is runtime.Model.__call__


def test_a_type_that_numpy_lacks_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.ones((64, 64), np.float32)
    treadle.compile(linear_model(tmp_path / "m.onnx", weights=weights), weights="bf16").save(tmp_path / "narrow")
    manifest = (tmp_path / "narrow" / "manifest.json").read_text()
    assert "bfloat16" in manifest
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TreadleError, match="'ml_dtypes' is not installed; accepted: pip install ml_dtypes"):
        runtime.load(tmp_path / "narrow")


def test_the_command_calls_a_folder(ranged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.ones((3, 8), np.float32)
    np.save(tmp_path / "x.npy", x)
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--threads", "2", "--repeat", "2", "--save", str(tmp_path / "out")]
    assert main([str(ranged), *given]) == 0
    said = capsys.readouterr().out
    assert "y: float32[3, 4]" in said and "median of 2 more calls" in said
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), np.maximum(x @ WEIGHTS, 0), rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}", "--threads", "0"], "--threads: 0 is not a number of threads; accepted: 1 upwards"),
        (["{folder}", "--repeat", "-1"], "--repeat: -1 calls; accepted: 0 upwards"),
        (["{folder}", "--seed", "-1"], "--seed: -1 is no seed; accepted: 0 upwards"),
        (["{folder}", "--input", "n=3"], "--input n is a constant, for a model that is compiled"),
        (["{folder}/none"], "manifest"),
        (["{folder}", "--check"], "what `treadle-run --help` lists"),
    ],
)
def test_what_the_command_cannot_accept_is_one_line(
    arguments: list[str], message: str, ranged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([each.format(folder=ranged) for each in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("treadle-run: ") and said.count("\n") == 1 and message in said


# The wheel.


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The Python of an environment that has the wheel and NumPy, and the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*build, "-w", str(folder), str(REPOSITORY / "packaging" / "runtime")], check=True)
    (wheel,) = folder.glob("treadle_runtime-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "bare")], check=True)
    python = folder / "bare" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "-q"]
    subprocess.run([*install, str(wheel)], check=True)
    (site,) = (folder / "bare").glob("lib/python*/site-packages")
    numpy = Path(np.__file__).parent
    for each in (numpy, numpy.with_name("numpy.libs")):
        if each.is_dir():
            (site / each.name).symlink_to(each)
    return python, wheel


needs_hatchling = pytest.mark.skipif(
    find_spec("hatchling") is None, reason="hatchling, which builds the wheel, is not installed"
)


@pytest.mark.slow
@needs_hatchling
def test_the_wheel_calls_models_in_a_bare_environment(
    bare: tuple[Path, Path], ranged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    python, wheel = bare
    said = ""

    def made(
        folder: Path, feeds: Sequence[dict[str, Array]], *, rebuild: bool = False
    ) -> tuple[list[dict[str, Array]], str]:
        nonlocal said
        results, said = calls_elsewhere(python, "treadle_runtime", folder, feeds, tmp_path, rebuild=rebuild)
        return results, said

    check_range(made, ranged)
    check_states(made, tmp_path)
    check_range(lambda folder, feeds: made(folder, feeds, rebuild=True), ranged)
    assert said.startswith(str(python.parents[1])), "the wheel is what runs"
    assert wheel.stat().st_size < 200_000
    done = subprocess.run(
        [python.parent / "treadle-run", ranged, "--repeat", "1"], capture_output=True, text=True, check=True
    )
    assert "y: float32[9, 4]" in done.stdout
    names = subprocess.run(
        [python, "-c", "import treadle_runtime, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "treadle" not in names
