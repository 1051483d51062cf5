"""Arrays of any element type, as the frontends hold weights and what they fold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

__all__ = ["Array"]
