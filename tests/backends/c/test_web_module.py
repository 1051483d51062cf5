"""`--target wasm`: a model as a module of WebAssembly gives in Node and in a browser what the compiler gives here."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import treadle
from tests.backends.c.test_static_library import X, classifier
from tests.backends.c.toolchains import COMMANDS, private_environment
from tests.frontends.onnx.test_grouped_query_past import Cache
from tests.helpers.onnx_models import WEIGHTS, linear_model, save_model, value
from tests.helpers.waiting import HANGS
from tests.models.catalog import require_model
from tests.test_states import KEPT, call
from treadle.artifact.manifest import Manifest
from treadle.backends.c.compiler import find_toolchain
from treadle.backends.c.web_module import check_addresses
from treadle.errors import TreadleError
from treadle.target import TARGETS
from treadle.tools.treadle_cli import main

Array = NDArray[Any]
NODE, CHROMIUM = shutil.which("node"), shutil.which("chromium")
needs_zig = pytest.mark.skipif("zig" not in COMMANDS, reason="no ziglang")
needs_node = pytest.mark.skipif(NODE is None, reason="no node")

CALLS = """
import { readFile, writeFile } from "node:fs/promises";
import { load } from "./built/m.mjs";
const ARRAYS = { float32: Float32Array, int64: BigInt64Array, int32: Int32Array, bool: Uint8Array, uint8: Uint8Array };
const { calls } = JSON.parse(await readFile("calls.json"));
const model = await load();
for (const [n, { inputs, extents }] of calls.entries()) {
    const given = {};
    for (const [name, dtype, file] of inputs) {
        const bytes = await readFile(file);
        given[name] = new ARRAYS[dtype](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
    }
    const outputs = model.run(given, extents);
    const shapes = {};
    for (const [i, [name, { data, shape }]] of Object.entries(outputs).entries()) {
        await writeFile(`made-${n}-${i}`, data);
        shapes[name] = shape;
    }
    console.log(JSON.stringify(shapes));
}
"""


def compiled(path: Path | str, folder: Path, *options: str) -> Path:
    asked = ["--target", "wasm", "--emit", "c-library", "--name", "m", "-o", str(folder / "built")]
    assert main(["compile", str(path), *asked, *options]) == 0
    return folder / "built"


def calls_in_node(
    folder: Path, feeds: Sequence[Mapping[str, Array]], extents: Sequence[Mapping[str, int]], dtypes: Mapping[str, str]
) -> list[dict[str, Array]]:
    """The outputs of calls of the module in `folder / "built"`, whose outputs have these types."""
    calls: list[dict[str, object]] = []
    for n, (feed, given) in enumerate(zip(feeds, extents, strict=True)):
        inputs: list[tuple[str, str, str]] = []
        for i, (name, array) in enumerate(feed.items()):
            (folder / f"given-{n}-{i}").write_bytes(array.tobytes())
            inputs.append((name, array.dtype.name, f"given-{n}-{i}"))
        calls.append({"inputs": inputs, "extents": dict(given)})
    (folder / "calls.json").write_text(json.dumps({"calls": calls}))
    (folder / "calls.mjs").write_text(CALLS)
    assert NODE is not None
    done = subprocess.run([NODE, "calls.mjs"], cwd=folder, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Array]] = []
    for n, line in enumerate(done.stdout.splitlines()):
        shapes: dict[str, list[int]] = json.loads(line)
        made = {
            name: np.frombuffer((folder / f"made-{n}-{i}").read_bytes(), dtypes[name]).reshape(shape)
            for i, (name, shape) in enumerate(shapes.items())
        }
        results.append(made)
    return results


@pytest.mark.slow
@needs_zig
@needs_node
def test_a_range_of_shapes(tmp_path: Path) -> None:
    linear_model(tmp_path / "m.onnx", rows="n")
    built = compiled(tmp_path / "m.onnx", tmp_path, "--shape", "x=n:1..9,8")
    assert {path.name for path in built.iterdir()} == {"libm.a", "m.h", "m.html", "m.mjs", "m.wasm", "m.weights"}
    feeds = [{"x": np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)} for n in (1, 5, 9)]
    results = calls_in_node(tmp_path, feeds, [{"n": 1}, {"n": 5}, {}], {"y": "float32"})
    for feed, result in zip(feeds, results, strict=True):
        np.testing.assert_allclose(result["y"], np.maximum(feed["x"] @ WEIGHTS, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@needs_zig
@needs_node
def test_whole_numbers_of_64_bits(tmp_path: Path) -> None:
    """`long` has 32 bits there."""
    path = classifier(tmp_path / "c.onnx")
    compiled(path, tmp_path)
    (made,) = calls_in_node(tmp_path, [{"x": X}], [{}], {"scores": "float32", "class": "int64"})
    scores, classes = treadle.compile(path)(X)
    np.testing.assert_allclose(made["scores"], scores, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(made["class"], classes)
    big = np.array([1 << 40, -(1 << 62) - 5, 3, -7], np.int64)
    nodes = [helper.make_node("Mul", ["x", "x"], ["p"]), helper.make_node("Sub", ["p", "x"], ["y"])]
    path = save_model(
        tmp_path / "i.onnx", nodes, [value("x", (4,), TensorProto.INT64)], [value("y", (4,), TensorProto.INT64)]
    )
    compiled(path, tmp_path)
    (made,) = calls_in_node(tmp_path, [{"x": big}], [{}], {"y": "int64"})
    np.testing.assert_array_equal(made["y"], big * big - big)


@pytest.mark.slow
@needs_zig
@needs_node
def test_states_are_kept(tmp_path: Path) -> None:
    cache = Cache(rotary=True)
    (tmp_path / "m.onnx").write_bytes(cache.file.SerializeToString())
    ranges = [f"{dim.name}={dim.least}..{dim.greatest}" for dim in cache.shapes.values()]
    shapes = [word for text in ranges for word in ("--shape", text)]
    pairs = [word for name, output in KEPT.items() for word in ("--states", f"{name}={output}")]
    compiled(tmp_path / "m.onnx", tmp_path, *shapes, *pairs)
    rows = (5, 1, 1)
    feeds = [call(cache, sum(rows[:n]), each) for n, each in enumerate(rows)]
    with treadle.compile(cache.file, shapes=cache.shapes, states=KEPT) as model:
        expected = [model.run(feed)["y"] for feed in feeds]
    made = calls_in_node(tmp_path, feeds, [{"s": each} for each in rows], {"y": "float32"})
    for result, own in zip(made, expected, strict=True):
        np.testing.assert_allclose(result["y"], own, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_zig
@needs_node
@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_resnet50", "ppocr_cls"])
def test_whole_models_give_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    """The light ones have constant weights, the last one those that it was trained to."""
    model = require_model(name)
    shapes = [f"{name}={','.join(map(str, shape))}" for name, shape in model.input_shapes.items()]
    built = compiled(model.path(), tmp_path, *(word for shape in shapes for word in ("--shape", shape)))
    assert b"\xfd" in (built / "m.wasm").read_bytes(), "instructions of SIMD begin with this byte"
    session, feed = onnxruntime.InferenceSession(str(model.path())), model.sample_inputs()
    names = [each.name for each in session.get_outputs()]
    (made,) = calls_in_node(tmp_path, [feed], [{}], dict.fromkeys(names, "float32"))
    for own, expected in zip(names, session.run(None, feed), strict=True):
        wanted = np.asarray(expected)
        np.testing.assert_allclose(made[own], wanted, rtol=1e-3, atol=1e-5 * float(np.abs(wanted).max()))


@pytest.mark.slow
@needs_zig
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_a_browser_shows_what_the_model_gives(tmp_path: Path) -> None:
    linear_model(tmp_path / "m.onnx", rows=2)
    built = compiled(tmp_path / "m.onnx", tmp_path)
    handler = partial(SimpleHTTPRequestHandler, directory=str(built))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
        ]
        address = f"http://127.0.0.1:{server.server_address[1]}/m.html"
        dumped = subprocess.run(
            [*command, "--virtual-time-budget=20000", "--dump-dom", address],
            capture_output=True, text=True, check=True, timeout=HANGS,
        )  # fmt: skip
        server.shutdown()
    shown = re.search(r'<pre id="result">y \[2,4\]: (.*?)</pre>', html.unescape(dumped.stdout))
    assert shown is not None, dumped.stdout
    x = np.sin(np.arange(16)).astype(np.float32).reshape(2, 8)
    np.testing.assert_allclose(np.array(shown[1].split(), float), np.maximum(x @ WEIGHTS, 0).ravel(), rtol=1e-5)


@pytest.mark.slow
@needs_zig
@needs_node
def test_what_is_wrong_is_an_error(tmp_path: Path) -> None:
    linear_model(tmp_path / "m.onnx", rows="n")
    built = compiled(tmp_path / "m.onnx", tmp_path, "--shape", "x=n:1..9,8")
    lines = ['import { load } from "./built/m.mjs";', "const model = await load(), x = new Float32Array(8);"]
    wrong = {
        "model.run({})": "input 'x' is missing",
        "model.run({ x }, { n: 2 })": "input 'x' is no Float32Array of 16 elements (float32[2,8])",
        "model.run({ x: [1, 2] }, { n: 1 })": "input 'x' is no Float32Array of 8 elements",
        "model.run({ x }, { n: 10 })": "an extent is out of its dimension's range",
        "model.run({ x }, { m: 1 })": "there is no dimension 'm'",
        "model.inputShape('z')": "there is no input 'z'",
    }
    for words in wrong:
        lines.append(f"try {{ {words}; console.log('none'); }} catch (error) {{ console.log(error.message); }}")
    (tmp_path / "wrong.mjs").write_text("\n".join(lines))

    def said(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(NODE), script], cwd=tmp_path, capture_output=True, text=True, check=False)

    for line, message in zip(said("wrong.mjs").stdout.splitlines(), wrong.values(), strict=True):
        assert line.startswith(message)
    weights = (built / "m.weights").read_bytes()
    (tmp_path / "load.mjs").write_text(lines[0] + "await load();")
    (built / "m.weights").write_bytes(weights[:-1])
    assert "m.weights has 127 bytes instead of 128" in said("load.mjs").stderr
    (built / "m.weights").write_bytes(bytes([weights[0] ^ 1]) + weights[1:])
    assert "its sha256 differs" in said("load.mjs").stderr


@needs_zig
def test_float16_is_refused(tmp_path: Path) -> None:
    path = linear_model(tmp_path / "m.onnx")
    with pytest.raises(TreadleError, match=r"target wasm: '.*' computes with float16; accepted: a model of f32"):
        treadle.compile(path, target="wasm", precision="f16", cached=False)


def test_a_model_beyond_its_addresses_is_refused() -> None:
    manifest = Manifest(target="wasm", kind="cpu", inputs=(), outputs=(), constants=(), arena_bytes=1 << 31)
    with pytest.raises(TreadleError, match="target wasm: the model takes 2147483648 bytes; accepted: up to 2147483647"):
        check_addresses(manifest)
    check_addresses(dataclasses.replace(manifest, arena_bytes=(1 << 31) - 1))


@needs_zig
def test_zig_is_told_what_to_compile_for(tmp_path: Path) -> None:
    chosen = dataclasses.replace(private_environment(tmp_path), c_compiler=())
    toolchain = find_toolchain(chosen, TARGETS["wasm"])
    assert toolchain.is_wasm and toolchain.command[-2:] == ("-target", "wasm32-wasi")
    assert "-march=generic+simd128" in toolchain.flags
