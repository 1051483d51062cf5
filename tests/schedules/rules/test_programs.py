"""Rules one after the other, and the text of what they write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp, i32
from xdsl.parser import Parser
from xdsl.xdsl_opt_main import xDSLOptMain

from tests.helpers.graphs import Graph
from tests.schedules.rules.scheduled import CPU, GPU, anchor
from treadle.dialects.graph import MatmulOp
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.schedules.rules import Draft, Rule, programs
from treadle.schedules.rules.programs import drafts
from treadle.schedules.rules.templates import tensor_cores
from treadle.schedules.rules.tiling import CUDA, default_rules

FAMILIES = ("GMM", "GRP", "DEP", "NRM", "SFM")


def nothing(draft: Draft) -> Sequence[Draft]:
    """Does not apply."""
    del draft
    return ()


def rows(count: int) -> Rule:
    """A block computes `count` rows."""

    def rule(draft: Draft) -> Sequence[Draft]:
        draft, ((i, *rest), reduction) = draft.axes()
        draft, (i0, i1) = draft.split(i, [count])
        return [draft.arrange([("block", [i0]), ("repeat", [i1, *rest]), ("loop", reduction)])]

    return rule


def either(*rules: Rule) -> Rule:
    return lambda draft: [after for rule in rules for after in rule(draft)]


def test_a_rule_that_does_not_apply_changes_nothing() -> None:
    of = anchor("GMM")
    assert [str(p) for p in programs(of, CPU, [nothing, rows(4), nothing])] == [
        str(p) for p in programs(of, CPU, [rows(4)])
    ]
    assert programs(of, CPU, [nothing]) == ()


def test_alternatives_go_on_apart() -> None:
    found = programs(anchor("GMM"), CPU, [either(rows(2), rows(4), rows(2))])
    assert [program.sym_name.data for program in found] == ["nest0", "nest1"]


def test_what_no_value_makes_legal_is_an_error_unless_there_is_another_program() -> None:
    def too_large(draft: Draft) -> Sequence[Draft]:
        draft, (spatial, reduction) = draft.axes()
        return [draft.arrange([("block", spatial[:0]), ("loop", reduction), ("repeat", spatial)])]

    of = anchor("GMM", small=False)
    with pytest.raises(TreadleError, match="it takes 16384 accumulators, 15360 too many"):
        programs(of, CPU, [too_large])
    found = programs(of, CPU, [lambda draft: [draft, *rows(4)(draft)], lambda d: () if d.is_complete else too_large(d)])
    assert len(found) == 1


def test_another_value_is_taken_where_one_is_beyond_a_limit() -> None:
    def wide(draft: Draft) -> Sequence[Draft]:
        draft, ((i, j), (k,)) = draft.axes()
        draft, columns = draft.sample("columns", [1, 2, 3, 4096])
        draft, (j0, j1) = draft.split(j, [columns])
        return [draft.arrange([("block", [i, j0]), ("loop", [k]), ("repeat", [j1])])]

    of = anchor("GMM")
    for seed in range(6):
        (draft,) = drafts(of, CPU, [wide], str(seed))
        assert draft.value(draft.instructions[1].results[0]) != 4096


def test_tensor_cores_do_not_apply_to_float32() -> None:
    draft = Draft(anchor("GMM", GPU), GPU, None)
    assert tensor_cores(draft) == ()


def test_a_stock_xdsl_opt_reads_verifies_and_prints_what_rules_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [d for t in (CPU, GPU) for name in FAMILIES for d in drafts(anchor(name, t), t, default_rules(t), "0")]
    whole = ModuleOp([d.program(f"p{n}", with_decisions=n % 2 == 0) for n, d in enumerate(found)])
    source, again = tmp_path / "rules.mlir", tmp_path / "again.mlir"
    source.write_text(str(whole))
    xDSLOptMain(args=[str(source)]).run()
    printed = capsys.readouterr().out
    again.write_text(printed)
    xDSLOptMain(args=[str(again)]).run()
    assert capsys.readouterr().out == printed
    assert str(Parser(treadle_context(), printed).parse_module()) == str(whole)


def test_gpu_programs_stage_operands_in_shared_memory() -> None:
    texts = [str(program) for program in programs(anchor("GMM", GPU, small=False), GPU, CUDA)]
    ways = {
        text.partition('schedule.stage 1 at %k0 in "shared" vector %vector buffers %buffers')[2][:6] for text in texts
    }
    assert ways >= {" async", "\n  %un"}, "filled through registers, and by asynchronous copies"


def test_products_of_bytes_have_templates_only() -> None:
    """Works of nests would take their multiplications for nothing."""
    graph = Graph(np.zeros((512, 256), np.uint8), np.zeros((256, 512), np.int8))
    of_bytes = MatmulOp(graph[0], graph[1], sums=i32)
    names = [program.sym_name.data for program in programs(of_bytes, GPU, default_rules(GPU))]
    assert names == ["matmul_int8", "generic_cuda"]
