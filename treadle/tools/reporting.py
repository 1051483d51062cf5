"""The handling of failures by every command: one line on stderr and an exit status, never a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from treadle.errors import TOO_DEEP, TreadleError
from treadle.support.lazy import lazy_module
from treadle.tools.output import escaped_output

if TYPE_CHECKING:
    from xdsl.utils import exceptions
else:  # `treadle --version` fails without xDSL's help
    exceptions = lazy_module("xdsl.utils.exceptions")

REJECTED = 2
"""The exit status for input or a setting that cannot be accepted."""
INTERRUPTED = 130


def run_reporting(tool: str, action: Callable[[], int]) -> int:
    """The status of `action`, or after a failure that a user can repair 2, after Ctrl-C 130."""
    with escaped_output():
        return _reporting(tool, action)


def _reporting(tool: str, action: Callable[[], int]) -> int:
    try:
        status = action()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"{tool}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return REJECTED
    except TreadleError as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return REJECTED
    except RecursionError:
        print(f"{tool}: the input nests too deeply; accepted: {TOO_DEEP}", file=sys.stderr)
        return REJECTED
    except OSError as error:
        # Errors of named files are TreadleErrors by now; this is a full disk under stdout or a cache.
        where = f"{error.filename}: " if error.filename else ""
        print(f"{tool}: {where}cannot read or write: {error.strerror or error}", file=sys.stderr)
        return REJECTED
    except SystemExit:  # argparse's, of --help
        raise
    except BaseException as error:
        if not isinstance(error, _of_xdsl()):
            raise
        print(f"{tool}: {one_line(error)}", file=sys.stderr)
        return REJECTED


def _discard_stdout() -> None:
    """After its reader left (`| head`): what stdout still buffers goes nowhere, or Python would complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # of a stdout without a file
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _of_xdsl() -> tuple[type[BaseException], ...]:
    """xDSL's errors that a user can repair."""
    return exceptions.ParseError, exceptions.DiagnosticException, exceptions.ArgSpecParseError


def one_line(error: BaseException) -> str:
    """The error as one line that begins with its location, if it has one."""
    if isinstance(error, TreadleError):
        return str(error)
    if isinstance(error, exceptions.ParseError):
        return " ".join(f"{error.span.get_location()}: {error.msg}".split())
    if isinstance(error, exceptions.ArgSpecParseError):
        return " ".join(str(error).replace("^", "").split())
    return str(error).strip().splitlines()[0]
