"""Instruments, verification, legality, dominance and the registry of passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects import test as test_dialect
from xdsl.dialects.arith import ConstantOp
from xdsl.dialects.builtin import ModuleOp, StringAttr, i32, i64
from xdsl.ir import Attribute
from xdsl.passes import ModulePass

from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.instruments import LEGAL, Announce, Timing, Trace, Verify, check_legal, undominated_use, verify
from treadle.passes.registry import PASSES, parse_passes, pass_factories


@dataclass(frozen=True)
class EmptyPass(ModulePass):
    """Does nothing."""

    name = "empty"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pass


def returning(value_type: Attribute, declared: Sequence[Attribute]) -> ModuleOp:
    """A function that returns a 32-bit constant as it is declared."""
    constant = ConstantOp.from_int_and_width(1, 32)
    function = func.FuncOp("main", ([], list(declared)))
    function.body.block.add_ops([constant, func.ReturnOp(constant.result)])
    assert constant.result.type == value_type
    return ModuleOp([function])


def test_a_valid_module_verifies() -> None:
    verify(returning(i32, [i32]), "here")


def test_the_first_invalid_operation_is_named() -> None:
    with pytest.raises(TreadleError, match=r"func.func @main: 'func.return' does not verify after pass 'empty': "):
        Verify().after("fuse", EmptyPass(), returning(i32, [i64]))


def test_a_value_used_before_it_is_defined() -> None:
    first, second = test_dialect.TestOp(result_types=[i32]), test_dialect.TestOp(result_types=[i32])
    use = test_dialect.TestOp(operands=[first.results[0], second.results[0]])
    module = ModuleOp([first, use, second])
    assert undominated_use(module) == (use, 1)
    with pytest.raises(TreadleError, match=r"operand 1 of 'test.op' is not defined before it as it is"):
        verify(module, "as it is")


def test_the_trace_is_numbered_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    """A number is the pass's place in the pipeline; a pass that changes nothing has no file."""
    for _ in range(2):
        module = returning(i32, [i32])
        trace = Trace(tmp_path / "trace")
        trace.start(module)
        trace.after("fuse", EmptyPass(), module)
        module.attributes["changed"] = StringAttr("yes")
        trace.after("fuse", EmptyPass(), module)
    assert sorted(path.name for path in (tmp_path / "trace").iterdir()) == ["00-import.mlir", "02-empty.mlir"]
    assert "changed" not in (tmp_path / "trace" / "00-import.mlir").read_text()
    assert 'changed = "yes"' in (tmp_path / "trace" / "02-empty.mlir").read_text()


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TreadleError, match=r"cannot write the trace: .*accepted: a folder that can be written"):
        Trace(tmp_path / "file" / "trace").start(ModuleOp([]))


def test_timing_and_announcements() -> None:
    told: list[str] = []
    timing = Timing()
    for instrument in (timing, Announce(told.append)):
        instrument.before("fuse", EmptyPass(), ModuleOp([]))
        instrument.after("fuse", EmptyPass(), ModuleOp([]))
    assert told == ["empty"]
    assert [name for name, seconds in timing.seconds if seconds >= 0] == ["empty"]


def test_what_may_not_remain_is_named_with_its_function() -> None:
    module = ModuleOp([func.FuncOp("main", ([], []))])
    function = next(iter(module.ops))
    assert isinstance(function, func.FuncOp)
    function.body.block.add_ops([test_dialect.TestOp(), func.ReturnOp()])
    with pytest.raises(TreadleError, match=r"func.func @main: 'test.op' may not remain after stage 'fuse'; accepted: "):
        check_legal(module, "fuse", "cpu")


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_is_where_its_name_says(name: str) -> None:
    kind = pass_factories()[name]()
    assert kind.name == name
    assert kind.__doc__ and "```mlir" in kind.__doc__, f"{name} shows no IR before and after"


def test_options_are_parsed() -> None:
    (selected,) = parse_passes('schedule-select{target="sm_80"}')
    assert str(selected.spec()) == 'schedule-select{target="sm_80"}'


def test_every_dialect_of_the_table_is_known() -> None:
    context = treadle_context()
    known = {name.partition(".")[0] for names in LEGAL.values() for name in names}
    for dialect in known:
        assert context.get_optional_dialect(dialect) is not None, dialect
