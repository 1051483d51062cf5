"""BentoML: its adaptive batches are calls of a Treadle artifact.

    bentoml serve examples.serving.bentoml_service:Digits

BentoML joins requests along the first dimension, up to `max_batch_size` rows; the artifact takes any number of them.
"""

# pyright: reportUntypedClassDecorator=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import bentoml  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

import treadle

FOLDER = "served"
"""What `treadle compile --shape batch=1..32 -o served` wrote, in the folder in which BentoML is started."""


@bentoml.service(workers=1)
class Digits:
    """Scores of pictures."""

    def __init__(self) -> None:
        """Loads the artifact, once a worker; workers share its weights."""
        self.model = treadle.load(FOLDER)

    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=1000)
    def scores(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """float32[batch, 10] for float32[batch, 64]."""
        (scores,) = self.model(np.ascontiguousarray(pixels))
        return scores
