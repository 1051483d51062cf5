"""Targets that no table lists: their values reach every pass, the cache's keys, resumed stages and compiled kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

import treadle
from tests.helpers.emulator_cache import cache_with_emulator
from tests.helpers.graphs import Graph, random
from tests.helpers.onnx_models import linear_model
from treadle.artifact.artifact import Artifact
from treadle.compiler.request import CompileRequest, lowered_module
from treadle.dialects.graph import AttentionOp, FusedOp, MatmulOp
from treadle.environment import load_environment
from treadle.errors import TreadleError
from treadle.passes.instruments import ir_text
from treadle.target import TARGETS, Target
from treadle.tools import treadle_cli, treadle_opt

A100 = TARGETS["sm_80"]
SLICE = replace(A100, device="a multiprocessor of an A100", multiprocessors=1)
ROWS, TERMS, COLUMNS = 16, 512, 26


def product() -> tuple[ModuleOp, NDArray[Any], NDArray[Any]]:
    """A product of many terms and few elements, an input, and what it gives in f64."""
    graph = Graph(random(ROWS, TERMS))
    weights = random(TERMS, COLUMNS)
    module = graph.module(graph.add(MatmulOp(graph[0], graph.constant(weights))))
    return module, graph.inputs[0], graph.inputs[0].astype(np.float64) @ weights


def decisions(module: ModuleOp) -> list[str]:
    return [str(op.schedule) for op in module.walk() if isinstance(op, FusedOp)]


def test_one_multiprocessor_needs_no_slices() -> None:
    decided = {
        target: decisions(lowered_module(CompileRequest(product()[0], target), to="schedule"))
        for target in (A100, SLICE)
    }
    (whole,), (one,) = decided[A100], decided[SLICE]
    assert "matmul_simt" in whole and "split_k = 4" in whole
    assert "matmul_simt" in one and "split_k = 1" in one


def test_models_for_two_targets_of_one_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(cache_with_emulator(tmp_path)))
    module, x, expected = product()
    folders: set[Path] = set()
    for target in (A100, SLICE, str(SLICE), replace(SLICE, device="another product")):
        model = treadle.compile(module, target, device="emulator")
        np.testing.assert_allclose(model(x)[0], expected, rtol=0, atol=1e-4)
        folders.add(model.folder)
    assert len(folders) == 3 == len(list((load_environment().cache_dir / "models").glob("*/*")))
    texts = {Artifact(folder).module_text() for folder in folders}
    assert len(texts) == 2, "a device's name alone changes no code"


def test_stages_resume_for_such_a_target(tmp_path: Path) -> None:
    """From one border to the next, so that each stage runs once more."""
    source, saved, straight, resumed = (str(tmp_path / name) for name in ("in.mlir", "saved.mlir", "a.cu", "b.cu"))
    Path(source).write_text(ir_text(product()[0]))
    pipeline = ["--pipeline", str(SLICE)]
    assert treadle_opt.main([source, *pipeline, "-t", "cuda", "-o", straight]) == 0  # verified after each pass
    pipeline.append("--disable-verify")
    previous: list[str] = []
    for stage in ("import", "define", "fuse", "schedule", "kernels"):
        assert treadle_opt.main([source, *previous, *pipeline, "--to", stage, "-o", saved]) == 0
        source, saved, previous = saved, source, ["--from", stage]
    assert treadle_opt.main([source, *previous, *pipeline, "-t", "cuda", "-o", resumed]) == 0
    assert Path(resumed).read_text() == Path(straight).read_text()


def attention() -> tuple[ModuleOp, list[NDArray[Any]], NDArray[Any]]:
    """One head, and what it gives in f64."""
    q, k, v = (random(1, 1, 24, 128, seed=seed) for seed in range(3))
    graph = Graph(q, k, v)
    module = graph.module(graph.add(AttentionOp(graph[0], graph[1], graph[2], scale=0.1)))
    scores = 0.1 * q[0, 0].astype(np.float64) @ k[0, 0].T.astype(np.float64)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return module, [q, k, v], (weights / weights.sum(1, keepdims=True) @ v[0, 0])[None, None]


def test_attention_is_taken_apart_where_no_tile_of_it_fits() -> None:
    small = replace(A100, device="little memory", shared_per_block=6 << 10, shared_per_block_static=6 << 10)
    module, inputs, expected = attention()
    assert any(
        "attention" in text for text in decisions(lowered_module(CompileRequest(module.clone(), A100), to="schedule"))
    )
    decided = decisions(lowered_module(CompileRequest(module.clone(), small), to="schedule"))
    assert decided and not any("attention" in text for text in decided)
    (actual,) = treadle.compile(module, small, device="emulator")(*inputs)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)


def test_the_command_line_takes_its_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    model = str(linear_model(tmp_path / "m.onnx"))
    text = "sm_80{multiprocessors=14 device='a seventh'}"
    assert treadle_cli.main(["run", model, "--target", text, "--device", "emulator", "--check"]) == 0
    assert ": agrees" in capsys.readouterr().out
    assert treadle_cli.main(["run", model, "--target", "sm_80{cores=14}", "--device", "emulator"]) == 2
    assert "target: there is no field 'cores'; accepted: kind, device" in capsys.readouterr().err


def test_a_target_that_is_none() -> None:
    with pytest.raises(TreadleError, match="multiprocessors is -1"):
        replace(A100, multiprocessors=-1)
    with pytest.raises(TreadleError, match=r"cannot read the target 'sm_80\{'"):
        treadle.compile(product()[0], "sm_80{")
    assert Target.parse(str(SLICE)) == SLICE
