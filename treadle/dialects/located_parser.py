"""Reads IR text so that every later error can name file, line and column."""

from __future__ import annotations

from bisect import bisect_right

from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr, UnknownLoc
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from treadle.errors import TreadleError


class LocatedParser(Parser):
    """xDSL's parser, which also gives each operation without a location its position in the text.

    What operations raise while they are parsed becomes a ParseError there; xDSL's raise more than VerifyException.
    """

    def __init__(self, context: Context, text: str, name: str):
        super().__init__(context, text, name)
        self._name = StringAttr(name)
        self._start = 0
        self._lines = [0, *(at + 1 for at, character in enumerate(text) if character == "\n")]

    def parse_operation(self) -> Operation:
        """The next operation, as xDSL parses it, with its location."""
        start = self._start = self.pos
        try:
            op = super().parse_operation()
        except (ParseError, TreadleError, RecursionError, MemoryError):
            raise
        except Exception as error:
            self.raise_error((str(error).splitlines() or [type(error).__name__])[0], start, start + 1)
        if isinstance(op.location, UnknownLoc):
            op.location = self._place(start)
        return op

    def _get_op_by_name(self, name: str) -> type[Operation]:
        """As xDSL's, but an unknown name is reported where the operation begins, not where its name ends."""
        try:
            return super()._get_op_by_name(name)
        except ParseError as error:
            self.raise_error(error.msg, self._start, self._start + 1)

    def _place(self, offset: int) -> FileLineColLoc:
        line = bisect_right(self._lines, offset)
        return FileLineColLoc(self._name, IntAttr(line), IntAttr(offset - self._lines[line - 1] + 1))
