"""A cuda artifact made ready to run on the emulator: its printed kernels, in order, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import numpy as safetensors

from treadle.artifact import Manifest
from treadle.backends.buffers import BufferRef
from treadle.backends.cuda.emulator.emulator import Emulator
from treadle.backends.cuda.emulator.findings import Report
from treadle.backends.cuda.emulator.launches import Argument, Launch, Launches, Output, Text, compiled
from treadle.backends.cuda.emulator.options import Emulation
from treadle.backends.cuda.open_artifact import WEIGHTS
from treadle.errors import TreadleError
from treadle.knobs import load_knobs

Array = np.ndarray[Any, Any]


class EmulatedModel:
    """An artifact's kernels, compiled for the emulator, and its constants.

    `emulation` says what its kernels are asked; `reports` has one report for each launch of the last run, in order.
    """

    def __init__(self, folder: Path, manifest: Manifest, emulation: Emulation):
        """Raises TreadleError where the manifest does not fit the folder, and what `Emulator` raises."""
        self.reports: tuple[Report, ...] = ()
        weights = safetensors.load_file(folder / WEIGHTS) if manifest.constants else {}
        try:
            constants = [weights[t.name].view(t.dtype).reshape(t.shape) for t in manifest.constants]
            files = {str(entry["image"]): (folder / entry["image"]).with_suffix(".cu") for entry in manifest.launches}
            texts = {image: Text(file.name, file.read_text()) for image, file in files.items()}
            emulators = compiled(texts, emulation, load_knobs())
            launches = [_launch(entry, emulators[entry["image"]]) for entry in manifest.launches]
            outputs = [Output(tensor.shape, np.dtype(tensor.dtype)) for tensor in manifest.outputs]
        except (KeyError, TypeError, ValueError) as error:
            raise TreadleError(f"the manifest does not fit the folder: {error!r}", folder) from error
        self._launches = Launches(launches, outputs, constants, manifest.arena_bytes, manifest.zeroed_bytes)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The model's outputs for `arrays`, which must have the inputs' shapes and types, in order.

        Raises what `Emulator.launch` raises.
        """
        outputs, self.reports = self._launches.run(arrays)
        return outputs

    def close(self) -> None:
        """Gives the memory back; the model cannot run afterwards."""
        self._launches = Launches((), (), (), 0)


def _launch(entry: Any, emulator: Emulator) -> Launch:
    arguments = (
        Argument(BufferRef(kind, int(index)), np.dtype(dtype), int(elements))
        for (kind, index), (dtype, elements) in zip(entry["buffers"], entry["types"], strict=True)
    )
    return Launch(
        emulator=emulator,
        kernel=str(entry["kernel"]),
        grid=tuple(map(int, entry["grid"])),
        block=tuple(map(int, entry["block"])),
        arguments=tuple(arguments),
        dynamic_shared=int(entry["dynamic_shared"]),
    )
