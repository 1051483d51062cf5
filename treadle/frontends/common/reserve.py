"""What a model's nodes may take of memory while they are imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Reserves(Protocol):
    """A node that counts the constants which its conversion makes."""

    def reserve(self, shape: Sequence[int], dtype: np.dtype[np.generic]) -> None:
        """Counts a constant of this shape; TreadleError if it is too large together with those so far."""
        ...


__all__ = ["Reserves"]
