"""Ray Serve: requests that come within a millisecond are one call of a Treadle artifact.

serve run examples.serving.ray_serve:application folder=served
"""

# pyright: reportUntypedClassDecorator=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray import serve  # pyright: ignore[reportMissingImports]

import treadle

Array = NDArray[Any]


@serve.deployment(ray_actor_options={"num_cpus": 1})
class Digits:
    """Scores of pictures."""

    def __init__(self, folder: str, threads: int = 1) -> None:
        """Loads the artifact, once a replica; replicas of one machine share its weights."""
        self.model = treadle.load(folder, threads=threads)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def scores(self, pixels: list[Array]) -> list[Array]:
        """float32[10] for each float32[64]."""
        (scores,) = self.model(np.stack(pixels))
        return list(scores)

    async def __call__(self, pixels: Array) -> Array:
        """One picture's, of a call with others."""
        one: Any = self.scores
        return await one(pixels)


def application(arguments: dict[str, str]) -> Any:
    """The application of an artifact: `serve.run(application({"folder": "served"}))`."""
    deployment: Any = Digits
    return deployment.bind(arguments["folder"])
