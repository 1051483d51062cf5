"""The attribute that carries a task mapping in the IR."""

from __future__ import annotations

from xdsl.ir import Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from treadle.dialects.task.mapping import Mapping
from treadle.dialects.task.mapping_text import parse_mapping
from treadle.errors import TreadleError


@irdl_attr_definition
class MapAttr(Data[Mapping]):
    """A task mapping; `data` is the value, with its own algebra.

    ```mlir
    #task.map<repeat(4, 1) * spatial(16, 8)>
    #task.map<spatial(8, 32, order = (1, 0)) * replicate(2)>
    #task.map<custom(8, 8, workers = 8, steps = 8, map = (s, (w + s) mod 8))>
    ```
    Rejected while parsing, at the mapping: unknown parts, sizes below 1, parts of different rank.
    """

    name = "task.map"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Mapping:
        with parser.in_angle_brackets():
            start = parser.pos
            while _skip_token(parser):
                pass
            end = parser.pos
        text = parser.lexer.input.slice(start, end) or ""
        try:
            return parse_mapping(text)
        except TreadleError as error:
            parser.raise_error(str(error), start, end)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(str(self.data))


def _skip_token(parser: AttrParser) -> bool:
    """Moves over one word of a mapping; False at anything else."""
    if parser.parse_optional_identifier() is not None or parser.parse_optional_integer() is not None:
        return True
    return any(parser.parse_optional_punctuation(p) is not None for p in ("(", ")", ",", "*", "=", "+", "-"))
