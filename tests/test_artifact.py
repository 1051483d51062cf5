"""Artifacts as a stranger may hand them over: damaged, contradictory, for another machine, and built anew."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import treadle
from tests.backends.cuda.fake_driver import FakeDriver
from tests.helpers.onnx_models import WEIGHTS, linear_model
from treadle.artifact.artifact import Artifact, file_digest
from treadle.artifact.manifest import FORMAT, MANIFEST, BufferMap
from treadle.backends.c import open_artifact
from treadle.backends.cuda.open_artifact import open_program
from treadle.backends.interface import kernel_interface
from treadle.errors import TreadleError
from treadle.target import TARGETS
from treadle.target.host import lacks, needs_of

Content = dict[str, Any]

X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
Y = np.maximum(X @ WEIGHTS, 0)
TABLE = np.random.default_rng(2).standard_normal((1 << 14, 128)).astype(np.float32)
UNCHANGED = "accepted: a folder that `treadle compile` or CompiledModel.save wrote, unchanged"


@pytest.fixture(scope="module", params=["cpu", "sm_80"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _saved(tmp_path_factory.mktemp("original"), request.param)


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _saved(tmp_path_factory.mktemp("original"), "cpu")


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _saved(tmp_path_factory.mktemp("original"), "sm_80")


@pytest.fixture(scope="module")
def with_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that looks rows up in a table of 8 MiB."""
    folder = tmp_path_factory.mktemp("table")
    rows = helper.make_node("Gather", ["table", "rows"], ["y"])
    inputs = [helper.make_tensor_value_info("rows", TensorProto.INT64, [4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, TABLE.shape[1]])]
    graph = helper.make_graph([rows], "lookup", inputs, outputs, [numpy_helper.from_array(TABLE, "table")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    treadle.compile(folder / "m.onnx", "cpu").save(folder / "saved")
    return folder / "saved"


def _saved(folder: Path, target: str) -> Path:
    treadle.compile(linear_model(folder / "m.onnx"), target).save(folder / "saved")
    return folder / "saved"


def edited(original: Path, folder: Path, edit: Callable[[Content], object]) -> Path:
    """A copy with another manifest."""
    shutil.copytree(original, folder)
    content = json.loads((folder / MANIFEST).read_text())
    edit(content)
    (folder / MANIFEST).write_text(json.dumps(content))
    return folder


def with_file(original: Path, folder: Path, name: str, data: bytes) -> Path:
    """A copy with another file, and its digest."""
    shutil.copytree(original, folder)
    (folder / name).write_bytes(data)
    return edited(folder, folder.with_name("edited"), lambda m: m["files"].update({name: file_digest(folder / name)}))


def open_anywhere(folder: Path) -> None:
    """Reads all that running the artifact would read, on the CPU or a driver that is played."""
    artifact = Artifact(folder)
    if artifact.manifest.kind == "cpu":
        treadle.load(folder, threads=1).open().close()
        return
    open_program(artifact, PatientDriver({}))


class PatientDriver(FakeDriver):
    """Knows every kernel, and runs none."""

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        return lambda *_: None


def refusal(folder: Path) -> str:
    with pytest.raises(TreadleError) as caught:
        open_anywhere(folder)
    return str(caught.value)


@pytest.mark.parametrize("name", ["model.so", "weights", "mapped", MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "gone", "other", "fifo", "folder", "link"])
def test_a_damaged_file_is_refused_when_it_is_read(
    name: str, damage: str, on_cpu: Path, with_table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(with_table if name == "mapped" else on_cpu, folder)
    path = next((folder / "weights").iterdir()) if name in ("weights", "mapped") else folder / name
    data = path.read_bytes()
    path.unlink()
    match damage:
        case "cut":
            path.write_bytes(data[:-3])
        case "other":
            path.write_bytes(data[:-1] + b"?")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            (tmp_path / "elsewhere").write_bytes(data)
            path.symlink_to(tmp_path / "elsewhere")
        case _:
            pass
    if name != MANIFEST:
        treadle.load(folder)  # reads no file but the manifest
    message = refusal(folder)
    assert message.startswith(str(path)) and "accepted: " in message


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux says what is mapped")
def test_large_weights_are_mapped_while_the_model_is_open(with_table: Path) -> None:
    (weights,) = (with_table / "weights").iterdir()
    with treadle.load(with_table, threads=1) as model:
        np.testing.assert_array_equal(model(np.array([3, 0, 16383, 3]))[0], TABLE[[3, 0, 16383, 3]])
        assert str(weights) in Path("/proc/self/maps").read_text()
    assert str(weights) not in Path("/proc/self/maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux says what is mapped")
@pytest.mark.parametrize("sparse", [True, False])
def test_weights_that_are_read_in_part_are_mapped_in_pieces(sparse: bool, with_table: Path, tmp_path: Path) -> None:
    folder = edited(with_table, tmp_path / "saved", lambda m: None if sparse else m.update(sparse=[]))
    (weights,) = (folder / "weights").iterdir()
    with treadle.load(folder, threads=1) as model:
        np.testing.assert_array_equal(model(np.array([3, 0, 16383, 3]))[0], TABLE[[3, 0, 16383, 3]])
        pieces = Path("/proc/self/maps").read_text().count(str(weights))
    assert pieces == (TABLE.nbytes // (256 << 10) if sparse else 1)


def test_mapped_weights_outlive_their_names(with_table: Path, tmp_path: Path) -> None:
    """The folder is replaced, as when a model is saved again, or evicted from the cache."""
    folder = tmp_path / "saved"
    shutil.copytree(with_table, folder)
    with treadle.load(folder, threads=1) as model:
        model(np.arange(4))
        (weights,) = (folder / "weights").iterdir()
        weights.with_name("new").write_bytes(bytes(weights.stat().st_size))
        weights.with_name("new").replace(weights)
        np.testing.assert_array_equal(model(np.arange(9000, 9004))[0], TABLE[9000:9004])


def test_what_runs_is_what_was_checked(on_cpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is replaced behind the check, as an attacker would in the time before it is loaded."""
    folder = tmp_path / "saved"
    shutil.copytree(on_cpu, folder)
    load, loaded = open_artifact.load_library, list[bytes]()

    def replace_then_load(image: bytes) -> object:
        (folder / "model.so").write_bytes(b"another program")
        loaded.append(image)
        return load(image)

    monkeypatch.setattr("treadle.backends.c.open_artifact.load_library", replace_then_load)
    np.testing.assert_allclose(treadle.load(folder)(X)[0], Y, rtol=1e-5, atol=1e-6)
    assert loaded == [(on_cpu / "model.so").read_bytes()]


@pytest.mark.parametrize("memory_files", [True, False])
def test_two_libraries_from_memory_are_two(memory_files: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(open_artifact, "_has_memory_files", lambda: memory_files)
    before = len(os.listdir("/proc/self/fd"))
    answers: list[int] = []
    for answer in (1, 2, 1):
        path = tmp_path / f"answer{answer}.c"
        path.write_text(f"int answer_{memory_files}(void) {{ return {answer}; }}\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(path.with_suffix(".so")), str(path)], check=True)
        library = open_artifact.load_library(path.with_suffix(".so").read_bytes())
        answers.append(library[f"answer_{memory_files}"]())
    assert answers == [1, 2, 1]
    assert len(os.listdir("/proc/self/fd")) <= before


def test_the_library_says_what_it_expects(on_cpu: Path) -> None:
    library = open_artifact.load_library((on_cpu / "model.so").read_bytes())
    text = open_artifact.ctypes.string_at(
        open_artifact.ctypes.addressof(open_artifact.ctypes.c_char.in_dll(library, "treadle_interface"))
    ).decode()
    lines = text.splitlines()
    assert lines[:3] == ["treadle interface 1", 'input "x" float32[2, 8]', 'output "y" float32[2, 4]']
    assert lines[3].startswith("constant float32[") and lines[-2].startswith("arena ") and lines[-1] == "end"


def _smaller_arena(content: Content) -> None:
    content["arena_bytes"] = content["arena_bytes"] // 2 if content["arena_bytes"] else 1


CONTRADICTIONS: dict[str, Callable[[Content], object]] = {
    "smaller input": lambda m: m["inputs"][0].update(shape=[1, 8]),
    "smaller output": lambda m: m["outputs"][0].update(shape=[2, 2]),
    "narrower type": lambda m: m["outputs"][0].update(dtype="float16"),
    "no output": lambda m: m["outputs"].clear(),
    "no input": lambda m: m["inputs"].clear(),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_manifest_that_contradicts_the_code_is_refused(case: str, original: Path, tmp_path: Path) -> None:
    message = refusal(edited(original, tmp_path / "saved", CONTRADICTIONS[case]))
    assert ("does not fit the library" in message or "contradicts itself" in message) and message.endswith(UNCHANGED)


@pytest.mark.parametrize(
    "edit",
    [
        _smaller_arena,
        lambda m: m["inputs"][0].update(name="z"),
        lambda m: m["constants"][0].update(shape=[1]),
        lambda m: m["constants"].append(m["constants"][0]),
    ],
)
def test_a_manifest_that_contradicts_the_library_is_refused(
    edit: Callable[[Content], object], on_cpu: Path, tmp_path: Path
) -> None:
    assert "model.so: the manifest does not fit the library" in refusal(edited(on_cpu, tmp_path / "saved", edit))


@pytest.mark.parametrize(
    "edit",
    [
        lambda launch: launch["types"][0].__setitem__(1, 1),
        lambda launch: launch.update(grid=[9, 1, 1]),
        lambda launch: launch.update(block=[1, 1, 1]),
        lambda launch: launch.update(dynamic_shared=4),
        lambda launch: launch.update(kernel="another"),
    ],
)
def test_a_manifest_that_contradicts_a_kernel_is_refused(
    edit: Callable[[Content], object], on_gpu: Path, tmp_path: Path
) -> None:
    message = refusal(edited(on_gpu, tmp_path / "saved", lambda m: edit(m["launches"][0])))
    assert "the manifest does not fit kernel '" in message


@pytest.mark.parametrize("needs", ["another", f"{platform.machine()} avx2048"])
def test_a_library_for_another_processor_is_built_anew(needs: str, on_cpu: Path, tmp_path: Path) -> None:
    folder = edited(on_cpu, tmp_path / "saved", lambda m: m.update(machine=needs))
    np.testing.assert_allclose(treadle.load(folder)(X)[0], Y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("needs", "missing"),
    [(f"{platform.machine()} avx2048 fma9", "avx2048, fma9"), ("another asimd fp", "another")],
    ids=["processor", "architecture"],
)
def test_what_a_library_needs_is_named_where_it_cannot_be_built(
    needs: str, missing: str, on_cpu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = edited(on_cpu, tmp_path / "saved", lambda m: m.update(machine=needs))
    monkeypatch.setenv("TREADLE_CC", "no-such-compiler")
    message = refusal(folder)
    assert f"the library needs {missing}, which this machine lacks, and cannot be built anew: " in message
    assert "no-such-compiler" in message and "load(..., rebuild=True)" in message


@pytest.mark.skipif(bool(lacks(needs_of(TARGETS["avx2"]))), reason="no AVX2 here")
def test_an_artifact_says_what_it_needs(tmp_path: Path) -> None:
    model = treadle.compile(linear_model(tmp_path / "m.onnx"), target="avx2")
    model.save(tmp_path / "saved")
    needs = json.loads((tmp_path / "saved" / "manifest.json").read_text())["machine"].split()
    assert needs[0] == "x86_64" and {"avx2", "fma"} <= set(needs) and "avx512f" not in needs
    text = "".join(path.read_text() for path in (tmp_path / "saved" / "kernels").glob("*.c"))
    assert "v8f" in text and "v16f" not in text
    np.testing.assert_allclose(treadle.load(tmp_path / "saved")(X)[0], Y, rtol=1e-5, atol=1e-6)


def test_a_library_that_this_system_cannot_load_is_built_anew(on_cpu: Path, tmp_path: Path) -> None:
    """As a newer C library's symbol versions: the digest is right, and the loader refuses."""
    data = (on_cpu / "model.so").read_bytes()
    assert b"libc.so.6\0" in data
    folder = with_file(on_cpu, tmp_path / "saved", "model.so", data.replace(b"libc.so.6\0", b"libc.so.7\0"))
    np.testing.assert_allclose(treadle.load(folder)(X)[0], Y, rtol=1e-5, atol=1e-6)


def test_nothing_but_text_and_weights_is_read_by_a_rebuild(on_cpu: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(on_cpu, folder)
    (folder / "model.so").unlink()
    os.mkfifo(folder / "model.so")
    np.testing.assert_allclose(treadle.load(folder, rebuild=True)(X)[0], Y, rtol=1e-5, atol=1e-6)


def test_a_rebuild_takes_the_artifacts_own_headers(on_cpu: Path, tmp_path: Path) -> None:
    header = (on_cpu / "kernels" / "pool.h").read_bytes() + b'\n#error "the header of the artifact"\n'
    folder = with_file(on_cpu, tmp_path / "saved", "kernels/pool.h", header)
    treadle.load(folder).open().close()
    with pytest.raises(TreadleError, match="the header of the artifact"):
        treadle.load(folder, rebuild=True).open()


def test_a_rebuild_takes_headers_by_their_paths(on_cpu: Path, tmp_path: Path) -> None:
    shutil.copytree(on_cpu, tmp_path / "saved")
    (tmp_path / "saved" / "kernels" / "zz").mkdir()
    folder = with_file(tmp_path / "saved", tmp_path / "more", "kernels/zz/pool.h", b'#error "another header"\n')
    np.testing.assert_allclose(treadle.load(folder, rebuild=True)(X)[0], Y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["kernels/treadle_run.c", "kernels/pool.c", "kernels/treadle.h"])
def test_changed_text_is_not_built(name: str, on_cpu: Path, tmp_path: Path) -> None:
    shutil.copytree(on_cpu, tmp_path / "saved")
    with (tmp_path / "saved" / name).open("a") as file:
        file.write("/* more */\n")
    with pytest.raises(TreadleError, match=f"{name}: the file is damaged"):
        treadle.load(tmp_path / "saved", rebuild=True).open()


def test_a_rebuild_compares_the_manifest_too(on_cpu: Path, tmp_path: Path) -> None:
    folder = edited(on_cpu, tmp_path / "saved", CONTRADICTIONS["smaller output"])
    with pytest.raises(TreadleError, match="kernels: the manifest does not fit the C text"):
        treadle.load(folder, rebuild=True).open()


def relu_of_product(memory: np.ndarray, x: int, weights: int, y: int) -> None:
    product = memory[x : x + 16].reshape(2, 8) @ memory[weights : weights + 32].reshape(8, 4)
    memory[y : y + 8] = np.maximum(product, 0).reshape(-1)


class TextDriver(FakeDriver):
    """Takes cubins, and notes how large they are."""

    def load(
        self, image: bytes, kernel: str, num_arguments: int, dynamic_shared: int, maps: Sequence[BufferMap] = ()
    ) -> object:
        assert image[:4] == b"\x7fELF" and kernel.encode() in image
        return super().load(b"cubin", kernel, num_arguments, dynamic_shared, maps)


@pytest.mark.parametrize("rebuild", [False, True])
def test_a_gpu_artifact_runs_on_a_driver(rebuild: bool, on_gpu: Path, tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(on_gpu, folder)
    (launch,) = Artifact(folder).manifest.launches
    if rebuild:
        (folder / launch.image).unlink()
    driver = TextDriver({launch.kernel: relu_of_product})
    with open_program(Artifact(folder), driver, rebuild=rebuild) as program:
        np.testing.assert_allclose(program.run([X])[0], Y, rtol=1e-5, atol=1e-6)


def test_a_cubin_says_what_its_launch_is(on_gpu: Path) -> None:
    (launch,) = Artifact(on_gpu).manifest.launches
    assert kernel_interface(launch).encode() in (on_gpu / launch.image).read_bytes()


MALFORMED: dict[str, tuple[Callable[[Content], object], str]] = {
    "no format": (lambda m: m.pop("format"), "format is missing"),
    "dtype": (lambda m: m["inputs"][0].update(dtype="float99"), "inputs[0].dtype is 'float99'; accepted: bool, int8"),
    "object dtype": (lambda m: m["inputs"][0].update(dtype="O"), "inputs[0].dtype is 'O'"),
    "negative shape": (lambda m: m["outputs"][0].update(shape=[-2, 4]), "outputs[0].shape is -2; accepted: a whole"),
    "fractional shape": (lambda m: m["outputs"][0].update(shape=[2.0, 4]), "outputs[0].shape is 2.0"),
    "boolean shape": (lambda m: m["outputs"][0].update(shape=[True, 4]), "outputs[0].shape is True"),
    "shape no list": (lambda m: m["outputs"][0].update(shape="24"), "outputs[0].shape is '24'; accepted: a list"),
    "huge shape": (lambda m: m["inputs"][0].update(shape=[2**40, 2**40]), "larger than the address space"),
    "huge empty shape": (lambda m: m["inputs"][0].update(shape=[0, 2**40, 2**40]), "larger than the address space"),
    "many dimensions": (lambda m: m["inputs"][0].update(shape=[1] * 65), "has 65 dimensions; accepted: at most 64"),
    "infinite arena": (lambda m: m.update(arena_bytes=float("inf")), "Infinity is no number of JSON"),
    "arena that is no number": (lambda m: m.update(arena_bytes=float("nan")), "NaN is no number of JSON"),
    "huge arena": (lambda m: m.update(arena_bytes=2**63), "arena_bytes is 9223372036854775808; accepted: a whole"),
    "kind": (lambda m: m.update(kind="gpu"), "kind is 'gpu'; accepted: cpu, cuda"),
    "no inputs": (lambda m: m.pop("inputs"), "inputs is missing"),
    "no object": (lambda m: m["inputs"].append(3), "inputs[1] is no object"),
    "metadata": (lambda m: m.update(metadata={"a": 1}), "metadata.a is 1; accepted: a string"),
    "files": (lambda m: m.update(files=[]), "files is a list; accepted: an object"),
    "surrogate": (lambda m: m["inputs"][0].update(name="\ud800"), "inputs[0].name is no Unicode text"),
}


def test_an_artifact_of_another_version_is_refused(on_cpu: Path, tmp_path: Path) -> None:
    message = refusal(edited(on_cpu, tmp_path / "saved", lambda m: m.update(format=1)))
    says = f"another version of Treadle wrote this, in format 1; accepted: format {FORMAT}: compile the model again"
    assert message == f"{tmp_path / 'saved' / MANIFEST}: {says}"


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_manifest_is_one_error(case: str, on_cpu: Path, tmp_path: Path) -> None:
    edit, says = MALFORMED[case]
    message = refusal(edited(on_cpu, tmp_path / "saved", edit))
    assert message.startswith(f"{tmp_path / 'saved' / MANIFEST}: the manifest is damaged: ") and says in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "the manifest is damaged"),
        (b"{", "the manifest is damaged"),
        (b"\xff\xfe\x00", "the manifest is damaged"),
        (b"[" * 100_000, "the manifest is damaged"),
        (b'{"a":' * 100_000, "the manifest is damaged"),
        (b"[]", "its text is no object"),
        (b'{"format": 5, "format": 5}', "a key appears twice"),
        (b'{"format": ' + b"9" * 5000 + b"}", "the manifest is damaged"),
        (b'{"format": 1e999}', "format is inf"),
    ],
)
def test_a_text_that_is_no_manifest_is_one_error(text: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(text)
    assert says in refusal(tmp_path)


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    assert "it has more than 67108864 bytes" in refusal(tmp_path)


@pytest.mark.parametrize("name", ["../model.so", "/etc/passwd", "kernels/../../model.so", "a\0b"])
def test_a_file_outside_of_the_folder_is_not_read(name: str, on_cpu: Path, tmp_path: Path) -> None:
    folder = edited(on_cpu, tmp_path / "saved", lambda m: m["files"].update({name: "0" * 64}))
    with pytest.raises(TreadleError, match="leaves the artifact's folder"):
        treadle.load(folder).save(tmp_path / "copy")


VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, "", "x", "float64", "arena", "../..", "\0",
    "\ud800", [], [[]], [0], [-1], [2**40] * 3, {}, {"": 0},
)  # fmt: skip


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a JSON value, with each of its keys."""
    keys = content.keys() if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in list(keys):
        yield content, key
        yield from places(content[key])


def mutate(content: Content, rng: np.random.Generator) -> None:
    found = list(places(content))
    container, key = found[rng.integers(len(found))]
    match int(rng.integers(4)):
        case 0:
            del container[key]
        case 1:
            other, from_key = found[rng.integers(len(found))]
            container[key] = json.loads(json.dumps(other[from_key]))
        case _:
            container[key] = VALUES[rng.integers(len(VALUES))]


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_manifest_opens_or_is_one_error(seed: int, original: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    shutil.copytree(original, tmp_path / "saved")
    text = (original / MANIFEST).read_text()
    refused = 0
    for _ in range(100):
        content = json.loads(text)
        for _ in range(rng.integers(1, 4)):
            mutate(content, rng)
        (tmp_path / "saved" / MANIFEST).write_text(json.dumps(content))
        try:
            open_anywhere(tmp_path / "saved")
        except TreadleError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 50
