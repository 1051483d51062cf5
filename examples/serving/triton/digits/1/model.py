"""Triton's Python backend: what its scheduler hands over at once is one call of a Treadle artifact.

A model repository has `config.pbtxt`, and in the folder of the version this file, `batching.py`, and the artifact,
`served` (`docs/serving.md`). Triton imports from the folder of the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports]
from batching import joined, largest_batch, rows_of

import treadle


class TritonPythonModel:
    """A model of a model repository."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the artifact beside this file."""
        folder = Path(args["model_repository"]) / args["model_version"] / "served"
        self.model = treadle.load(folder)
        self.limit = largest_batch(self.model)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """A response for each request: a wrong one gets an error, and the others their rows."""
        responses: list[Any] = [None] * len(requests)
        batch: list[tuple[int, Mapping[str, Any]]] = []
        rows = 0
        for number, request in enumerate(requests):
            inputs = self._inputs(request)
            try:
                own = rows_of(self.model, inputs)
            except treadle.TreadleError as error:
                responses[number] = triton.InferenceResponse(error=triton.TritonError(str(error)))
                continue
            if rows + own > self.limit:
                self._answer(batch, responses)
                batch, rows = [], 0
            batch.append((number, inputs))
            rows += own
        self._answer(batch, responses)
        return responses

    def finalize(self) -> None:
        """Frees memory and threads."""
        self.model.close()

    def _inputs(self, request: Any) -> Mapping[str, Any]:
        """The arrays of a request, without those that it lacks."""
        names = [tensor.name for tensor in self.model.inputs]
        given = {name: triton.get_input_tensor_by_name(request, name) for name in names}
        return {name: tensor.as_numpy() for name, tensor in given.items() if tensor is not None}

    def _answer(self, batch: Sequence[tuple[int, Mapping[str, Any]]], responses: list[Any]) -> None:
        """Puts the responses of one call where they belong."""
        if not batch:
            return
        for (number, _), outputs in zip(batch, joined(self.model, [inputs for _, inputs in batch]), strict=True):
            tensors = [triton.Tensor(name, array) for name, array in outputs.items()]
            responses[number] = triton.InferenceResponse(output_tensors=tensors)
