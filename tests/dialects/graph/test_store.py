"""The blob store: what goes in comes out, and damage is found and named."""

import mmap
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import TensorType, bf16, f32, f64, i32

from treadle.artifact.store import Store
from treadle.dialects.graph import BlobAttr, ConstantOp, InlineAttr
from treadle.dialects.graph.attributes import digest_of
from treadle.dialects.graph.constant import BlobStore, constant_array, constant_attribute, default_store
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError
from treadle.support.mapped import release_pages

ARRAY = np.arange(24, dtype=np.float32).reshape(4, 6)
TYPE = TensorType(f32, [4, 6])
LIMIT = 1 << 30


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_blob_survives_the_process(tmp_path: Path) -> None:
    blob = BlobStore(Store(tmp_path, LIMIT)).put(ARRAY)
    again = BlobStore(Store(tmp_path, LIMIT)).get(blob, TYPE)
    np.testing.assert_array_equal(again, ARRAY)
    assert not again.flags.writeable


def test_a_large_blob_is_mapped(tmp_path: Path) -> None:
    large = np.ones((1 << 20,), np.float64)
    blob = BlobStore(Store(tmp_path, LIMIT)).put(large[::2])
    got = BlobStore(Store(tmp_path, LIMIT)).get(blob, TensorType(i32, [1 << 20]))
    np.testing.assert_array_equal(got.view(np.float64), large[::2])


def test_threads_read_blobs_that_others_push_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are compiled at the same time have more constants than are kept in memory."""
    monkeypatch.setattr("treadle.dialects.graph.constant._KEPT_BYTES", 2 * ARRAY.nbytes)
    store = BlobStore(Store(tmp_path, LIMIT))
    arrays = [ARRAY + n for n in range(4)]
    blobs = [store.put(array) for array in arrays]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def read(first: int) -> None:
        for n in range(4000):
            chosen = (first + n * n) % len(blobs)
            np.testing.assert_array_equal(store.get(blobs[chosen], TYPE), arrays[chosen])

    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(read, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_equal_arrays_share_a_file(tmp_path: Path) -> None:
    store = BlobStore(Store(tmp_path, LIMIT))
    assert store.put(ARRAY) == store.put(np.asfortranarray(ARRAY))
    (file,) = files(tmp_path)
    assert file.read_bytes() == ARRAY.tobytes()


@pytest.mark.parametrize("count", [4, 400])
def test_bfloat16_reads_back_bit_by_bit(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    values = (np.arange(count, dtype=np.float32) / 3).astype(numpy_dtype(bf16))
    op = ConstantOp(constant_attribute(values), TensorType(bf16, [count]))
    op.verify()
    np.testing.assert_array_equal(constant_array(op).view(np.uint16), values.view(np.uint16))


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damage_is_named_and_repaired_by_put(tmp_path: Path, damage: str) -> None:
    blob = BlobStore(Store(tmp_path, LIMIT)).put(ARRAY)
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes({"flip": bytes(data), "truncate": bytes(data[:-3]), "empty": b""}[damage])
    with pytest.raises(TreadleError, match=rf"{blob.digest.data} is damaged; accepted: .*delete it"):
        BlobStore(Store(tmp_path, LIMIT)).get(blob, TYPE)
    BlobStore(Store(tmp_path, LIMIT)).put(ARRAY)
    np.testing.assert_array_equal(BlobStore(Store(tmp_path, LIMIT)).get(blob, TYPE), ARRAY)


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    blob = BlobAttr.get("sha256:" + "0" * 64, 96)
    with pytest.raises(TreadleError, match=r"the store has no constant sha256:0000.*TREADLE_CACHE_DIR"):
        BlobStore(Store(tmp_path, LIMIT)).get(blob, TYPE)


def test_a_blob_of_another_size_is_rejected(tmp_path: Path) -> None:
    blob = BlobStore(Store(tmp_path, LIMIT)).put(ARRAY)
    with pytest.raises(TreadleError, match="has 96 bytes, which is no tensor<4x5xf32>"):
        BlobStore(Store(tmp_path, LIMIT)).get(blob, TensorType(f32, [4, 5]))


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TreadleError, match=r"cannot write the cache: .*accepted: TREADLE_CACHE_DIR naming"):
        BlobStore(Store(tmp_path / "file", LIMIT, tmp_path / "file")).put(ARRAY)


def test_constants_are_inline_or_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path))
    assert isinstance(constant_attribute(ARRAY[:2]), InlineAttr)
    value = constant_attribute(ARRAY)
    assert isinstance(value, BlobAttr)
    assert default_store().path(value.digest.data).is_file()
    np.testing.assert_array_equal(constant_array(ConstantOp(value, TYPE)), ARRAY)


def mapped(folder: Path, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """The array in a file that is mapped, behind other bytes."""
    path = folder / "weights"
    path.write_bytes(bytes(4096) + array.tobytes())
    return np.memmap(path, array.dtype, "r", 4096, array.shape)


LARGE = np.arange(3 << 19, dtype=np.float64)
LARGE_TYPE = TensorType(f64, [3 << 19])


def test_mapped_constants_are_stored_when_a_file_is_needed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    store = BlobStore(Store(cache, LIMIT))
    with store.deferred():
        blob = store.put(mapped(tmp_path, LARGE))
        assert files(cache) == []
        np.testing.assert_array_equal(store.get(blob, LARGE_TYPE), LARGE)
        assert store.file(blob.digest.data).read_bytes() == LARGE.tobytes()
    np.testing.assert_array_equal(BlobStore(Store(cache, LIMIT)).get(blob, LARGE_TYPE), LARGE)


def test_deferred_constants_are_gone_afterwards(tmp_path: Path) -> None:
    store = BlobStore(Store(tmp_path / "cache", LIMIT))
    with store.deferred():
        with store.deferred():
            blob = store.put(mapped(tmp_path, LARGE))
        np.testing.assert_array_equal(store.get(blob, LARGE_TYPE), LARGE)
    with pytest.raises(TreadleError, match="the store has no constant"):
        store.get(blob, LARGE_TYPE)


def test_what_other_threads_put_is_stored(tmp_path: Path) -> None:
    """A module that is imported while another thread compiles a model with the same weights."""
    store, array = BlobStore(Store(tmp_path / "cache", LIMIT)), mapped(tmp_path, LARGE)
    with ThreadPoolExecutor(1) as other, store.deferred():
        mine = store.put(array)
        assert other.submit(store.put, array).result() == mine
        assert store.path(mine.digest.data).is_file()
    np.testing.assert_array_equal(store.get(mine, LARGE_TYPE), LARGE)


def test_threads_that_defer_the_same_constant(tmp_path: Path) -> None:
    """It stays as long as one of them is at it."""
    store, array = BlobStore(Store(tmp_path / "cache", LIMIT)), mapped(tmp_path, LARGE)

    def put() -> None:
        with store.deferred():
            store.put(array)

    with ThreadPoolExecutor(1) as other, store.deferred():
        blob = store.put(array)
        other.submit(put).result()
        np.testing.assert_array_equal(store.get(blob, LARGE_TYPE), LARGE)
    assert files(tmp_path / "cache") == []


@pytest.mark.parametrize("array", [LARGE, ARRAY], ids=["memory", "small"])
def test_other_constants_are_not_deferred(array: NDArray[np.generic], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    store = BlobStore(Store(cache, LIMIT))
    with store.deferred():
        store.put(array if array is LARGE else mapped(tmp_path, array))
        assert len(files(cache)) == 1


def test_deferred_memory_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a model's weights is that of the part of its file, too."""
    counted: list[int] = []

    def count(data: NDArray[np.generic]) -> str:
        counted.append(data.nbytes)
        return digest_of(data)

    monkeypatch.setattr("treadle.dialects.graph.constant.digest_of", count)
    store = BlobStore(Store(tmp_path / "cache", LIMIT))
    array = mapped(tmp_path, LARGE)
    with store.deferred():
        blob = store.put(array)
        assert store.digest(array.view(np.uint8)) == blob.digest.data
        assert store.digest(array.view(np.uint8)[8:]) != blob.digest.data
    assert counted == [LARGE.nbytes, LARGE.nbytes - 8]


def test_a_file_is_compared_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of constants that were dropped from memory the file is not read again, unless another one took its place."""
    monkeypatch.setattr("treadle.dialects.graph.constant._KEPT_BYTES", 1)
    store = BlobStore(Store(tmp_path, LIMIT))
    blob, other = store.put(ARRAY), store.put(ARRAY + 1)
    with monkeypatch.context() as patch:
        patch.setattr("treadle.dialects.graph.constant.digest_of", None)
        np.testing.assert_array_equal(store.get(blob, TYPE), ARRAY)
        np.testing.assert_array_equal(store.get(other, TYPE), ARRAY + 1)
    path = store.path(blob.digest.data)
    (tmp_path / "new").write_bytes((ARRAY + 2).tobytes())
    (tmp_path / "new").replace(path)
    with pytest.raises(TreadleError, match="is damaged"):
        store.get(blob, TYPE)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="a system that keeps pages")
def test_pages_are_released_and_read_again(tmp_path: Path) -> None:
    array = mapped(tmp_path, LARGE)
    assert array.sum() == LARGE.sum()
    before = resident_file_bytes()
    release_pages(array)
    assert resident_file_bytes() <= before - LARGE.nbytes // 2
    np.testing.assert_array_equal(array, LARGE)
    release_pages(LARGE)


def resident_file_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssFile:"))
