"""External data that a model may not have: each is refused before it is opened, and at once."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import treadle
from tests.frontends.onnx.models import model, node
from treadle.artifact.manifest import Source
from treadle.errors import TreadleError
from treadle.frontends.onnx import import_model

SECONDS = 30
WEIGHT = np.arange(64, dtype=np.float32).reshape(8, 8)
X = np.ones((2, 8), np.float32)


@pytest.fixture(autouse=True)
def time_guard() -> Iterator[None]:
    """What blocks or never ends fails instead."""

    def late(signum: int, frame: object) -> None:
        raise AssertionError(f"still busy after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def make_external(tensor: TensorProto, *entries: tuple[str, str]) -> TensorProto:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)
    return tensor


def saved(folder: Path, *entries: tuple[str, str], dead: tuple[tuple[str, str], ...] = ()) -> Path:
    """`x @ w` with `w` in external data; with `dead`, also an initialiser and a node that no output needs."""
    proto = model([node("MatMul", "x w", "y", "product")], {"x": [2, 8]}, weights={"w": WEIGHT})
    make_external(proto.graph.initializer[0], *entries)
    if dead:
        add_dead_tensors(proto, *dead)
    folder.mkdir(exist_ok=True)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"


def add_dead_tensors(proto: ModelProto, *entries: tuple[str, str]) -> None:
    proto.graph.initializer.append(make_external(TensorProto(name="dead", data_type=1, dims=[8, 8]), *entries))
    tensor = make_external(TensorProto(name="t", data_type=1, dims=[8, 8]), *entries)
    proto.graph.node.append(helper.make_node("Constant", [], ["unread"], name="constant", value=tensor))


def link_out(folder: Path) -> str:
    (folder.parent / "secret.bin").write_bytes(WEIGHT.tobytes())
    (folder / "link.bin").symlink_to("../secret.bin")
    return "link.bin"


def link_to_a_device(folder: Path) -> str:
    (folder / "zero.bin").symlink_to("/dev/zero")
    return "zero.bin"


def circle(folder: Path) -> str:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    return "a"


def fifo(folder: Path) -> str:
    os.mkfifo(folder / "fifo")
    return "fifo"


def unix_socket(folder: Path) -> str:
    with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # the path of a socket has at most 107 bytes
        server.bind("socket")
    return "socket"


def subfolder(folder: Path) -> str:
    (folder / "sub").mkdir()
    return "sub"


def file_as_folder(folder: Path) -> str:
    (folder / "w.bin").write_bytes(b"")
    return "w.bin/w.bin"


HOSTILE: dict[str, tuple[Callable[[Path], str], str]] = {
    "absolute": (lambda _: "/etc/passwd", "'/etc/passwd' leaves the model's folder"),
    "upwards": (lambda _: "../../../../../../../../../../etc/passwd", "leaves the model's folder"),
    "upwards and back": (lambda folder: f"../{folder.name}/../secret.bin", "leaves the model's folder"),
    "device": (lambda _: "/dev/zero", "'/dev/zero' leaves the model's folder"),
    "the folder itself": (lambda _: ".", "'.' is a folder; accepted: a regular file inside"),
    "no location": (lambda _: "", "'' leaves the model's folder"),
    "NUL": (lambda _: "a\0b", "leaves the model's folder"),
    "long": (lambda _: "a" * 100_000, "aaaa... cannot be read: File name too long"),
    "link out": (link_out, "'link.bin' leaves the model's folder"),
    "link to a device": (link_to_a_device, "'zero.bin' leaves the model's folder"),
    "links in a circle": (circle, "'a' "),
    "FIFO": (fifo, "'fifo' is a FIFO; accepted: a regular file inside"),
    "socket": (unix_socket, "'socket' is a socket; accepted: a regular file inside"),
    "folder": (subfolder, "'sub' is a folder; accepted: a regular file inside"),
    "file as a folder": (file_as_folder, "'w.bin/w.bin' cannot be read: Not a directory"),
    "missing": (lambda _: "none.bin", "'none.bin' is missing; accepted: that file inside"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_location_is_refused(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make, says = HOSTILE[case]
    with pytest.raises(TreadleError) as caught:
        treadle.compile(saved(folder, ("location", make(folder))))
    assert str(caught.value).startswith("initialiser 'w': external data ") and says in str(caught.value)


@pytest.mark.parametrize("case", HOSTILE)
def test_what_no_output_needs_is_not_opened(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "good.bin").write_bytes(WEIGHT.tobytes())
    path = saved(folder, ("location", "good.bin"), dead=(("location", HOSTILE[case][0](folder)),))
    for compiled in (treadle.compile(path), treadle.compile(path)):  # the cache compares external data
        np.testing.assert_array_equal(compiled(X)[0], X @ WEIGHT)
        assert [source.location for source in compiled.manifest.sources] == ["good.bin"]


@pytest.mark.parametrize("key", ["location", "offset", "length", "checksum"])
def test_a_doubled_key_is_an_error(key: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    entries = {"location": "w.bin", "offset": "0", "length": "256", "checksum": "00"}
    path = saved(tmp_path, *entries.items(), (key, entries[key]))
    with pytest.raises(
        TreadleError, match=f"initialiser 'w': external data has '{key}' twice; accepted: each key once"
    ):
        import_model(path)


@pytest.mark.parametrize("number", ["-1", "1e3", "0x10", "9" * 5000, "²", " 4"])
@pytest.mark.parametrize("key", ["offset", "length"])
def test_no_number_is_an_error(key: str, number: str, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = saved(tmp_path, ("location", "w.bin"), (key, number))
    with pytest.raises(TreadleError, match=f"external data has {key} .*; accepted: a whole number from 0 upwards"):
        import_model(path)


def test_of_a_huge_file_only_the_parts_that_are_read_count(tmp_path: Path) -> None:
    with (tmp_path / "huge.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(WEIGHT.tobytes())
        file.truncate(1 << 40)  # a hole: no such bytes are on the disk
    path = saved(tmp_path, ("location", "huge.bin"), ("offset", str(1 << 20)))
    compiled = treadle.compile(path)
    np.testing.assert_array_equal(compiled(X)[0], X @ WEIGHT)
    (source,) = compiled.manifest.sources
    assert (source.location, source.offset, source.nbytes) == ("huge.bin", 1 << 20, 256)


def test_changed_data_outside_of_what_is_read_keeps_the_cached_model(tmp_path: Path) -> None:
    path = saved(tmp_path, ("location", "w.bin"), ("offset", "4"))
    folders: list[Path] = []
    for head, weight in ((b"head", WEIGHT), (b"more", WEIGHT), (b"more", WEIGHT * 2)):
        (tmp_path / "w.bin").write_bytes(head + weight.tobytes())
        compiled = treadle.compile(path)
        np.testing.assert_array_equal(compiled(X)[0], X @ weight)
        folders.append(compiled.folder)
        assert isinstance(compiled.manifest.sources[0], Source)
    assert folders[0] == folders[1]


def test_data_that_became_a_fifo_is_not_compared(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    path = saved(tmp_path, ("location", "w.bin"))
    treadle.compile(path)
    (tmp_path / "w.bin").unlink()
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(TreadleError, match=r"'w\.bin' is a FIFO"):
        treadle.compile(path)


def test_many_tensors_in_one_file_need_one_descriptor(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    proto = model([node("Sum", " ".join(f"w{n}" for n in range(300)), "s"), node("Add", "x s", "y")], {"x": [8, 8]})
    for n in range(300):
        proto.graph.initializer.append(
            make_external(TensorProto(name=f"w{n}", data_type=1, dims=[8, 8]), ("location", "w.bin"))
        )
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    before = len(os.listdir("/proc/self/fd"))
    module = import_model(tmp_path / "m.onnx")
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    module.verify()


def as_in_a_hub(folder: Path) -> Path:
    """A model in the layout of a model hub's cache: the files of a snapshot are links to files that digests name."""
    snapshot, blobs = folder / "snapshots" / "1", folder / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    saved(blobs, ("location", "w.bin")).rename(blobs / "0123")
    (blobs / "4567").write_bytes(WEIGHT.tobytes())
    (snapshot / "m.onnx").symlink_to("../../blobs/0123")
    (snapshot / "w.bin").symlink_to("../../blobs/4567")
    return snapshot / "m.onnx"


def test_model_and_data_may_be_links_into_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    path = as_in_a_hub(tmp_path)
    first = treadle.compile(path)
    x = np.ones(first.inputs[0].shape, np.float32)
    np.testing.assert_allclose(first(x)[0], x @ WEIGHT, rtol=1e-5)
    assert treadle.compile(path).folder == first.folder, "the cache compares the data"
    (tmp_path / "blobs" / "4567").write_bytes((2 * WEIGHT).tobytes())
    np.testing.assert_allclose(treadle.compile(path)(x)[0], 2 * x @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("location", ["../../blobs/4567", "../../secret.bin", "secret.bin"])
def test_links_of_a_hub_lead_into_one_folder_only(location: str, tmp_path: Path) -> None:
    path = as_in_a_hub(tmp_path)
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    (path.parent / "secret.bin").symlink_to("../../secret.bin")
    saved(tmp_path, ("location", location)).rename(tmp_path / "blobs" / "0123")
    with pytest.raises(TreadleError, match="leaves the model's folder"):
        import_model(path)
