"""What the texts of several dialects' operations have in common: directives of their `assembly_format`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from xdsl.dialects.builtin import (
    ContainerType,
    IndexType,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import AtLeast, AttrConstraint, IRDLOperation, VerificationContext
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    FormatDirective,
    KeywordDirective,
    OptionalOperandVariable,
    ParsingState,
    PrintingState,
    RegionVariable,
    ResultVariable,
    TypeDirective,
    VariableDirective,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, SingleBlockImplicitTerminator
from xdsl.utils.exceptions import VerifyException

A = TypeVar("A", bound=Attribute)


@dataclass(frozen=True, init=False)
class Kind(AttrConstraint[A]):
    """Types or attributes of some classes; the message for another one is `expected a memref, got f32`."""

    name: str
    kinds: tuple[type[A], ...]

    def __init__(self, name: str, *kinds: type[A]):
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kinds", kinds)

    def verify(self, attr: Attribute, constraint_context: VerificationContext) -> None:
        if not isinstance(attr, self.kinds):
            raise VerifyException(f"expected {self.name}, got {attr}")

    def mapping_type_vars(self, type_var_mapping: Mapping[Any, Any]) -> Kind[A]:
        return self


MEMREF, TENSOR, VECTOR = Kind("a memref", MemRefType), Kind("a tensor", TensorType), Kind("a vector", VectorType)
COUNT = IntegerAttr.constr(i64, value=AtLeast(0))
"""Numbers from 0 on."""


@irdl_custom_directive
class Word(CustomDirective):
    """A string as a word: `ogt`."""

    text: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.text.set(state, StringAttr(parser.parse_identifier()))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        text = self.text.get(op)
        assert isinstance(text, StringAttr)
        state.print_whitespace(printer)
        printer.print_string(text.data)


@irdl_custom_directive
class Clause(CustomDirective):
    """A keyword and what it introduces, as in `where %p`, or neither."""

    keyword: KeywordDirective
    value: FormatDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        word = self.keyword.keyword
        if parser.parse_optional_keyword(word) is None:
            self.value.set_empty(state)
            return
        start = parser.pos
        self.value.parse(parser, state)
        if parser.pos == start:
            parser.raise_error(f"nothing after '{word}'")

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        if self.value.is_present(op):
            self.keyword.print(printer, state, op)
            self.value.print(printer, state, op)


@irdl_custom_directive
class Literal(CustomDirective):
    """A string or a number from 0 on, or neither; what follows, `(` or `:`, would begin a type or continue a number."""

    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        text = parser.parse_optional_str_literal()
        number = None if text is not None else parser.parse_optional_integer(allow_boolean=False, allow_negative=False)
        if text is not None:
            self.value.set(state, StringAttr(text))
        elif number is not None:
            self.value.set(state, IntegerAttr(number, i64))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        self.value.print(printer, state, op)


class _Header(list[Region]):
    """In the place of a region that is not parsed yet: its arguments, which are written before it."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments = list[Parser.Argument]()


def declare(state: ParsingState, body: RegionVariable, arguments: Iterable[Parser.Argument]) -> None:
    """Adds arguments to the region that `Body` is going to parse."""
    header = state.regions[body.index]
    if not isinstance(header, _Header):
        header = state.regions[body.index] = _Header()
    header.arguments.extend(arguments)


@irdl_custom_directive
class Indices(CustomDirective):
    """The arguments of a body, which are indices: `(%i, %j)`."""

    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        indices = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_index(parser))
        declare(state, self.body, indices)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        with printer.in_parens():
            printer.print_list(self.body.get(op).block.args, printer.print_ssa_value)


@irdl_custom_directive
class Parameters(CustomDirective):
    """Arguments of a body, with their types, and the field of the operation that has them: `(%a : memref<4xf32>)`."""

    field: KeywordDirective
    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        declare(state, self.body, parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_argument))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        with printer.in_parens():
            printer.print_list(getattr(op, self.field.keyword), printer.print_block_argument)


@irdl_custom_directive
class IndexRange(CustomDirective):
    """An argument of a body, the field of the operation that has it, and how many numbers it takes: `%i in 8`."""

    field: KeywordDirective
    extent: AttributeVariable
    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        argument, extent = parse_range(parser)
        declare(state, self.body, [argument])
        self.extent.set(state, IntegerAttr(extent, i64))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_ssa_value(getattr(op, self.field.keyword))
        printer.print_string(" in")
        self.extent.print(printer, state, op)


@irdl_custom_directive
class Body(CustomDirective):
    """A region of one block, without arguments, which are written before, and without a terminator that is implied."""

    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        header = state.regions[self.body.index]
        region = parser.parse_region(header.arguments if isinstance(header, _Header) else ())
        self.body.set(state, region)
        implied = state.op_type.get_trait(SingleBlockImplicitTerminator)
        if implied is None:
            return
        last = region.block.last_op
        if last is None or not last.has_trait(IsTerminator, value_if_unregistered=False):
            region.block.add_op(implied.op_type.create())

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        is_implied = op.has_trait(SingleBlockImplicitTerminator)
        printer.print_region(self.body.get(op), False, False, not is_implied)


@irdl_custom_directive
class Implied(CustomDirective):
    """Nothing in the text: the type of a value, which may be absent, as the type `of` another one implies it."""

    of: TypeDirective
    value: TypeDirective

    @staticmethod
    @abstractmethod
    def implied(type: Attribute) -> Attribute:
        """The type that another one implies; any for a type that is rejected anyway."""

    def parse(self, parser: Parser, state: ParsingState) -> None:
        source, value = self.of.inner, self.value.inner
        assert isinstance(source, VariableDirective)
        types = (state.result_types if isinstance(source, ResultVariable) else state.operand_types)[source.index]
        is_absent = isinstance(value, OptionalOperandVariable) and not state.operands[value.index]
        value.set_types(state, () if is_absent or not types else (self.implied(types[0]),))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        pass


class SameType(Implied):
    """The same type."""

    @staticmethod
    def implied(type: Attribute) -> Attribute:
        return type


class ElementType(Implied):
    """The type of the elements of a buffer or a tensor."""

    @staticmethod
    def implied(type: Attribute) -> Attribute:
        return type.get_element_type() if isinstance(type, ContainerType) else type


class MaskType(Implied):
    """The type of the mask of a vector's lanes."""

    @staticmethod
    def implied(type: Attribute) -> Attribute:
        return mask_of(type) if isinstance(type, VectorType) else type


def mask_of(type: VectorType) -> VectorType:
    """The mask of a vector's lanes."""
    return VectorType(i1, type.get_shape())


# Arguments of regions, whose types are not written.


def print_range(printer: Printer, arg: SSAValue, extent: int) -> None:
    """`%i in 8`."""
    printer.print_ssa_value(arg)
    printer.print_string(f" in {extent}")


def parse_range(parser: Parser) -> tuple[Parser.Argument, int]:
    """What `print_range` prints, of an index."""
    arg = parse_index(parser)
    parser.parse_characters("in")
    return arg, parser.parse_integer(allow_negative=False, allow_boolean=False)


def parse_index(parser: Parser) -> Parser.Argument:
    """`%i`, an argument that is an index."""
    return parser.parse_argument(expect_type=False).resolve(IndexType())
