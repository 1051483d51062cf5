"""What the texts of several dialects' operations have in common: directives of their `assembly_format`, and parts that
operations with arguments of regions parse and print by hand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
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
from xdsl.ir import Attribute, Block, SSAValue
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
class Body(CustomDirective):
    """A region of one block, of which nothing may be written."""

    region: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        region = parser.parse_region()
        if not region.blocks:
            region.add_block(Block())
        self.region.set(state, region)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        self.region.print(printer, state, op)


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
