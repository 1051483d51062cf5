"""Instructions that cut the anchor's iteration space into levels, and say what each level is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, cast, get_args

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, StringAttr, UnitAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.schedule.sampling import (
    AXIS,
    AxisType,
    ParamType,
    Size,
    joined,
    parse_count,
    parse_size,
    print_size,
    sampled,
    sizes_attribute,
)

Role: TypeAlias = Literal["block", "thread", "repeat", "loop", "mma"]
ROLES: tuple[Role, ...] = get_args(Role)


@irdl_op_definition
class AxesOp(IRDLOperation):
    """The anchor's dimensions: those of its result, then those of its reduction.

    ```mlir
    %i, %j, %k = schedule.axes 2 spatial, 1 reduction
    ```
    Rejected: a program that has it twice, or not first; none at all.
    """

    name = "schedule.axes"
    spatial = prop_def(IntegerAttr)
    reduction = prop_def(IntegerAttr)
    axes = var_result_def(AxisType)
    traits = traits_def()

    def __init__(self, spatial: int, reduction: int):
        properties = {"spatial": IntegerAttr(spatial, i64), "reduction": IntegerAttr(reduction, i64)}
        super().__init__(properties=properties, result_types=[[AXIS] * (spatial + reduction)])

    def verify_(self) -> None:
        counts = self.spatial.value.data, self.reduction.value.data
        if min(counts) < 0 or sum(counts) != len(self.axes) or not self.axes:
            raise VerifyException(f"{counts[0]} spatial and {counts[1]} reduction axes, {len(self.axes)} results")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.spatial.value.data} spatial, {self.reduction.value.data} reduction")

    @classmethod
    def parse(cls, parser: Parser) -> AxesOp:
        spatial = parse_count(parser)
        parser.parse_keyword("spatial")
        parser.parse_punctuation(",")
        reduction = parse_count(parser)
        parser.parse_keyword("reduction")
        return cls(spatial, reduction)


@irdl_op_definition
class SplitOp(IRDLOperation):
    """An axis as levels, the outermost first, which has as many iterations as cover the extent.

    ```mlir
    %i0, %i1, %i2 = schedule.split %i by (%t, 4)
    ```
    Tiles may overhang the extent. Rejected: no factor, or one below 1.
    """

    name = "schedule.split"
    axis = operand_def(AxisType)
    params = var_operand_def(ParamType)
    numbers = prop_def(DenseArrayBase.constr(i64))
    levels = var_result_def(AxisType)
    traits = traits_def()

    def __init__(self, axis: SSAValue, factors: Sequence[Size]):
        properties = {"numbers": sizes_attribute(factors)}
        super().__init__(
            operands=[axis, sampled(factors)], properties=properties, result_types=[[AXIS] * (len(factors) + 1)]
        )

    @property
    def factors(self) -> list[Size]:
        """Those of the inner levels, in order."""
        return joined(self.numbers, self.params)

    def verify_(self) -> None:
        factors = list(self.numbers.iter_values())
        if len(self.levels) != len(factors) + 1 or not factors:
            raise VerifyException(f"{len(factors)} factors give {len(factors) + 1} levels, not {len(self.levels)}")
        below = [factor for factor in self.factors if isinstance(factor, int) and factor < 1]
        if below:
            raise VerifyException(f"a factor is {below[0]}: expected at least 1")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.axis)
        printer.print_string(" by (")
        printer.print_list(self.factors, lambda size: print_size(printer, size))
        printer.print_string(")")

    @classmethod
    def parse(cls, parser: Parser) -> SplitOp:
        axis = parser.parse_operand(AXIS)
        parser.parse_keyword("by")
        return cls(axis, parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_size(parser)))


@irdl_op_definition
class FuseOp(IRDLOperation):
    """Neighbouring axes of one kind as one, row-major.

    ```mlir
    %p = schedule.fuse %h, %w
    ```
    Rejected: fewer than two axes; axes that are not neighbours, of both kinds, or levels of a split.
    """

    name = "schedule.fuse"
    axes = var_operand_def(AxisType)
    axis = result_def(AxisType)
    traits = traits_def()
    assembly_format = "$axes attr-dict"

    def __init__(self, axes: Sequence[SSAValue]):
        super().__init__(operands=[list(axes)], result_types=[AXIS])

    def verify_(self) -> None:
        if len(self.axes) < 2:
            raise VerifyException(f"{len(self.axes)} axes: expected at least 2")


@irdl_op_definition
class ArrangeOp(IRDLOperation):
    """The whole nest, outermost first: which level is spread over blocks, over threads, repeated, a serial loop, or
    multiplied by tensor cores.

    ```mlir
    schedule.arrange block(%i0, %j0) repeat(%i1, %j1) thread(%i2, %j2) loop(%k0) loop(%k1) repeat(%i3, %j3)
    schedule.arrange block(%i0, %j0) thread(%i1, %j1) loop(%k0) loop(%k1) repeat(%i2, %j2) mma(%i3, %j3, %k2)
    ```
    It is a composition of task mappings with the reduction in between: `block` and `thread` are spatial, `repeat` is
    repeated, in the order written. A spatial level in `repeat` before the last `thread` is one of virtual threads; a
    reduction level in `block` is split-k, in `thread` a reduction across threads. `mma` is one product of a warp on
    tensor cores, of the rows, columns and terms of its levels (MetaSchedule's tensorize, appendix A.3); beside it
    `thread` levels are warps, and what a warp multiplies has to be staged in shared memory. With `checks_borders` at
    the end, each term is computed only where its indices exist, instead of from padded stages and clamped reads: what
    DietCode (MLSys 2022), section 4.1, compares local padding with. No rule writes it.
    Rejected: a role that there is not, or one without levels; see `schedule.program` for the rest.
    """

    name = "schedule.arrange"
    levels = var_operand_def(AxisType)
    roles = prop_def(ArrayAttr)
    counts = prop_def(DenseArrayBase.constr(i64))
    min_blocks_per_sm = opt_prop_def(IntegerAttr)
    checks_borders = opt_prop_def(UnitAttr)
    traits = traits_def()

    def __init__(
        self,
        groups: Sequence[tuple[Role, Sequence[SSAValue]]],
        min_blocks_per_sm: int | None = None,
        *,
        checks_borders: bool = False,
    ):
        properties = {
            "roles": ArrayAttr([StringAttr(role) for role, _ in groups]),
            "counts": DenseArrayBase.from_list(i64, [len(levels) for _, levels in groups]),
            "min_blocks_per_sm": None if min_blocks_per_sm is None else IntegerAttr(min_blocks_per_sm, i64),
            "checks_borders": UnitAttr() if checks_borders else None,
        }
        super().__init__(operands=[[level for _, levels in groups for level in levels]], properties=properties)

    @property
    def groups(self) -> list[tuple[Role, list[SSAValue]]]:
        """Each role with its levels, outermost first."""
        left = iter(self.levels)
        roles = [role.data for role in self.roles if isinstance(role, StringAttr)]
        counts = self.counts.iter_values()
        return [
            (cast("Role", role), [next(left) for _ in range(count)]) for role, count in zip(roles, counts, strict=True)
        ]

    def verify_(self) -> None:
        counts = list(self.counts.iter_values())
        if len(self.roles) != len(counts) or sum(counts) != len(self.levels) or 0 in counts or not counts:
            raise VerifyException("each role needs levels, and each level a role")
        for role in self.roles:
            if not isinstance(role, StringAttr) or role.data not in ROLES:
                raise VerifyException(f"unknown role {role}: expected {', '.join(ROLES)}")
        if self.min_blocks_per_sm is not None and self.min_blocks_per_sm.value.data < 1:
            raise VerifyException("min_blocks_per_sm is below 1")

    def print(self, printer: Printer) -> None:
        for role, levels in self.groups:
            printer.print_string(f" {role}(")
            printer.print_list(levels, printer.print_ssa_value)
            printer.print_string(")")
        if self.min_blocks_per_sm is not None:
            printer.print_string(f" min_blocks_per_sm {self.min_blocks_per_sm.value.data}")
        if self.checks_borders is not None:
            printer.print_string(" checks_borders")

    @classmethod
    def parse(cls, parser: Parser) -> ArrangeOp:
        groups: list[tuple[Role, Sequence[SSAValue]]] = []
        while (role := _parse_role(parser)) is not None:
            levels = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_operand(AXIS))
            groups.append((role, levels))
        least = None
        if parser.parse_optional_keyword("min_blocks_per_sm"):
            least = parser.parse_integer(allow_negative=False)
        checks = parser.parse_optional_keyword("checks_borders") is not None
        return cls(groups, least, checks_borders=checks)


def _parse_role(parser: Parser) -> Role | None:
    return next((role for role in ROLES if parser.parse_optional_keyword(role)), None)


__all__ = ["ROLES", "ArrangeOp", "AxesOp", "FuseOp", "Role", "SplitOp"]
