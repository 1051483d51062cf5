"""What is in a cache is run: nothing is read that another user could have written, and what is made is private.

Users who are not root cannot give files away: those tests are skipped for them.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType, f32

import treadle
from tests.helpers.environment import environment_with
from tests.helpers.forked import status_of_child
from tests.helpers.onnx_models import linear_model
from treadle.artifact.store import KINDS, Store, digest
from treadle.dialects.graph.constant import BlobStore
from treadle.errors import TreadleError, TreadleWarning
from treadle.support.files import why_shared

LARGE = 1 << 30
OTHER = 54321
"""A user without an entry in the system's table."""
X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
KEY = digest("key")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def write(data: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(data), None)[1]


def store_at(folder: Path) -> Store:
    return Store(folder / "cache", LARGE, folder / "other")


def give_away(path: Path) -> None:
    os.chown(path, OTHER, OTHER)


def open_to_all(path: Path) -> None:
    path.chmod(0o777)


def open_to_a_group(path: Path) -> None:
    os.chown(path, -1, 12345)
    path.chmod(0o775)


@pytest.mark.parametrize("spoil", [pytest.param(give_away, marks=as_root), open_to_all])
@pytest.mark.parametrize("level", ["cache", "cache/objects", f"cache/objects/{KEY[:2]}"])
def test_a_folder_of_others_is_ignored_with_one_warning(
    level: str, spoil: Callable[[Path], None], tmp_path: Path
) -> None:
    planted = store_at(tmp_path).fetch("objects", KEY, ".o", write(b"planted"))
    spoil(tmp_path / level)
    store = store_at(tmp_path)
    with pytest.warns(TreadleWarning, match=re.escape(f"{tmp_path / level}")) as warned:
        own = [store.fetch("objects", KEY, ".o", write(b"own")) for _ in range(2)]
    assert len(warned) == 1 and len(set(own)) == 1
    assert own[0].is_relative_to(tmp_path / "other") and own[0].read_bytes() == b"own"
    assert planted.read_bytes() == b"planted"


@as_root
def test_a_group_of_several_may_not_write(tmp_path: Path) -> None:
    store_at(tmp_path).fetch("objects", KEY, ".o", write(b"planted"))
    open_to_a_group(tmp_path / "cache")
    with pytest.warns(TreadleWarning, match="others may write"):
        assert store_at(tmp_path).find("objects", KEY, ".o") is None


def test_folders_above_the_cache_count(tmp_path: Path) -> None:
    store = Store(tmp_path / "shared" / "mine" / "cache", LARGE, tmp_path / "other")
    store.fetch("objects", KEY, ".o", write(b"planted"))
    (tmp_path / "shared").chmod(0o777)
    again = Store(store.root, LARGE, tmp_path / "other")
    with pytest.warns(TreadleWarning, match=r"others may write .*shared \(its mode is 777\)"):
        assert again.find("objects", KEY, ".o") is None
    (tmp_path / "shared").chmod(0o1777)
    assert Store(store.root, LARGE, tmp_path / "other").find("objects", KEY, ".o") is not None


@pytest.mark.parametrize("spoil", [pytest.param(give_away, marks=as_root), open_to_all])
def test_an_entry_of_others_is_made_anew(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    def fill(folder: Path) -> str:
        (folder / "file").write_bytes(b"planted")
        return digest("planted")

    store = store_at(tmp_path)
    file, folder = store.fetch("objects", KEY, ".o", write(b"planted")), store.add_folder("models", KEY, fill)
    spoil(file)
    spoil(folder / "file")
    assert store_at(tmp_path).find("objects", KEY, ".o") is None
    assert store_at(tmp_path).folders("models", KEY) == []
    assert store_at(tmp_path).fetch("objects", KEY, ".o", write(b"own")).read_bytes() == b"own"


@as_root
def test_a_constant_of_others_is_not_read(tmp_path: Path) -> None:
    array = np.arange(40, dtype=np.float32)
    blob = BlobStore(store_at(tmp_path)).put(array)
    path = BlobStore(store_at(tmp_path)).path(blob.digest.data)
    give_away(path)
    store = BlobStore(store_at(tmp_path))
    with pytest.raises(TreadleError, match="the store has no constant"):
        store.get(blob, TensorType(f32, [40]))
    store.put(array)
    assert path.stat().st_uid == os.geteuid()


@as_root
def test_code_that_another_user_planted_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is sound by its digests: the other user made it with the same version, and then made it his."""
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    model = linear_model(tmp_path / "m.onnx")
    planted = treadle.compile(model).folder
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        give_away(path)
    (tmp_path / "cache").chmod(0o777)
    code = "import sys, treadle; print(treadle.compile(sys.argv[1]).folder)"
    done = run_python(code, str(model))
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(tmp_path / "cache")
    assert done.stderr.count("TreadleWarning") == 1 and f"belongs to user {OTHER}" in done.stderr
    assert planted.is_dir()


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment_with(environment), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_what_is_made_is_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    def fill(folder: Path) -> str:
        (folder / "weights").mkdir()
        (folder / "weights" / "file").write_bytes(b"1")
        return digest("1")

    before = os.umask(umask)
    try:
        store = Store(tmp_path / "a" / "cache", LARGE, tmp_path / "other")
        store.fetch("objects", KEY, ".o", write(b"object"))
        store.add_folder("models", KEY, fill)
        store.add_content("blobs", digest("blob"), memoryview(b"blob"))
    finally:
        os.umask(before)
    made = [tmp_path / "a", *(tmp_path / "a").rglob("*")]
    assert len(made) > 8
    for path in made:
        assert why_shared(path) is None, path
    for kind in KINDS:
        assert not (tmp_path / "a" / "cache" / kind).exists() or private(tmp_path / "a" / "cache" / kind)
    assert private(tmp_path / "a") and private(tmp_path / "a" / "cache")


def private(folder: Path) -> bool:
    return stat.S_IMODE(folder.stat().st_mode) == 0o700


def in_the_way(kind: str, path: Path) -> None:
    """Something else in the place of an entry."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link":
        target = path.parents[3] / "elsewhere"
        target.write_bytes(b"object")
        path.symlink_to(target)
    elif kind == "folder":
        (path / "inner").mkdir(parents=True)
    else:
        path.write_bytes(b"file")


@pytest.mark.parametrize("kind", ["fifo", "device", "link", "folder"])
def test_what_is_no_file_is_replaced(kind: str, tmp_path: Path) -> None:
    store = store_at(tmp_path)
    path = store.fetch("objects", KEY, ".o", write(b"object"))
    in_the_way(kind, path)
    assert store.find("objects", KEY, ".o") is None
    assert store.fetch("objects", KEY, ".o", write(b"object")).read_bytes() == b"object"
    assert path.is_file() and not path.is_symlink()


@pytest.mark.parametrize("kind", ["fifo", "device", "link", "folder"])
@pytest.mark.parametrize("size", [40, 1024])
def test_what_is_no_file_is_no_constant(kind: str, size: int, tmp_path: Path) -> None:
    """A folder has as many bytes as the larger constant, on many file systems."""
    array = np.arange(size, dtype=np.float32)
    blob = BlobStore(store_at(tmp_path)).put(array)
    path = BlobStore(store_at(tmp_path)).path(blob.digest.data)
    in_the_way(kind, path)
    with pytest.raises(TreadleError, match="the store has no constant"):
        BlobStore(store_at(tmp_path)).get(blob, TensorType(f32, [size]))
    BlobStore(store_at(tmp_path)).put(array)
    assert path.is_file() and not path.is_symlink()


@pytest.mark.parametrize("kind", ["fifo", "device", "link", "file"])
def test_what_is_no_folder_is_no_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    model = linear_model(tmp_path / "m.onnx")
    folder = treadle.compile(model).folder
    in_the_way(kind, folder)
    again = treadle.compile(model)
    assert again.folder == folder and again(X)[0].shape == (2, 4)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach; those of pytest are closed to others."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_other_user(action: Callable[[], None]) -> Callable[[], None]:
    def act() -> None:
        os.setgroups([])
        os.setgid(OTHER)
        os.setuid(OTHER)
        action()

    return act


@as_root
def test_a_read_only_cache_is_read(public_folder: Path) -> None:
    """As one in a container's image, which root filled: new entries go elsewhere, with one warning."""
    path = Store(public_folder / "cache", LARGE).fetch("objects", KEY, ".o", write(b"of root"))
    for each in (public_folder / "cache", *(public_folder / "cache").rglob("*")):
        each.chmod(0o755)
    (public_folder / "tmp").mkdir()
    give_away(public_folder / "tmp")

    def fetch() -> None:
        store = Store(public_folder / "cache", LARGE, public_folder / "tmp" / "other")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert store.fetch("objects", KEY, ".o", write(b"own")) == path and not warned
            own = [store.fetch("objects", digest("2"), ".o", write(b"own")) for _ in range(2)]
        assert own[0] == own[1] and own[0].is_relative_to(public_folder / "tmp" / "other")
        assert len(warned) == 1 and "Permission denied" in str(warned[0].message)
        again = Store(public_folder / "cache", LARGE, public_folder / "tmp" / "other")
        assert again.find("objects", digest("2"), ".o") == own[0]

    assert status_of_child(as_other_user(fetch)) == 0


@as_root
def test_entries_that_cannot_be_removed_are_an_error(public_folder: Path) -> None:
    path = Store(public_folder / "cache", LARGE).fetch("objects", KEY, ".o", write(b"of root"))
    for each in (public_folder / "cache", *(public_folder / "cache").rglob("*")):
        each.chmod(0o755)

    def clear() -> None:
        with pytest.raises(TreadleError, match=r"entries that cannot be removed: 1 \(Permission denied\)"):
            Store(public_folder / "cache", LARGE, public_folder / "other").clear()

    assert status_of_child(as_other_user(clear)) == 0
    assert path.exists()
    Store(public_folder / "cache", LARGE).clear()
    assert not path.exists()


def test_a_store_without_any_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "a", LARGE, tmp_path / "file" / "b")
    assert store.find("objects", KEY, ".o") is None
    with pytest.raises(TreadleError, match=r"file/a: cannot write the cache: .*file: Not a directory; accepted: TREAD"):
        store.fetch("objects", KEY, ".o", write(b""))
