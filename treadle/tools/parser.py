"""An argument parser whose errors are one line, like every other."""

from __future__ import annotations

import argparse
from typing import NoReturn

from treadle.errors import TreadleError


class Parser(argparse.ArgumentParser):
    """argparse's parser; a wrong argument raises TreadleError instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        """Raises TreadleError with argparse's message."""
        raise TreadleError(message, "arguments", f"what `{self.prog} --help` lists")
