"""Folders that appear under their names in one step: replaced while others write, and while others read."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.environment import environment_with
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle.errors import TreadleError
from treadle.support import publishing
from treadle.support.publishing import publish, scratch_folder, share

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
FILES = 20


@pytest.fixture(params=["exchange", "rename"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that swaps two names in one step, and one that does not."""
    if request.param == "rename":
        monkeypatch.setattr(publishing, "_exchange", lambda a, b: False)


def numbered(number: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for n in range(FILES):
            (folder / f"{n}").write_text(str(number))

    return write


def always(_: Path) -> bool:
    return True


@pytest.mark.usefixtures("system")
def test_threads_replace_one_folder(tmp_path: Path) -> None:
    """No `Directory not empty`, and no halves of two."""
    final = tmp_path / "final"
    errors: list[BaseException] = []

    def publish_often(first: int) -> None:
        try:
            for n in range(20):
                publish(final, numbered(first + n), replace=always)
        except BaseException as error:  # the thread's error is the test's
            errors.append(error)

    threads = [threading.Thread(target=publish_often, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len({(final / f"{n}").read_text() for n in range(FILES)}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_the_name_is_never_without_a_folder(tmp_path: Path) -> None:
    final, stop = tmp_path / "final", threading.Event()
    publish(final, numbered(0), replace=always)
    seen: list[bool] = []

    def look() -> None:
        while not stop.is_set():
            seen.append((final / "0").exists())

    thread = threading.Thread(target=look)
    thread.start()
    for n in range(100):
        publish(final, numbered(n), replace=always)
    stop.set()
    thread.join()
    assert all(seen) and len(seen) > 10


@pytest.mark.usefixtures("system")
def test_a_folder_that_is_read_stays_until_it_is_not(tmp_path: Path) -> None:
    final = tmp_path / "final"
    publish(final, numbered(1), replace=always)
    lock = share(final)
    assert lock is not None
    publish(final, numbered(2), replace=always)
    assert (Path(f"/proc/self/fd/{lock.descriptor}") / "0").read_text() == "1"
    assert (final / "0").read_text() == "2"
    lock.release()
    publish(final, numbered(3), replace=always)
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    publish(tmp_path / "one", numbered(1), replace=always)
    (tmp_path / "link").symlink_to("one")
    publish(tmp_path / "link", numbered(2), replace=always)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "one" / "0").read_text() == "2"


def test_what_fails_leaves_nothing_and_replaces_nothing(tmp_path: Path) -> None:
    publish(tmp_path / "final", numbered(1), replace=always)

    def fail(folder: Path) -> None:
        numbered(2)(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(TreadleError, match="final: cannot write: No space left on device; accepted: a folder"):
        publish(tmp_path / "final", fail, replace=always)
    assert (tmp_path / "final" / "0").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["final"]


def test_other_folders_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "mine").write_text("")
    with pytest.raises(TreadleError, match="the folder holds other files"):
        publish(tmp_path / "final", numbered(1), replace=lambda _: False)


KILLED = """
import os, signal
from pathlib import Path
from treadle.support.publishing import publish
def write(folder):
    (folder / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
publish(Path(os.environ["FINAL"]), write, replace=lambda _: True)
"""


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    final = tmp_path / "[final]*"  # no pattern of names
    (tmp_path / ".[final]*.mine").mkdir()
    process = subprocess.run([sys.executable, "-c", KILLED], env=environment_with({"FINAL": str(final)}), check=False)
    assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with scratch_folder(tmp_path, f".{final.name}.treadle-") as living:
        publish(final, numbered(1), replace=always)
        assert living.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".[final]*.mine", "[final]*"]


SAVE = """
import sys
import numpy as np
import treadle
x = np.ones((2, 8), np.float32)
factor, models, final = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
for n in range(2):
    model = treadle.compile(f"{models}/{factor}.onnx", cached=n == 1)
    for _ in range(15):
        model.save(final)
    (y,) = treadle.load(final)(x)
    print(y[0, 0])
"""


def test_processes_compile_and_save_to_one_folder(tmp_path: Path) -> None:
    """Each compiles into one cache, once anew, and saves to one folder; what it loads from there is complete."""
    expected: dict[str, float] = {}
    for factor in (1, 2):
        weights = np.abs(WEIGHTS) * np.float32(factor)
        linear_model(tmp_path / f"{factor}.onnx", weights=weights)
        expected[str(factor)] = float(weights.sum(0)[0])
    final = tmp_path / "out" / "final"
    environment = environment_with({"TREADLE_CACHE_DIR": str(tmp_path / "cache")})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SAVE, factor, str(tmp_path), str(final)], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for factor in ("1", "2", "1")
    ]  # fmt: skip
    for process in processes:  # they begin together, once all are there
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        out, err = process.communicate()
        assert err == "" and process.returncode == 0
        values = [float(line) for line in out.split()]
        assert len(values) == 2
        assert all(min(abs(value - each) for each in expected.values()) < 1e-4 for value in values)
    treadle.load(final).save(tmp_path / "copy")
    treadle.load(tmp_path / "copy").save(final)  # sweeps what its last readers kept
    assert [path.name for path in final.parent.iterdir()] == ["final"]
    assert not list((tmp_path / "cache" / "scratch").iterdir())


def test_a_loaded_model_outlives_its_replacement(tmp_path: Path) -> None:
    final = tmp_path / "final"
    treadle.compile(linear_model(tmp_path / "1.onnx")).save(final)
    loaded = treadle.load(final)
    treadle.compile(linear_model(tmp_path / "2.onnx", weights=WEIGHTS * 2)).save(final)
    np.testing.assert_allclose(loaded(X)[0], np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(treadle.load(final)(X)[0], np.maximum(X @ WEIGHTS * 2, 0), rtol=1e-5, atol=1e-6)
    loaded.save(tmp_path / "copy")
    np.testing.assert_allclose(treadle.load(tmp_path / "copy")(X)[0], np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)


def test_a_model_is_saved_over_itself(tmp_path: Path) -> None:
    treadle.compile(linear_model(tmp_path / "1.onnx")).save(tmp_path / "final")
    treadle.load(tmp_path / "final").save(tmp_path / "final")
    np.testing.assert_allclose(treadle.load(tmp_path / "final")(X)[0], np.maximum(X @ WEIGHTS, 0), rtol=1e-5, atol=1e-6)
