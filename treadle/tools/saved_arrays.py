"""Arrays that commands write, a `.npy` file each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.backends.interface import file_names
from treadle.errors import TreadleError


def save_arrays(outputs: Mapping[str, NDArray[Any]], folder: Path) -> None:
    """Writes `NAME.npy` for each array; TreadleError where the folder cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stem, array in zip(file_names(list(outputs)), outputs.values(), strict=True):
            # The types of `ml_dtypes` have no name in such a file, and one that NumPy writes it does not read.
            named = array if array.dtype.isbuiltin == 1 else array.view(f"V{array.dtype.itemsize}")
            np.save(folder / f"{stem}.npy", named, allow_pickle=False)
    except OSError as error:
        reason = error.strerror or error
        raise TreadleError(f"cannot write: {reason}", folder, "a folder that can be written") from error
