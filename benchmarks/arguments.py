"""Types of the benchmarks' arguments."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A number from 1 upwards; argparse's error for other text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 upwards")
    return int(text)


__all__ = ["positive"]
