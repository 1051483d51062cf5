"""A compiled model as the compiler gives it: one of the runtime's, which the emulator runs, too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.artifact.artifact import Artifact
from treadle.backends.c.executor import CpuProgram, ThreadPool
from treadle.backends.cuda.emulator import Emulation, Report
from treadle.backends.cuda.emulator.open_artifact import EmulatedModel
from treadle.backends.timeline import EVENTS, LaunchNames, Timeline
from treadle.errors import TreadleError
from treadle.runtime.model import Model, Program, TracedProgram
from treadle.support.lazy import lazy_module
from treadle.target.options import DEVICES, Device, gpu_number

if TYPE_CHECKING:
    from treadle.backends import launch_names
else:  # running a model imports no dialects
    launch_names = lazy_module("treadle.backends.launch_names")


class CompiledModel(Model):
    """A compiled model; its kernels are loaded when it is first called.

    ```python
    m = treadle.compile("m.onnx", shapes={"x": (1, 3, 48, 320)})
    (y,) = m(x)          # or m(x=x)
    m.save("m.treadle")
    ```
    Calls, states and everything else are those of `treadle.runtime.Model`. `device="emulator"` runs the kernels of a
    GPU on the CPU, and a timeline names the model's nodes.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int | ThreadPool | None = None,
        *,
        device: Device | None = None,
        emulation: Emulation | None = None,
        rebuild: bool = False,
    ):
        """As `Model`; `device="emulator"` (cuda only) runs the kernels on the CPU, with the checks and counters of
        `emulation`, and `reports` has the results of these."""
        self.emulation = Emulation() if emulation is None else emulation
        check_device(device, self.emulation, artifact.manifest.target, artifact.manifest.kind)
        super().__init__(artifact, threads, device=None if device in DEVICES else device, rebuild=rebuild)
        self.device = device

    @property
    def reports(self) -> tuple[Report, ...]:
        """What the emulator's checks found and counted in the last call, a report a launch; else none."""
        return self._program.reports if isinstance(self._program, EmulatedModel) else ()

    def trace(self, events: int = EVENTS) -> Timeline:
        """As `Model.trace`; TreadleError for a model on the emulator, too."""
        if self.device == "emulator":
            message, accepted = "the emulator's launches have no times", "a model on a CPU or a GPU"
            raise TreadleError(message, "CompiledModel.trace", accepted)
        return super().trace(events)

    def open_program(self) -> Program:
        """As `Model.open_program`, or the emulator's."""
        return EmulatedModel(self.artifact, self.emulation) if self.device == "emulator" else super().open_program()

    def launch_names(self, program: TracedProgram) -> LaunchNames:
        """Kernels by their names, and the nodes that they compute, from the artifact's IR."""
        addresses = program.kernel_names if isinstance(program, CpuProgram) else None
        return launch_names.launch_names(self.artifact, addresses)


def load(
    path: str | Path,
    threads: int | ThreadPool | None = None,
    *,
    device: Device | None = None,
    checks: Sequence[str] = (),
    counters: bool = False,
    limit: float | None = None,
    rebuild: bool = False,
) -> CompiledModel:
    """A model that `CompiledModel.save` or `treadle compile` wrote.

    An artifact is a program: load only what you would run. Its digests find damage, not malice. With `rebuild=True` its
    kernels are compiled here, from its own text and headers, and the compiled code in it is never loaded: for another
    processor or system, and for those who have read the text. Without it, a library that this system cannot load is
    rebuilt, too.

    TreadleError if the manifest is missing or damaged. The other files are checked when they are read, at the first
    call. `threads`, `device`, `checks`, `counters` and `limit` are those of `treadle.compile`.
    """
    artifact = Artifact(Path(path))
    emulation = Emulation(tuple(checks), counters, limit)
    return CompiledModel(artifact, threads, device=device, emulation=emulation, rebuild=rebuild)


def check_device(device: Device | None, emulation: Emulation, target: str, kind: str) -> None:
    """TreadleError for a device that does not run what is compiled for `target`, and for its options without it."""
    if device is None and emulation.asked:
        raise TreadleError(f"{emulation.asked} without the emulator", "device", DEVICES)
    if device is None:
        return
    if device not in DEVICES:
        gpu_number(device)
        if emulation.asked:
            raise TreadleError(f"{emulation.asked} without the emulator", "device", DEVICES)
    if kind != "cuda":
        accepted = "a target whose kernels are CUDA, such as sm_80"
        runs = "the emulator" if device in DEVICES else "a GPU"
        raise TreadleError(f"{runs} does not run what is compiled for {target}", "device", accepted)
