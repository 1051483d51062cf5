"""The folder of compiled kernels."""

from pathlib import Path

from treadle.backends.cuda.cache import CubinCache


def test_what_was_stored_is_loaded(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "new")
    key = CubinCache.key("text", "13.0")
    assert cache.load(key) is None
    cache.store(key, b"image")
    assert cache.load(key) == b"image"


def test_storing_replaces_and_leaves_no_other_file(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    key = CubinCache.key("text")
    cache.store(key, b"one")
    cache.store(key, b"two")
    assert cache.load(key) == b"two"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_one_flipped_bit_is_damage(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path)
    key = CubinCache.key("text")
    cache.store(key, b"image")
    (entry,) = tmp_path.rglob("*.cubin")
    stored = bytearray(entry.read_bytes())
    stored[-1] ^= 1
    entry.write_bytes(stored)
    assert cache.load(key) is None


def test_keys_see_the_border_between_parts() -> None:
    assert CubinCache.key("ab", "c") != CubinCache.key("a", "bc")
