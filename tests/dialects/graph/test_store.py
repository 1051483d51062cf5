"""The blob store: what goes in comes out, and damage is found and named."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import TensorType, bf16, f32, i32

from treadle.artifact.store import Store
from treadle.dialects.graph import BlobAttr, ConstantOp, InlineAttr
from treadle.dialects.graph.constant import BlobStore, constant_array, constant_attribute, default_store
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.errors import TreadleError

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
