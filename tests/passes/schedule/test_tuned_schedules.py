"""Schedules from a database: taken where they are legal, and named in a warning where they are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.parser import Parser

import treadle
from tests.helpers.graphs import Graph
from treadle.artifact.cache import kernel_fingerprint
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import FusedOp, MatmulOp, UnaryOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import ProgramOp, UseAttr
from treadle.errors import TreadleError
from treadle.passes.registry import parse_passes
from treadle.passes.schedule.instance import group_program
from treadle.passes.schedule.schedule_select import add_program
from treadle.schedules.search.database import Database, Record
from treadle.schedules.search.database_files import slug
from treadle.schedules.search.programs import decisions_of
from treadle.target import Target
from treadle.target.host import hardware_of, host_target

CPU = Target.parse("cpu")
TUNED = UseAttr.get("matmul_cpu", {"rows": 2, "vectors": 2, "chunk": 6, "pack": True, "passes": 1})
RECORD = Record(1.5, 2.5, "cpu", hardware_of(CPU), "gcc", kernel_fingerprint(), "2026-11-22")


PROGRAM = """
schedule.program @tiled for "cpu" {
  %i, %j, %k = schedule.axes 2 spatial, 1 reduction
  %t = schedule.sample "rows" from [3, 4] taken 3
  %v, %w = schedule.sample_tile "vector" 2 from [1, 2, 8] product 8 to 16 taken [2, 8]
  %i0, %i1 = schedule.split %i by (%t)
  %j0, %j1, %j2 = schedule.split %j by (%v, %w)
  schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1, %j2)
  schedule.mark vector %j2
}
"""


def tiled(text: str = PROGRAM) -> ProgramOp:
    (found,) = Parser(treadle_context(), text).parse_module().body.block.ops
    assert isinstance(found, ProgramOp)
    return found


def layer() -> ModuleOp:
    """relu(x w), as graph operators."""
    graph = Graph(np.zeros((24, 16), np.float32), np.zeros((16, 40), np.float32))
    return graph.module(graph.add(UnaryOp("relu", graph.add(MatmulOp(graph[0], graph[1])))))


def fused_layer() -> ModuleOp:
    """The same as one group."""
    module = layer()
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    return module


def groups(module: ModuleOp) -> list[FusedOp]:
    return [op for op in module.walk() if isinstance(op, FusedOp)]


def tuned(folder: Path, use: UseAttr | ProgramOp = TUNED, record: Record = RECORD) -> Path:
    """A database with an entry for the layer; the entry's path."""
    program = group_program(groups(fused_layer())[0])
    return Database(folder).write(program.module, program.digest(), use, record)


def selected(folder: Path, target: str = "cpu") -> UseAttr | None:
    """The decision that the pass writes."""
    module = fused_layer()
    (select,) = parse_passes(f'schedule-select{{target={target} database="{folder}"}}')
    select.apply(treadle_context(), module)
    found = groups(module)[0].schedule
    assert found is None or isinstance(found, UseAttr)
    return found


def test_a_tuned_schedule_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tuned(tmp_path)
    assert selected(tmp_path) == TUNED
    assert capfd.readouterr().err == ""


def test_another_group_takes_its_default(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tuned(tmp_path)
    path.rename(path.with_name(f"matmul-{'0' * 12}.mlir"))
    assert selected(tmp_path) not in (None, TUNED)
    assert capfd.readouterr().err == ""


def test_a_decision_by_hand_stays(tmp_path: Path) -> None:
    tuned(tmp_path)
    module, byhand = (
        fused_layer(),
        UseAttr.get("matmul_cpu", {"rows": 3, "vectors": 2, "chunk": 3, "pack": False, "passes": 1}),
    )
    groups(module)[0].schedule = byhand
    (select,) = parse_passes(f'schedule-select{{target=cpu database="{tmp_path}"}}')
    select.apply(treadle_context(), module)
    assert groups(module)[0].schedule == byhand


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (UseAttr.get("matmul_cpu", {"rows": 15, "vectors": 2, "chunk": 15, "pack": True, "passes": 1}), "rows"),
        (
            UseAttr.get("matmul_cpu", {"rows": 2, "vectors": 2, "chunk": 7, "pack": True, "passes": 1}),
            "overrun a chunk of 7 rows by 1",
        ),
        (UseAttr.get("matmul_cpu", {"rows": 2}), "needs a value for vectors, chunk, pack, passes"),
        (UseAttr.get("gone", {}), "unknown template 'gone'"),
        (UseAttr.get("matmul_simt", {}), "is for cuda targets, not cpu"),
        (UseAttr.get("row_cpu", {}), "does not schedule graph.matmul"),
    ],
)
def test_what_todays_templates_reject_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], use: UseAttr, reason: str
) -> None:
    path = tuned(tmp_path, use)
    found = selected(tmp_path)
    assert found is not None
    assert found != use
    said = capfd.readouterr().err
    assert said.startswith("warning: group 'matmul_relu' takes its default schedule: ")
    assert str(path) in said
    assert reason in said


def select(module: ModuleOp, folder: Path) -> None:
    (found,) = parse_passes(f'schedule-select{{target=cpu database="{folder}"}}')
    found.apply(treadle_context(), module)
    module.verify()


def test_a_program_is_put_into_the_module_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tuned(tmp_path, tiled())
    graph = Graph(np.zeros((24, 16), np.float32), np.zeros((16, 40), np.float32), np.zeros((40, 40), np.float32))
    first = graph.add(UnaryOp("relu", graph.add(MatmulOp(graph[0], graph[1]))))
    second = graph.add(UnaryOp("relu", graph.add(MatmulOp(graph[0], graph[1]))))
    module = graph.module(graph.add(MatmulOp(first, graph[2])), second)
    lower(treadle_context(), module, CPU, after="graph", to="fuse")
    add_program(module, tiled(PROGRAM.replace("taken 3", "taken 4")))
    select(module, tmp_path)
    named = [group.schedule for group in groups(module)]
    assert len(named) == 3
    assert named.count(SymbolRefAttr("tiled_1")) == 2
    programs = [op for op in module.body.block.ops if isinstance(op, ProgramOp)]
    assert [each.sym_name.data for each in programs] == ["tiled", "tiled_1"]
    assert decisions_of(programs[1]) == {"rows": 3, "vector": (2, 8)}
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROGRAM.replace("taken 3", ""), "sample 'rows' is open"),
        (PROGRAM.replace("[3, 4] taken 3", "[2000] taken 2000"), "accumulators"),
        (PROGRAM.replace('"cpu"', '"cuda"'), "it is a nest for cuda targets, and the target is cpu"),
        (PROGRAM.replace("%k = schedule.axes 2", "%l, %k = schedule.axes 3").replace("(%i0", "(%l, %i0"), "3 spatial"),
    ],
)
def test_a_program_that_is_not_legal_today_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    path = tuned(tmp_path, tiled(text))
    assert isinstance(selected(tmp_path), UseAttr)
    said = capfd.readouterr().err
    assert said.startswith(f"warning: group 'matmul_relu' takes its default schedule: {path}: ")
    assert reason in said


def test_a_damaged_entry_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tuned(tmp_path)
    path.write_text("builtin.module {")
    assert selected(tmp_path) not in (None, TUNED)
    assert str(path) in capfd.readouterr().err


def test_other_hardware_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tuned(tmp_path, record=replace(RECORD, hardware="a toaster"))
    assert selected(tmp_path) not in (None, TUNED)
    (said,) = capfd.readouterr().err.splitlines()
    assert said.startswith(f"warning: {tmp_path} has no schedules for {slug(hardware_of(CPU))}, only for a-toaster")


def test_an_entry_of_another_machine_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Somebody has moved it to this machine's folder."""
    path = tuned(tmp_path, record=replace(RECORD, hardware="Z80 1 core"))
    path.parent.rename(tmp_path / slug(hardware_of(CPU)))
    assert selected(tmp_path) not in (None, TUNED)
    said = capfd.readouterr().err
    assert said.startswith("warning: group 'matmul_relu' takes its default schedule: ")
    assert "the entry was measured on Z80 1 core; accepted: " in said


def test_an_entry_of_other_sources_is_taken_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tuned(tmp_path, record=replace(RECORD, sources="0123456789ab"))
    assert selected(tmp_path) == TUNED
    assert capfd.readouterr().err == (
        f"warning: {tmp_path}: 1 of 1 schedules were measured with other versions of treadle; they are used, and "
        "`treadle tune --stale` measures them anew\n"
    )


def test_a_database_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match="there is no such folder"):
        selected(tmp_path / "none")
    with pytest.raises(TreadleError, match="there is no such folder"):
        treadle.compile(layer(), database=tmp_path / "none")


def test_a_model_is_compiled_with_what_was_tuned(tmp_path: Path) -> None:
    """And compiled anew when the database has changed."""
    here = replace(RECORD, hardware=hardware_of(host_target()))
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in ((24, 16), (16, 40)))
    exact = np.maximum(x.astype(np.float64) @ w, 0)
    texts: list[str] = []
    (tmp_path / "db").mkdir()
    for use in (
        None,
        TUNED,
        UseAttr.get("matmul_cpu", {"rows": 4, "vectors": 2, "chunk": 24, "pack": False, "passes": 1}),
        tiled(),
    ):
        if use is not None:
            tuned(tmp_path / "db", use, here)
        with treadle.compile(layer(), database=tmp_path / "db") as model:
            np.testing.assert_allclose(model(x, w)[0], exact, rtol=1e-5, atol=1e-5)
            texts.append((model.folder / "kernels" / "matmul_relu.c").read_text())
    assert len(set(texts)) == 4
    assert "panel[" in texts[1]
    assert "nest of" in texts[3]
