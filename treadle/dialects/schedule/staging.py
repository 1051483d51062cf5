"""Instructions on levels that are arranged: copies in faster memory, marks; and a whole kernel by a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, cast, get_args

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    IntegerAttr,
    StringAttr,
    UnitAttr,
    i64,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.schedule.attributes import Choice, choice_attribute, choice_text, choice_value
from treadle.dialects.schedule.sampling import (
    AXIS,
    PARAM,
    AxisType,
    ParamType,
    Size,
    joined,
    parse_choice,
    parse_size,
    print_size,
    sampled,
    sizes_attribute,
)
from treadle.dialects.syntax import Word

Memory: TypeAlias = Literal["shared", "register"]
MEMORIES: tuple[Memory, ...] = get_args(Memory)
Mark: TypeAlias = Literal["unroll", "vector"]
MARKS: tuple[Mark, ...] = get_args(Mark)


@irdl_op_definition
class StageOp(IRDLOperation):
    """A read of the definition goes through faster memory, which is filled once an iteration of a level.

    ```mlir
    schedule.stage 0 at %k0 in "shared" vector %w buffers 2 async
    schedule.stage 1 at %k1 in "register"
    schedule.stage 0 at %place of (%i0, %k0) in "shared" vector %w
    ```
    Reads are numbered as in the definition. Of several levels a place says which: 1 is the first one, and 0 is none of
    them, so that the read stays where it is (MetaSchedule's Sample-Compute-Location, where the place is sampled).
    `vector` elements are copied at once (default 1); with `buffers` above 1 the next iteration's are fetched ahead,
    through registers, or by asynchronous copies. Rejected: unknown memory, no level, a place beyond them, a vector or
    buffers below 1, `async` into registers or with one buffer.
    """

    name = "schedule.stage"
    read = prop_def(IntegerAttr)
    levels = var_operand_def(AxisType)
    params = var_operand_def(ParamType)
    numbers = prop_def(DenseArrayBase.constr(i64))
    memory = prop_def(StringAttr)
    is_async = opt_prop_def(UnitAttr)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def()

    def __init__(
        self,
        read: int,
        levels: SSAValue | Sequence[SSAValue],
        memory: Memory,
        vector: Size = 1,
        buffers: Size = 1,
        *,
        place: Size = 1,
        is_async: bool = False,
    ):
        sizes = [place, vector, buffers]
        properties = {
            "read": IntegerAttr(read, i64),
            "numbers": sizes_attribute(sizes),
            "memory": StringAttr(memory),
            "is_async": UnitAttr() if is_async else None,
        }
        at = [levels] if isinstance(levels, SSAValue) else list(levels)
        super().__init__(operands=[at, sampled(sizes)], properties=properties)

    @property
    def place(self) -> Size:
        """Which of the levels, from 1; 0 for none of them."""
        return joined(self.numbers, self.params)[0]

    @property
    def vector(self) -> Size:
        """Elements that are copied at once."""
        return joined(self.numbers, self.params)[1]

    @property
    def buffers(self) -> Size:
        """Copies of the memory, all but one of which are filled ahead."""
        return joined(self.numbers, self.params)[2]

    def verify_(self) -> None:
        if self.memory.data not in MEMORIES:
            raise VerifyException(f"unknown memory {self.memory.data!r}: expected {', '.join(MEMORIES)}")
        sizes = self.vector, self.buffers
        if self.read.value.data < 0 or any(isinstance(size, int) and size < 1 for size in sizes):
            raise VerifyException("the read is below 0, or the vector or the buffers below 1")
        if not self.levels or (isinstance(self.place, int) and self.place > len(self.levels)):
            raise VerifyException(f"place {self.place} of {len(self.levels)} levels: expected a level, or 0 for none")
        if self.is_async is not None and (self.memory.data != "shared" or self.buffers == 1):
            raise VerifyException("asynchronous copies go to shared memory with at least 2 buffers")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.read.value.data} at ")
        if len(self.levels) == 1 and self.place == 1:
            printer.print_ssa_value(self.levels[0])
        else:
            print_size(printer, self.place)
            printer.print_string(" of ")
            with printer.in_parens():
                printer.print_list(self.levels, printer.print_ssa_value)
        printer.print_string(" in ")
        printer.print_string_literal(self.memory.data)
        for word, size in (("vector", self.vector), ("buffers", self.buffers)):
            if size != 1:
                printer.print_string(f" {word} ")
                print_size(printer, size)
        if self.is_async is not None:
            printer.print_string(" async")

    @classmethod
    def parse(cls, parser: Parser) -> StageOp:
        read = parser.parse_integer(allow_negative=False)
        parser.parse_keyword("at")
        place, levels = _parse_place(parser)
        parser.parse_keyword("in")
        memory = cast("Memory", parser.parse_str_literal())
        vector = parse_size(parser) if parser.parse_optional_keyword("vector") else 1
        buffers = parse_size(parser) if parser.parse_optional_keyword("buffers") else 1
        is_async = parser.parse_optional_keyword("async") is not None
        return cls(read, levels, memory, vector, buffers, place=place, is_async=is_async)


def _parse_place(parser: Parser) -> tuple[Size, Sequence[SSAValue]]:
    """`%k0`, or `%place of (%i0, %k0)`, or `1 of (%i0, %k0)`."""
    first = parser.parse_optional_unresolved_operand()
    place: Size = parser.parse_integer(allow_negative=False) if first is None else 1
    if first is not None and not parser.parse_optional_keyword("of"):
        return 1, [parser.resolve_operand(first, AXIS)]
    if first is None:
        parser.parse_keyword("of")
    else:
        place = parser.resolve_operand(first, PARAM)
    levels = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parser.parse_operand(AXIS))
    return place, levels


@irdl_op_definition
class MarkOp(IRDLOperation):
    """How a level's loop is printed.

    ```mlir
    schedule.mark unroll %k1
    schedule.mark vector %j3
    ```
    Rejected: an unknown mark; `vector` on another than the innermost level.
    """

    name = "schedule.mark"
    mark = prop_def(StringAttr)
    level = operand_def(AxisType)
    traits = traits_def()
    custom_directives = (Word,)
    assembly_format = "custom<Word>($mark) $level attr-dict"

    def __init__(self, mark: Mark, level: SSAValue):
        super().__init__(operands=[level], properties={"mark": StringAttr(mark)})

    def verify_(self) -> None:
        if self.mark.data not in MARKS:
            raise VerifyException(f"unknown mark {self.mark.data!r}: expected {', '.join(MARKS)}")


@irdl_op_definition
class UnrollOp(IRDLOperation):
    """Which of the loops over the reduction are unrolled: from the innermost one on, as many as have no more iterations
    together than the limit.

    ```mlir
    schedule.unroll 16
    schedule.unroll %u
    ```
    0 is none. A vector's loop is not one of them, nor is one that stages fill ahead; and less is unrolled where the
    compiler would take too long (`MOST_UNROLLED_TERMS`). Source: MetaSchedule (NeurIPS 2022), figure 5's
    Parallel-Vectorize-Unroll, which samples the limit. Rejected: a limit below 0.
    """

    name = "schedule.unroll"
    params = var_operand_def(ParamType)
    numbers = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def()

    def __init__(self, limit: Size):
        super().__init__(operands=[sampled([limit])], properties={"numbers": sizes_attribute([limit])})

    @property
    def limit(self) -> Size:
        """Iterations of the loops together."""
        return joined(self.numbers, self.params)[0]

    def verify_(self) -> None:
        if isinstance(self.limit, int) and self.limit < 0:
            raise VerifyException(f"the limit is {self.limit}: expected 0 or more")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        print_size(printer, self.limit)

    @classmethod
    def parse(cls, parser: Parser) -> UnrollOp:
        return cls(parse_size(parser))


@irdl_op_definition
class SwizzleOp(IRDLOperation):
    """In which order blocks take the tiles of two levels: down some rows before they go right, so that blocks that run
    together share the tiles that they read. The last group may have fewer rows.

    ```mlir
    schedule.swizzle %i0, %j0 by 8
    schedule.swizzle %i0, %j0 by %g
    ```
    By 1 is the order of `schedule.arrange`, along the columns. Source: Hidet (ASPLOS 2023), section 6.2, thread-block
    swizzle; CUTLASS' threadblock rasterization. Rejected: less than 1; levels that are no neighbours in `block`.
    """

    name = "schedule.swizzle"
    rows = operand_def(AxisType)
    columns = operand_def(AxisType)
    params = var_operand_def(ParamType)
    numbers = prop_def(DenseArrayBase.constr(i64))
    traits = traits_def()

    def __init__(self, rows: SSAValue, columns: SSAValue, group: Size):
        super().__init__(operands=[rows, columns, sampled([group])], properties={"numbers": sizes_attribute([group])})

    @property
    def group(self) -> Size:
        """Rows of a group."""
        return joined(self.numbers, self.params)[0]

    def verify_(self) -> None:
        if isinstance(self.group, int) and self.group < 1:
            raise VerifyException(f"a group has {self.group} rows: expected 1 or more")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list([self.rows, self.columns], printer.print_ssa_value)
        printer.print_string(" by ")
        print_size(printer, self.group)

    @classmethod
    def parse(cls, parser: Parser) -> SwizzleOp:
        rows = parser.parse_operand(AXIS)
        parser.parse_punctuation(",")
        columns = parser.parse_operand(AXIS)
        parser.parse_keyword("by")
        return cls(rows, columns, parse_size(parser))


@irdl_op_definition
class TemplateOp(IRDLOperation):
    """A template schedules the anchor; knobs are sampled or given, and those left out are the template's own affair.

    ```mlir
    schedule.template "matmul_mma" {block = %b, warps = [2, 2], stages = 4}
    ```
    Rejected: a knob twice. What the template rejects, it rejects when the program is replayed.
    """

    name = "schedule.template"
    template = prop_def(StringAttr)
    names = prop_def(ArrayAttr)
    given = prop_def(DictionaryAttr)
    params = var_operand_def(ParamType)
    traits = traits_def()

    def __init__(self, template: str, knobs: Sequence[tuple[str, Choice | SSAValue]]):
        given = {name: choice_attribute(value) for name, value in knobs if not isinstance(value, SSAValue)}
        properties = {
            "template": StringAttr(template),
            "names": ArrayAttr([StringAttr(name) for name, _ in knobs]),
            "given": DictionaryAttr(given),
        }
        super().__init__(operands=[[value for _, value in knobs if isinstance(value, SSAValue)]], properties=properties)

    @property
    def knobs(self) -> list[tuple[str, Choice | SSAValue]]:
        """Each knob with its value, or the parameter that holds it, in the order written."""
        left, found = iter(self.params), list[tuple[str, Choice | SSAValue]]()
        for name in self.names:
            assert isinstance(name, StringAttr)
            known = self.given.data.get(name.data)
            found.append((name.data, next(left) if known is None else choice_value(known)))
        return found

    def choices(self, decisions: Mapping[SSAValue, Choice]) -> dict[str, Choice]:
        """The knobs' values, given those of the parameters."""
        return {name: decisions[value] if isinstance(value, SSAValue) else value for name, value in self.knobs}

    def verify_(self) -> None:
        names = [name.data for name in self.names if isinstance(name, StringAttr)]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise VerifyException(f"knob {twice!r} is given twice")
        sampled_knobs = [name for name in names if name not in self.given.data]
        if len(sampled_knobs) != len(self.params) or len(names) != len(self.names):
            raise VerifyException(f"{len(sampled_knobs)} sampled knobs, {len(self.params)} parameters")

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_string_literal(self.template.data)
        printer.print_string(" {")
        printer.print_list(self.knobs, lambda knob: self._print_knob(printer, *knob))
        printer.print_string("}")

    def _print_knob(self, printer: Printer, name: str, value: Choice | SSAValue) -> None:
        printer.print_string(f"{name} = ")
        if isinstance(value, SSAValue):
            printer.print_ssa_value(value)
        else:
            printer.print_string(choice_text(value))

    @classmethod
    def parse(cls, parser: Parser) -> TemplateOp:
        template = parser.parse_str_literal()
        return cls(template, parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: _parse_knob(parser)))


def _parse_knob(parser: Parser) -> tuple[str, Choice | SSAValue]:
    name = parser.parse_identifier("the name of a knob")
    parser.parse_punctuation("=")
    unresolved = parser.parse_optional_unresolved_operand()
    if unresolved is not None:
        return name, parser.resolve_operand(unresolved, PARAM)
    return name, parse_choice(parser)


__all__ = ["MARKS", "MEMORIES", "Mark", "MarkOp", "Memory", "StageOp", "SwizzleOp", "TemplateOp", "UnrollOp"]
