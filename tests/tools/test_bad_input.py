"""Every input that must be refused: one line on stderr, exit status 2, no traceback, nothing left behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.onnx_models import external_model, linear_model, single_node_model
from treadle.api import compile
from treadle.tools.reporting import run_reporting
from treadle.tools.treadle_cli import main
from treadle.tools.treadle_opt import main as opt_main

Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


def refused(capsys: pytest.CaptureFixture[str], status: int, *words: str) -> None:
    """The tool ended with 2 and one line on stderr that holds all the words."""
    message = capsys.readouterr().err
    assert status == 2, message
    assert message.count("\n") == 1 and message.endswith("\n"), message
    for word in words:
        assert word in message, message


def corrupt(folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(b"\xff" * 64)
    return path


def truncated(folder: Path) -> Path:
    path = linear_model(folder / "m.onnx")
    path.write_bytes(path.read_bytes()[:-40])
    return path


def empty(folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(b"")
    return path


NESTED = {
    "a chain of index arithmetic": (
        "".join(f"  %v{n + 1} = arith.addi %v{n}, %v{n} : index\n" for n in range(1500))
        + "  %p = arith.cmpi slt, %v1500, %v0 : index\n"
    ),
    "loops inside each other": (
        "  %c = arith.constant 1 : index\n"
        + "".join(f"scf.for %i{n} = %c to %v0 step %c {{\n" for n in range(400)) + "}\n" * 400
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("options", [["-p", "loop-simplify-index"], ["--from", "plan"]])
def test_ir_that_nests_too_deeply(
    body: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "deep.mlir"
    path.write_text(f"loop.func @k(%A : memref<4xf32>) grid(%b in 8) threads(%v0 in 1) {{\n{body}}}\n")
    refused(capsys, opt_main([str(path), *options]), "nests too deeply; accepted: fewer")


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "m.onnx")
    return folder / "m.onnx"


def huge(folder: Path) -> Path:
    """More than fits into memory, and nearly nothing on the disk."""
    with (folder / "m.onnx").open("wb") as file:
        file.truncate(1 << 40)
    return folder / "m.onnx"


REFUSED_MODELS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "corrupt": (corrupt, ("m.onnx", "corrupt or truncated", "accepted: a complete .onnx file")),
    "truncated": (truncated, ("m.onnx", "truncated", "accepted: a complete .onnx file")),
    "empty": (empty, ("m.onnx", "accepted: a complete .onnx file")),
    "absent": (lambda folder: folder / "m.onnx", ("m.onnx", "No such file", "accepted: the path of")),
    "folder": (lambda folder: folder, ("is a folder", "accepted: the path of")),
    "fifo": (fifo, ("m.onnx: is a FIFO, not a regular file", "accepted: the path of")),
    "huge": (huge, ("m.onnx: has 1099511627776 bytes", "accepted: the path of", "of at most 2147483647 bytes")),
    "external data missing": (
        lambda folder: external_model(folder / "m.onnx", "w.bin"),
        ("initialiser 'w'", "'w.bin' is missing", "accepted:"),
    ),
    "external data outside": (
        lambda folder: external_model(folder / "m.onnx", "../w.bin"),
        ("initialiser 'w'", "leaves the model's folder", "accepted: a relative path"),
    ),
    "unsupported operator": (
        lambda folder: single_node_model(folder / "m.onnx", "Frobnicate"),
        ("node 'only'", "Frobnicate", "accepted:"),
    ),
    "unsupported opset": (
        lambda folder: linear_model(folder / "m.onnx", opset=99),
        ("opset 99 is not supported", "accepted: MatMul of opset 1 to "),
    ),
    "dynamic dimension": (
        lambda folder: linear_model(folder / "m.onnx", rows="batch"),
        ("input 'x'", "'batch'", "accepted: --shape x=<batch>,8", "a range such as 1..64"),
    ),
}


@pytest.mark.parametrize("case", REFUSED_MODELS)
def test_compile_refuses_a_model(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = REFUSED_MODELS[case]
    source = tmp_path / "source"
    source.mkdir()
    output = tmp_path / "output"
    refused(capsys, main(["compile", str(make(source)), "-o", str(output)]), *words)
    assert not output.exists()
    assert sorted(tmp_path.iterdir()) in ([source], [tmp_path / "cache", source])
    assert list((tmp_path / "cache").glob("models/*")) == []


@pytest.mark.parametrize("case", ["corrupt", "absent"])
def test_check_and_treadle_opt_refuse_a_model(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = REFUSED_MODELS[case]
    path = str(make(tmp_path))
    refused(capsys, main(["check", path]), *words)
    refused(capsys, opt_main([path]), words[0], "accepted:")


def test_treadle_opt_refuses_a_dynamic_dimension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(linear_model(tmp_path / "m.onnx", rows="batch"))
    refused(capsys, opt_main([path]), "input 'x'", "'batch'", "accepted:")


def test_check_names_every_unsupported_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = single_node_model(tmp_path / "m.onnx", "Frobnicate")
    assert main(["check", str(path)]) == 1
    assert "unsupported: node 'only' (Frobnicate" in capsys.readouterr().out


def npy(folder: Path, array: np.ndarray) -> str:
    path = folder / "array.npy"
    np.save(path, array)
    return str(path)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("z", np.zeros((2, 8), np.float32), ("'z'", "accepted: x")),
        ("x", np.zeros((3, 8), np.float32), ("input 'x'", "accepted:", "2,8")),
        ("x", np.zeros((2, 8), np.float64), ("input 'x'", "float64[2, 8]", "accepted: x: float32[2, 8]")),
    ],
    ids=["name", "shape", "dtype"],
)
def test_run_refuses_an_input(
    name: str,
    array: np.ndarray,
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = linear_model(tmp_path / "m.onnx")
    status = main(["run", str(path), "--input", f"{name}={npy(tmp_path, array)}"])
    refused(capsys, status, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--input", "x"], ("--input", "accepted: NAME=FILE.npy")),
        (["--input", "x=absent.npy"], ("absent.npy", "accepted: a .npy file")),
        (["--shape", "x=2,a"], ("--shape", "accepted: NAME=D0,D1")),
        (["--shape", "z=2,8"], ("'z'", "accepted: x")),
        (["--threads", "0"], ("--threads", "accepted: 1 upwards")),
        (["--seed", "-1"], ("--seed", "accepted: 0 upwards")),
        (["--target", "gpu"], ("unknown target 'gpu'", "accepted: cpu, avx512, ")),
        (["--frobnicate"], ("--frobnicate", "accepted: what `treadle --help` lists")),
    ],
)
def test_run_refuses_an_argument(
    arguments: list[str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, main(["run", str(linear_model(tmp_path / "m.onnx")), *arguments]), *words)


def test_two_arrays_for_an_input_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--input", f"x={npy(tmp_path, np.zeros((2, 8), np.float32))}"]
    status = main(["run", str(linear_model(tmp_path / "m.onnx")), *given, *given])
    refused(capsys, status, "two arrays for input 'x'", "accepted: one array an input")


@pytest.mark.parametrize("option", [["--check"], ["--shape", "x=2,8"], ["--target", "cpu"]])
def test_a_compiled_folder_cannot_follow(option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compile(linear_model(tmp_path / "m.onnx")).save(tmp_path / "saved")
    status = main(["run", str(tmp_path / "saved"), *option])
    refused(capsys, status, f"{option[0]} needs the model itself", "accepted: an .onnx file")


def test_a_folder_that_is_no_compiled_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, main(["run", str(tmp_path)]), "no compiled model", "accepted: a folder that `treadle compile`")
    (tmp_path / "manifest.json").write_text("{")
    refused(capsys, main(["run", str(tmp_path)]), "the manifest is damaged", "accepted:")


@pytest.mark.parametrize("to", [[], ["--to", "import"]], ids=["code", "stage"])
def test_a_trace_inside_of_the_output_is_refused(
    to: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, output = str(linear_model(tmp_path / "m.onnx")), tmp_path / "output"
    status = main(["compile", model, *to, "-o", str(output), "--trace", str(output / "trace")])
    refused(capsys, status, str(output / "trace"), "accepted: another folder")
    assert not output.exists()


def test_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fill() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    refused(capsys, run_reporting("treadle", fill), "treadle: cannot read or write: No space left on device")


def test_a_pickled_array_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = npy(tmp_path, np.array([{}], dtype=object))
    model = linear_model(tmp_path / "m.onnx")
    refused(capsys, main(["run", str(model), "--input", f"x={file}"]), "accepted: a .npy file without objects")


def test_no_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TREADLE_CC", str(tmp_path / "no-such-compiler"))
    model, output = linear_model(tmp_path / "m.onnx"), tmp_path / "output"
    refused(
        capsys,
        main(["compile", str(model), "-o", str(output)]),
        "no-such-compiler",
        "accepted: TREADLE_CC or CC naming a C compiler",
    )
    assert not output.exists()


def test_a_c_compiler_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho 'error: out of thread' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("TREADLE_CC", str(compiler))
    model, output = linear_model(tmp_path / "m.onnx"), tmp_path / "output"
    refused(capsys, main(["compile", str(model), "-o", str(output)]), "error: out of thread")
    assert not output.exists() and list((tmp_path / "cache").glob("models/*")) == []


@pytest.mark.parametrize("to", [[], ["--to", "import"]], ids=["code", "stage"])
def test_an_output_that_cannot_be_written(to: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    (tmp_path / "file").write_text("")
    below_file = str(tmp_path / "file" / "output")
    refused(capsys, main(["compile", model, *to, "-o", below_file]), below_file, "accepted:")
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("")
    refused(capsys, main(["compile", model, *to, "-o", str(full)]), "holds other files", "accepted:")
    assert [path.name for path in full.iterdir()] == ["precious"]


def test_an_unknown_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    status = main(["compile", model, "--to", "fused", "-o", str(tmp_path / "output")])
    refused(capsys, status, "unknown stage 'fused'", "accepted: import, graph, define, fuse")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "func.func @main(%x: memref<4x4xf32>, %i: index) {\n"
            "  %v = memref.load %x[%i] : memref<4x4xf32>\n  func.return\n}",
            "xpected an index for each dimension",
        ),
        (
            "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
            '  %y = graph.fused "a" {\n    graph.yield %later : tensor<4xf32>\n  } : tensor<4xf32>\n'
            "  %later = graph.unary relu %x : tensor<4xf32>\n  func.return %y : tensor<4xf32>\n}",
            "",
        ),
    ],
)
def test_what_xdsl_raises_of_bad_ir_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text(text)
    assert opt_main([str(path), "--from", "loops", "--to", "lower"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
