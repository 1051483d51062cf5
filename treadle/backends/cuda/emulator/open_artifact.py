"""Opens a cuda artifact on the emulator, which runs its printed kernels in order on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import KernelLaunch
from treadle.artifact.weights import read_weights
from treadle.backends.cuda.emulator.emulator import Emulator
from treadle.backends.cuda.emulator.launches import Argument, Emulation, Launch, Launches, Output, Text, compiled
from treadle.backends.cuda.emulator.reports import Report
from treadle.backends.cuda.open_artifact import text_of
from treadle.backends.interface import BufferRef, check_source
from treadle.backends.states import StateMemory
from treadle.environment import load_environment
from treadle.errors import TreadleError

Array = np.ndarray[Any, Any]


class EmulatedModel:
    """An artifact's kernels, compiled for the emulator, and its constants.

    `emulation` has the checks and counters; `reports` has one report for each launch of the last run, in order.
    """

    def __init__(self, artifact: Artifact, emulation: Emulation):
        """Raises TreadleError for a file that is missing or changed, a manifest that does not fit the kernels, and what
        `Emulator` raises."""
        self.reports: tuple[Report, ...] = ()
        manifest = artifact.manifest
        files = {launch.image: text_of(launch.image) for launch in manifest.launches}
        texts = {image: Text(PurePosixPath(file).name, artifact.read_text(file)) for image, file in files.items()}
        for launch in manifest.launches:
            check_source(texts[launch.image].text, launch, artifact.folder / files[launch.image])
        emulators = compiled(texts, emulation, load_environment())
        launches = [_launch(launch, emulators[launch.image]) for launch in manifest.launches]
        outputs = [Output(tensor.shape, np.dtype(tensor.dtype)) for tensor in manifest.outputs]
        constants = read_weights(artifact)
        self._kept = manifest.states
        self._states = StateMemory(self._kept, manifest.inputs)
        sizes = manifest.arena_bytes, manifest.zeroed_bytes
        self._launches: Launches | None = Launches(
            launches, outputs, constants, *sizes, in_part=bool(manifest.extents), dispatches=manifest.dispatches
        )

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The model's outputs for `arrays`, which must have the inputs' shapes and types, in order.

        Raises TreadleError after close(), and what `Emulator.launch` raises.
        """
        launches = self._launches
        if launches is None:
            raise TreadleError("the program was closed", where="run")
        inputs = self._states.inputs(arrays)
        before = {state.result: inputs[state.argument] for state in self._kept if state.in_place}
        made, self.reports = launches.run(inputs, before)
        return self._states.taken(made)

    def clear_states(self) -> None:
        """Sets all states to 0."""
        self._states.clear()

    def close(self) -> None:
        """Gives the memory back, once no run needs it; the model cannot run afterwards."""
        self._launches = None


def _launch(launch: KernelLaunch, emulator: Emulator) -> Launch:
    arguments = [
        Argument(BufferRef(kind, index), np.dtype(dtype), elements)
        for (kind, index), (dtype, elements) in zip(launch.buffers, launch.types, strict=True)
    ]
    arguments += [replace(arguments[each.argument], map=each.map) for each in launch.maps]
    return Launch(
        emulator=emulator,
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        arguments=tuple(arguments),
        dynamic_shared=launch.dynamic_shared,
    )
