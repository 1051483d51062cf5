"""The decision attribute, and several decisions for one group, of which a call takes one by its extents."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, IntegerType, StringAttr, SymbolRefAttr, i64
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.dispatch_tree import PredictedAttr, Prediction, TreeAttr
from treadle.shapes.decision_tree import Tree

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_BOOL = IntegerType(1)

Choice: TypeAlias = int | bool | str | tuple[int, ...]
"""A knob's value: a number, a switch, a word, or a list of numbers."""


@irdl_attr_definition
class UseAttr(ParametrizedAttribute):
    """A decision: which template schedules an anchor, and the value of each of its knobs.

    ```mlir
    #schedule.use<"matmul_cpu", {tile = [8, 32], pack = true, order = "n"}>
    ```
    Rejected: a knob that is given twice, a value that is no integer, switch, word or list of integers. Whether the
    template exists and allows the choices is checked by `schedule-instantiate`, which knows the templates.
    """

    name = "schedule.use"
    template: StringAttr
    choices: DictionaryAttr

    @classmethod
    def get(cls, template: str, choices: Mapping[str, Choice] | None = None) -> UseAttr:
        return cls(StringAttr(template), DictionaryAttr({k: choice_attribute(v) for k, v in (choices or {}).items()}))

    def knobs(self) -> dict[str, Choice]:
        """The choices as Python values."""
        return {name: choice_value(attribute) for name, attribute in self.choices.data.items()}

    def verify(self) -> None:
        for name, attribute in self.choices.data.items():
            if not _WORD.fullmatch(name):
                raise VerifyException(f"template {self.template.data!r}: {name!r} is no name of a knob")
            try:
                choice_value(attribute)
            except ValueError as error:
                raise VerifyException(f"knob {name!r} of template {self.template.data!r}: {error}") from error

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(self.template.data)
            if self.choices.data:
                printer.print_string(", {")
                printer.print_list(
                    self.choices.data.items(),
                    lambda kv: printer.print_string(f"{kv[0]} = {choice_text(choice_value(kv[1]))}"),
                )
                printer.print_string("}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            template = parser.parse_str_literal()
            choices: dict[str, Attribute] = {}
            if parser.parse_optional_punctuation(",") is not None:
                pairs = parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: _parse_choice(parser))
                choices = _unique(parser, pairs)
        return StringAttr(template), DictionaryAttr(choices)


def _unique(parser: AttrParser, pairs: Sequence[tuple[str, Attribute]]) -> dict[str, Attribute]:
    choices: dict[str, Attribute] = {}
    for name, attribute in pairs:
        if name in choices:
            parser.raise_error(f"knob {name!r} is given twice")
        choices[name] = attribute
    return choices


def _parse_choice(parser: AttrParser) -> tuple[str, Attribute]:
    name = parser.parse_identifier("the name of a knob")
    parser.parse_punctuation("=")
    return name, parser.parse_attribute()


def choice_attribute(value: Choice) -> Attribute:
    """A knob's value as an attribute."""
    if isinstance(value, bool):
        return IntegerAttr(int(value), 1)
    if isinstance(value, int):
        return IntegerAttr(value, i64)
    if isinstance(value, str):
        return StringAttr(value)
    return ArrayAttr([IntegerAttr(v, i64) for v in value])


def choice_value(attribute: Attribute) -> Choice:
    """A knob's value from an attribute; ValueError if it is none."""
    if isinstance(attribute, StringAttr):
        return attribute.data
    if isinstance(attribute, IntegerAttr):
        return bool(attribute.value.data) if attribute.type == _BOOL else attribute.value.data
    if isinstance(attribute, ArrayAttr) and all(map(_is_number, attribute.data)):
        return tuple(v.value.data for v in attribute.data if isinstance(v, IntegerAttr))
    raise ValueError(f"{attribute} is no integer, switch, word or list of integers")


def _is_number(attribute: Attribute) -> bool:
    return isinstance(attribute, IntegerAttr) and attribute.type != _BOOL


def choice_text(value: Choice) -> str:
    """A knob's value as `#schedule.use` spells it: `true`, `[4, 8]`, `"n"`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value) if isinstance(value, int) else "[" + ", ".join(map(str, value)) + "]"


# Several decisions for one group, and which of them a call takes by its extents.

MOST_KERNELS = 8
"""Alternatives of one group: each is code to compile and to keep; DietCode (MLSys 2022) ends with up to eight."""


@irdl_attr_definition
class DispatchAttr(ParametrizedAttribute):
    """A group's alternatives, each a decision or a program's symbol, and the tree that says which a call takes.

    ```mlir
    #schedule.dispatch<#schedule.tree<e0 <= 16 ? 0 : 1>,
                       [#schedule.use<"matmul_cpu", {rows = 4, ...}>, #schedule.use<"matmul_cpu", {rows = 8, ...}>]>
    ```
    `e0` is the extent that the first entry of @main's `extents` names. A third parameter, `#schedule.predicted<...>`,
    keeps what was predicted of the alternatives. Rejected: leaves that are not just the numbers of the alternatives,
    more than MOST_KERNELS of them, predictions of another number.
    """

    name = "schedule.dispatch"
    tree: TreeAttr
    alternatives: ArrayAttr[Attribute]
    predicted: PredictedAttr

    @classmethod
    def get(
        cls, tree: Tree[int], alternatives: Sequence[Attribute], predicted: Sequence[Prediction] = ()
    ) -> DispatchAttr:
        return cls(TreeAttr(tree), ArrayAttr(alternatives), PredictedAttr(tuple(predicted)))

    def verify(self) -> None:
        count = len(self.alternatives.data)
        if not 1 <= count <= MOST_KERNELS:
            raise VerifyException(f"{count} alternatives: expected 1 to {MOST_KERNELS}")
        for each in self.alternatives.data:
            if not isinstance(each, UseAttr | SymbolRefAttr):
                raise VerifyException(f"an alternative is {each}: expected #schedule.use<...> or a program's symbol")
        self.tree.check(count)
        self.predicted.check(count)

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.tree)
            printer.print_string(", ")
            printer.print_attribute(self.alternatives)
            if self.predicted.data:
                printer.print_string(", ")
                printer.print_attribute(self.predicted)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        position = parser.pos
        found = parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parser.parse_attribute)
        given = [*found, PredictedAttr(())] if len(found) == 2 else found
        match given:
            case [TreeAttr(), ArrayAttr(), PredictedAttr()]:
                return given
            case _:
                parser.raise_error(
                    "expected #schedule.tree<...>, [alternatives] and #schedule.predicted<...>", position
                )
