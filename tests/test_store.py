"""The one store: what is put in comes out, damage is made anew, the limit holds, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import treadle
from tests.helpers.environment import environment_with
from tests.helpers.onnx_models import linear_model
from treadle.artifact.store import DISCARDED, KINDS, SCRATCH, Store, digest, kind_bytes
from treadle.errors import TreadleError
from treadle.support.publishing import share

LARGE = 1 << 30
X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)


def of(data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def key(n: int) -> str:
    return digest(str(n))


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def total(root: Path) -> int:
    return sum(kind_bytes(root, kind)[1] for kind in KINDS)


def run(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment_with(environment), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_file_is_made_once(tmp_path: Path) -> None:
    made: list[int] = []

    def produce(path: Path) -> None:
        made.append(1)
        (path.parent / "more").write_text("dropped")
        path.write_bytes(b"content")

    paths = {Store(tmp_path, LARGE).fetch("objects", key(1), ".o", produce) for _ in range(3)}
    assert len(made) == len(paths) == 1
    assert paths.pop().read_bytes() == b"content"
    assert len(files(tmp_path)) == 1


def test_a_key_has_a_file_for_each_suffix(tmp_path: Path) -> None:
    store = Store(tmp_path, LARGE)
    paths = [store.fetch("emulator", key(1), suffix, of(suffix.encode())) for suffix in (".o", ".so", ".o", ".so")]
    assert [path.read_text() for path in paths] == [".o", ".so", ".o", ".so"]


def test_keys_see_the_border_between_parts() -> None:
    assert digest("ab", "c") != digest("a", "bc")


@pytest.mark.parametrize("damage", [b"", b"conten", b"Content", b"content\0"])
def test_a_damaged_file_is_made_anew(damage: bytes, tmp_path: Path) -> None:
    store = Store(tmp_path, LARGE)
    path = store.fetch("cubins", key(1), ".cubin", of(b"content"))
    path.write_bytes(damage)
    assert store.find("cubins", key(1), ".cubin") is None
    assert store.fetch("cubins", key(1), ".cubin", of(b"content")).read_bytes() == b"content"
    assert len(files(tmp_path)) == 1


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise TreadleError("no")

    with pytest.raises(TreadleError, match="no"):
        Store(tmp_path, LARGE).fetch("objects", key(1), ".o", fail)
    assert files(tmp_path) == [] and not list((tmp_path / SCRATCH).iterdir())


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path, 10_000)
    for n in range(9):
        store.fetch("objects", key(n), ".o", of(b"%d" % n * 1000))
    assert store.find("objects", key(0), ".o") is not None  # used again
    store.fetch("objects", key(9), ".o", of(bytes(3000)))
    left = [n for n in range(10) if store.find("objects", key(n), ".o") is not None]
    assert total(tmp_path) <= 10_000
    assert left == [0, *range(4, 10)]


def test_the_limit_holds_for_all_kinds_and_processes_together(tmp_path: Path) -> None:
    for n, kind in enumerate(KINDS):
        Store(tmp_path, LARGE).fetch(kind, key(n), "", of(bytes(3000)))  # as other processes do
    Store(tmp_path, 10_000).fetch("objects", key(99), ".o", of(b"new"))
    assert total(tmp_path) <= 10_000
    assert Store(tmp_path, LARGE).find("objects", key(99), ".o") is not None


def test_files_of_an_earlier_version_are_evicted_too(tmp_path: Path) -> None:
    for name in ("blobs/abc.safetensors", "models/abc/model.so", "objects/ab/.new-x/file.o", "cubins/ab/c.cubin"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(4000))
    store = Store(tmp_path, 3000)
    store.fetch("objects", key(1), ".o", of(b"new"))
    assert total(tmp_path) == 3 and len(files(tmp_path)) == 1


def test_a_folder_that_is_read_stays(tmp_path: Path) -> None:
    def write(folder: Path) -> str:
        (folder / "file").write_bytes(bytes(5000))
        return "0" * 64

    read, unread = (Store(tmp_path, LARGE).add_folder("models", key(n), write) for n in (1, 2))
    lock = share(read)
    assert lock is not None
    store = Store(tmp_path, 1000)
    store.fetch("objects", key(3), ".o", of(b"1"))
    assert read.is_dir() and not unread.exists()
    store.discard(read)
    assert not read.exists()
    assert (Path(f"/proc/self/fd/{lock.descriptor}") / "file").stat().st_size == 5000
    lock.release()
    store.clear()
    assert files(tmp_path) == [] and not list((tmp_path / DISCARDED).iterdir())


def test_what_a_writer_used_stays_until_it_is_done(tmp_path: Path) -> None:
    store = Store(tmp_path, 1000)
    before = store.fetch("objects", key(0), ".o", of(bytes(900)))
    os.utime(before, (1, 1))  # clocks of file systems may be coarse
    with store.writing():
        made = [store.fetch("objects", key(n), ".o", of(bytes(900))) for n in range(1, 4)]
        assert all(path.exists() for path in made) and not before.exists()
    store.fetch("objects", key(4), ".o", of(bytes(900)))
    assert total(tmp_path) <= 1000


def test_a_file_with_several_names_counts_once(tmp_path: Path) -> None:
    store = Store(tmp_path, 10_000)
    data = bytes(6000)
    blob = store.add_content("blobs", digest("x"), memoryview(data))

    def write(folder: Path) -> str:
        os.link(blob, folder / "weights")
        return "0" * 64

    folders = [store.add_folder("models", key(n), write) for n in range(3)]
    assert blob.exists() and all(folder.exists() for folder in folders)
    store.clear()
    assert total(tmp_path) == 0


KILLED = """
import os, signal, sys
from pathlib import Path
from treadle.artifact.store import Store
store = Store(Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["ROOT"]), 1 << 30)
def produce(path):
    path.write_bytes(bytes(1000))
    print("writing", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
store.fetch("objects", "0" * 64, ".o", produce)
"""


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    process = run(KILLED, ROOT=str(tmp_path))
    process.communicate()
    assert process.returncode == -signal.SIGKILL and len(files(tmp_path)) == 1
    with Store(tmp_path, LARGE).writing() as scratch:
        Store(tmp_path, LARGE).fetch("objects", key(1), ".o", of(b"content"))
        assert list((tmp_path / SCRATCH).iterdir()) == [scratch], "a living writer's folder stays"
    assert len(files(tmp_path)) == 1


LIMITED = """
import resource, signal, sys, os
import numpy as np
import treadle
from treadle.errors import TreadleError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    treadle.compile(os.environ["MODEL"])
except TreadleError as error:
    print(error)
"""


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit of a file's size stands in for the disk: the write of the weights fails half-way."""
    model = linear_model(tmp_path / "m.onnx", weights=np.ones((8, 10_000), np.float32))
    process = run(LIMITED, MODEL=str(model), TREADLE_CACHE_DIR=str(tmp_path / "cache"))
    out, err = process.communicate()
    assert err == "" and out.count("\n") == 1
    assert out.startswith(f"{tmp_path / 'cache'}: cannot write the cache: File too large; accepted: TREADLE_CACHE_DIR")
    assert "smaller TREADLE_CACHE_LIMIT" in out
    assert files(tmp_path / "cache") == [] and not list((tmp_path / "cache" / SCRATCH).iterdir())


CHECK = """
import resource, sys
from treadle.tools.treadle_cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(["check", sys.argv[1]]))
"""


def test_a_full_disk_is_no_verdict_on_a_node(tmp_path: Path) -> None:
    model = linear_model(tmp_path / "m.onnx", weights=np.ones((8, 10_000), np.float32))
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(model)], env=environment_with({"TREADLE_CACHE_DIR": str(tmp_path / "cache")}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert "cannot write the cache: File too large" in done.stderr and done.stderr.count("\n") == 1


def set_used(path: Path, when: float) -> None:
    os.utime(path, (when, when))


@pytest.mark.parametrize(("others", "holds"), [(0, True), (86400, False)])
def test_clocks_do_not_evict_what_was_just_made(others: int, holds: bool, tmp_path: Path) -> None:
    """The clock of a file server is behind, or this machine's was set back: other entries seem to be used later. Those
    of the future count as used by whoever is writing."""
    store = Store(tmp_path, 10_000)
    for n in range(3):
        path = store.fetch("objects", key(n), ".o", of(bytes(3000)))
        set_used(path, time.time() + others)

    def produce(path: Path) -> None:
        path.write_bytes(b"new" * 1000)
        set_used(path, time.time() - 86400)

    assert store.fetch("objects", key(9), ".o", produce).exists()
    assert (total(tmp_path) <= 10_000) == holds


def test_a_compiled_model_outlives_its_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TREADLE_CACHE_LIMIT", "1")
    models = [treadle.compile(linear_model(tmp_path / f"{n}.onnx", name=f"x{n}")) for n in range(3)]
    assert all(model.folder.is_dir() for model in models), "what is loaded later is not evicted"
    results = [model(X)[0] for model in models]
    np.testing.assert_array_equal(results[0], results[1])
    folders = [model.folder for model in models]
    del models
    treadle.compile(linear_model(tmp_path / "4.onnx", name="x4"))
    treadle.compile(linear_model(tmp_path / "5.onnx", name="x5"))
    assert not any(folder.is_dir() for folder in folders)


def test_weights_are_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    linear = linear_model(tmp_path / "m.onnx", weights=weights)
    model = treadle.compile(linear)
    assert model.manifest.constants
    for constant in model.manifest.constants:
        stored = model.folder / "weights" / constant.name
        blob = tmp_path / "cache" / "blobs" / constant.name[:2] / constant.name
        assert stored.samefile(blob)
    model.save(tmp_path / "saved")
    for constant in model.manifest.constants:
        assert (tmp_path / "saved" / "weights" / constant.name).stat().st_nlink == 1, "what is saved is the user's own"


def test_threads_and_stores_that_fetch_one_key_get_one_file(tmp_path: Path) -> None:
    paths: list[Path] = []
    together = threading.Barrier(8)

    def fetch() -> None:
        together.wait()
        paths.append(Store(tmp_path, LARGE).fetch("objects", key(1), ".o", of(b"content")))

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(paths)) == 1 and len(paths) == 8 and len(files(tmp_path)) == 1


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TreadleError, match=r"file: cannot write the cache: .*; accepted: TREADLE_CACHE_DIR naming a"):
        Store(tmp_path / "file", LARGE, tmp_path / "file").fetch("objects", key(1), ".o", of(b""))
