"""What commands have in common: wrong arguments and failures are one line on stderr and an exit status, never a
traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from treadle.errors import TOO_DEEP, TreadleError
from treadle.support.output import escaped_output

REJECTED = 2
"""The exit status for input or a setting that cannot be accepted."""
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """argparse's parser; a wrong argument raises TreadleError instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises TreadleError with argparse's message."""
        raise TreadleError(message, "arguments", f"what `{self.prog} --help` lists")


def run_reporting(
    tool: str, action: Callable[[], int], described: Callable[[BaseException], str | None] = lambda error: None
) -> int:
    """The status of `action`, or after a failure that a user can repair 2, after Ctrl-C 130.

    described: one line for an error of a library that a user can repair; None for any other, which is raised
    """
    with escaped_output():
        return _reporting(tool, action, described)


def _reporting(tool: str, action: Callable[[], int], described: Callable[[BaseException], str | None]) -> int:
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
        line = described(error)
        if line is None:
            raise
        print(f"{tool}: {line}", file=sys.stderr)
        return REJECTED


def _discard_stdout() -> None:
    """After its reader left (`| head`): what stdout still buffers goes nowhere, or Python would complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError):  # of a stdout without a file
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
