"""treadle-opt: what it accepts, and how it complains."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.helpers.onnx_models import linear_model
from treadle.passes.registry import PASSES
from treadle.tools.treadle_opt import main

TASKS = """
func.func @main(%t: index) {
  task.for (%i) in #task.map<repeat(4)>(%t) {
    "test.op"(%i) : (index) -> ()
  }
  func.return
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))


def opt(text: str, *arguments: str, folder: Path) -> int:
    """Runs the tool on a file `in.mlir` that holds `text`."""
    path = folder / "in.mlir"
    path.write_text(text)
    return main([str(path), *arguments])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    message = capsys.readouterr().err
    assert message.count("\n") == 1, message
    return message


def test_stdin_is_read_when_no_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"builtin.module {}")))
    assert main([]) == 0
    assert "builtin.module" in capsys.readouterr().out


def test_an_onnx_model_becomes_graph_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = linear_model(tmp_path / "m.onnx", rows="n")
    assert main([str(path), "--shape", "x=2,8"]) == 0
    text = capsys.readouterr().out
    assert "graph.matmul" in text and "tensor<2x8xf32>" in text


def test_stages_resume_from_saved_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    stages = ["import", "graph", "define", "fuse", "schedule", "kernels"]
    files = {stage: tmp_path / f"{stage}.mlir" for stage in stages}
    for stage, file in files.items():
        assert main([model, "--pipeline", "cpu", "--to", stage, "-o", str(file)]) == 0
    resumed = tmp_path / "resumed.mlir"
    for stage in stages[:-1]:
        assert main([str(files[stage]), "--from", stage, "--to", "kernels", "-o", str(resumed)]) == 0
        assert resumed.read_text() == files["kernels"].read_text(), stage


def test_a_trace_holds_the_ir_after_every_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    assert main([model, "--to", "fuse", "--trace", str(tmp_path / "trace")]) == 0
    names = sorted(path.name for path in (tmp_path / "trace").iterdir())
    assert names[0] == "00-import.mlir"
    texts = [(tmp_path / "trace" / name).read_text() for name in names]
    assert len(set(texts)) == len(texts) > 3, "a pass that changes nothing writes nothing"
    assert names[-1].endswith("-graph-fuse.mlir")
    printed = capsys.readouterr().out.replace(' attributes {treadle.stage = "fuse"}', "")
    assert (tmp_path / "trace" / names[-1]).read_text().strip() == printed.strip()


def test_malformed_ir_names_file_line_and_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt(TASKS.replace("index)", "indx)", 1), folder=tmp_path) == 2
    assert f"{tmp_path}/in.mlir:2:21: type expected" in complaint(capsys)


def test_an_unknown_operation_is_located(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt("func.func @f() {\n  graph.frobnicate\n}", folder=tmp_path) == 2
    assert f"{tmp_path}/in.mlir:2:3: " in complaint(capsys)


def test_ir_that_does_not_verify_is_located(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "func.func @f(%x: i32) -> f32 {\n  func.return %x : i32\n}"
    assert opt(text, folder=tmp_path) == 2
    message = complaint(capsys)
    assert f"{tmp_path}/in.mlir:2:3: 'func.return' does not verify" in message


def test_text_that_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "in.mlir"
    path.write_bytes(b"\xff\xfe")
    assert main([str(path)]) == 2
    assert "accepted: IR as UTF-8 text" in complaint(capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-p", "task-lowr"], ("unknown pass 'task-lowr'", "task-lower")),
        (["-p", "no-such-pass"], ("unknown pass 'no-such-pass'", "accepted: graph-inline-control, ")),
        (["-p", "schedule-select{colour=red}"], ("pass 'schedule-select'", "accepted: the options target")),
        (["-p", "task-lower{"], ("passes: cannot read", "accepted: names like")),
        (["-t", "fortran"], ("invalid choice: 'fortran'", "accepted: what `treadle-opt --help` lists")),
        (["--pipeline", "gpu"], ("unknown target 'gpu'", "accepted: cpu, avx512, ")),
        (["--to", "kernel"], ("unknown stage 'kernel'", "accepted: import, graph")),
        (
            ["--from", "loops", "--to", "graph"],
            ("stage 'graph' comes before 'loops'", "accepted: lower"),
        ),
    ],
)
def test_what_is_unknown_is_named_with_what_would_do(
    arguments: list[str], words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert opt(TASKS, *arguments, folder=tmp_path) == 2
    message = complaint(capsys)
    assert all(word in message for word in words), message


def test_passes_are_listed_with_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--list-passes"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition("{")[0] for line in lines if not line.startswith(" ")]
    assert left.value.code in (None, 0)
    assert names == sorted(names) and set(PASSES) <= set(names)
    assert 'graph-fuse{target="cpu" explain=false}' in "\n".join(lines)
    assert lines[lines.index("task-lower") + 1].startswith("    Turns each `task.for` into one loop per")
    assert all(line.startswith("    ") and len(line) > 12 for line in lines[1::2])


def test_an_illegal_stage_border_names_the_operation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt(TASKS, "--from", "fuse", "--to", "schedule", folder=tmp_path) == 2
    assert "in.mlir:3:3: 'task.for' may not remain after stage 'fuse'" in complaint(capsys)


def test_an_unknown_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(b"")
    assert main([str(path)]) == 2
    assert "unknown format '.tflite'; accepted: .mlir, .onnx" in complaint(capsys)


def test_a_failed_run_leaves_no_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.mlir"
    assert opt("func.func", "-o", str(output), folder=tmp_path) == 2
    assert "in.mlir:1:" in complaint(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["in.mlir"]


def test_an_output_in_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt(TASKS, "-o", str(tmp_path / "absent" / "out.mlir"), folder=tmp_path) == 2
    assert "accepted: a file in a folder that can be written" in complaint(capsys)


@pytest.mark.parametrize(("target", "kind"), [("c", "a CPU"), ("cuda", "a GPU")])
def test_printing_a_module_without_kernels_is_an_error(
    target: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "empty.mlir"
    source.write_text("func.func @main() {\n  func.return\n}\n")
    assert main([str(source), "-t", target]) == 2
    assert f"accepted: a module that {kind}'s stages have lowered" in capsys.readouterr().err


def test_stages_are_timed_pass_by_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(linear_model(tmp_path / "m.onnx"))
    assert main([model, "--to", "fuse", "--time-passes"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[1] for line in captured.err.splitlines()][-1] == "graph-required-regions"
    assert captured.out.startswith("builtin.module")


def test_cuda_text_comes_from_a_gpu_s_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, scheduled = str(linear_model(tmp_path / "m.onnx")), str(tmp_path / "s.mlir")
    assert main([model, "--pipeline", "sm_80", "--to", "schedule", "-o", scheduled]) == 0
    assert main([scheduled, "--from", "schedule", "-t", "cuda"]) == 0
    assert "__global__" in capsys.readouterr().out
