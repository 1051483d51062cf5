"""Failures of the compiler's commands: those of xDSL are one line, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from treadle.errors import TreadleError
from treadle.support import commands
from treadle.support.lazy import lazy_module

if TYPE_CHECKING:
    from xdsl.utils import exceptions
else:  # `treadle --version` fails without xDSL's help
    exceptions = lazy_module("xdsl.utils.exceptions")


def run_reporting(tool: str, action: Callable[[], int]) -> int:
    """As `treadle.support.commands.run_reporting`; xDSL's errors that a user can repair are among its failures."""
    return commands.run_reporting(tool, action, _line_of_xdsl)


def _line_of_xdsl(error: BaseException) -> str | None:
    repairable = exceptions.ParseError, exceptions.DiagnosticException, exceptions.ArgSpecParseError
    return one_line(error) if isinstance(error, repairable) else None


def one_line(error: BaseException) -> str:
    """The error as one line that begins with its location, if it has one."""
    if isinstance(error, TreadleError):
        return str(error)
    if isinstance(error, exceptions.ParseError):
        return " ".join(f"{error.span.get_location()}: {error.msg}".split())
    if isinstance(error, exceptions.ArgSpecParseError):
        return " ".join(str(error).replace("^", "").split())
    return str(error).strip().splitlines()[0]
