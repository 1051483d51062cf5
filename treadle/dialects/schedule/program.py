"""A schedule as a program: instructions that build it up, with the decisions that are left open or taken."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.ir import Block, Operation, Region
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, region_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, NoTerminator, SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.schedule.levels import check_nest
from treadle.dialects.schedule.sampling import SampleOp, SampleTileOp
from treadle.dialects.schedule.staging import TemplateOp
from treadle.dialects.schedule.tiling import ArrangeOp, AxesOp

KINDS = ("cpu", "cuda")


@irdl_op_definition
class ProgramOp(IRDLOperation):
    """How one group, or all that name it, are scheduled: a nest of levels, or a template.

    ```mlir
    schedule.program @dense for "cpu" {
      %i, %j, %k = schedule.axes 2 spatial, 1 reduction
      %r = schedule.sample "rows" from [4, 6, 8] taken 8
      %i0, %i1 = schedule.split %i by (%r)
      %j0, %j1 = schedule.split %j by (32)
      schedule.arrange block(%i0, %j0) loop(%k) repeat(%i1, %j1)
      schedule.mark vector %j1
    }
    schedule.program @tiled for "cuda" {
      %b = schedule.sample "block" from [[64, 64], [128, 128]]
      schedule.template "matmul_mma" {block = %b}
    }
    ```
    The instructions do not change loops: replayed, they build up a value, from which a kernel is written once.
    Rejected: another operation; two samples of one name; not exactly one `arrange` or `template`; an axis that is used
    up twice, or a level that has no role; levels of an axis out of order; `block` that is not first; a spatial level in
    `loop`, a reduction level in `repeat`, two of them in `block`; threads and shared memory of a CPU; a stage at a
    level of the register tile; a vector that is not innermost.
    """

    name = "schedule.program"
    sym_name = prop_def(SymbolNameConstraint())
    kind = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(IsolatedFromAbove(), NoTerminator(), SymbolOpInterface())

    def __init__(self, name: str, kind: str, body: Region | Sequence[Operation]):
        region = body if isinstance(body, Region) else Region(Block(body))
        super().__init__(properties={"sym_name": StringAttr(name), "kind": StringAttr(kind)}, regions=[region])

    @property
    def instructions(self) -> list[Operation]:
        """In order."""
        return list(self.body.block.ops)

    @property
    def samples(self) -> list[SampleOp | SampleTileOp]:
        """What is decided, in order."""
        return [op for op in self.instructions if isinstance(op, SampleOp | SampleTileOp)]

    @property
    def template(self) -> TemplateOp | None:
        """The template that schedules all, if it is one."""
        return next((op for op in self.instructions if isinstance(op, TemplateOp)), None)

    def verify_(self) -> None:
        if self.kind.data not in KINDS:
            raise VerifyException(f"unknown kind of target {self.kind.data!r}: expected {', '.join(KINDS)}")
        foreign = [op.name for op in self.instructions if not op.name.startswith("schedule.") or op.regions]
        if foreign:
            raise VerifyException(f"'{foreign[0]}' is no instruction of a schedule")
        labels = [op.label.data for op in self.samples]
        twice = [label for label in labels if labels.count(label) > 1]
        if twice:
            raise VerifyException(f"two samples are called {twice[0]!r}")
        ends = [op.name for op in self.instructions if isinstance(op, ArrangeOp | TemplateOp)]
        if len(ends) != 1:
            had = " and ".join(ends) or "neither"
            raise VerifyException(f"expected one schedule.arrange or one schedule.template, got {had}")
        axes = [n for n, op in enumerate(self.instructions) if isinstance(op, AxesOp)]
        if axes not in ([], [0]):
            raise VerifyException("schedule.axes comes once, as the first instruction")
        check_nest(self.instructions, self.kind.data)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_string(" for ")
        printer.print_string_literal(self.kind.data)
        printer.print_string(" ")
        printer.print_region(self.body)

    @classmethod
    def parse(cls, parser: Parser) -> ProgramOp:
        name = parser.parse_symbol_name()
        parser.parse_keyword("for")
        kind = parser.parse_str_literal()
        region = parser.parse_region()
        if not region.blocks:
            region.add_block(Block())
        return cls(name.data, kind, region)


__all__ = ["KINDS", "ProgramOp"]
