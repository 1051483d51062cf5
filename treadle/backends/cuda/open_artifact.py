"""Opens a cuda artifact on this machine's GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import numpy as np

from treadle.artifact.artifact import Artifact
from treadle.artifact.manifest import KernelLaunch, Tensor
from treadle.artifact.weights import read_weights
from treadle.backends.cuda.compiler import HEADER_NAME, Unit, compile_cubins
from treadle.backends.cuda.driver import Device, Driver
from treadle.backends.cuda.executor import CudaProgram, Launch
from treadle.backends.cuda.open_driver import open_driver
from treadle.backends.interface import BufferRef, TensorSpec, check_interface, kernel_interface
from treadle.errors import TreadleError
from treadle.target import Target


def open_program(
    artifact: Artifact, driver: Driver | None = None, *, device: int = 0, rebuild: bool = False
) -> CudaProgram:
    """The artifact's program on a device, its constants uploaded, its kernels loaded.

    Without a driver it opens that of the GPU number `device`, which then is the program's own.

    With `rebuild` the kernels are compiled anew from the artifact's CUDA text and its header. TreadleError if there is
    no such GPU, if it is of another architecture, if a file is missing or changed, and if the manifest does not fit the
    kernels.
    """
    manifest = artifact.manifest
    names = sorted({launch.image for launch in manifest.launches})
    images = _rebuilt_images(artifact, names) if rebuild else _stored_images(artifact, names)
    for launch in manifest.launches:
        what = f"kernel '{launch.kernel}'"
        check_interface(images[launch.image], kernel_interface(launch), what, artifact.folder / launch.image)
    launches = [launch_of(launch, images[launch.image]) for launch in manifest.launches]
    inputs, outputs = ([_spec(tensor) for tensor in each] for each in (manifest.inputs, manifest.outputs))
    constants = read_weights(artifact)
    memory = constants, manifest.arena_bytes, manifest.zeroed_bytes
    dispatches, states = manifest.dispatches, manifest.states
    if driver is not None:
        return CudaProgram(driver, launches, inputs, outputs, *memory, dispatches=dispatches, states=states)
    own = open_driver(device)
    try:
        _check_architecture(manifest.target, own)
        return CudaProgram(
            own, launches, inputs, outputs, *memory, owns_driver=True, dispatches=dispatches, states=states
        )
    except BaseException:
        own.close()
        raise


def _check_architecture(name: str, device: Device) -> None:
    """Raises `TreadleError` unless cubins for a target run on a device: code for one minor version runs on later ones
    of its major version, and with an `a` behind its name on none but its own (CUDA Programming Guide, section 5.1)."""
    target, (major, minor) = Target.parse(name), device.capability
    least, own = target.capability, 10 * major + minor
    fits = own == least if target.name.endswith("a") else own // 10 == least // 10 and own >= least
    if not fits:
        message = f"the artifact is compiled for {target.name}, the device has capability {major}.{minor}"
        accepted = f"a model compiled for {Target.for_capability(major, minor).name}"
        raise TreadleError(message, f"cuda:{device.number} ({device.device_name})", accepted)


def text_of(image: str) -> str:
    """The file of the text that a cubin was compiled from."""
    return str(PurePosixPath(image).with_suffix(".cu"))


def _stored_images(artifact: Artifact, names: list[str]) -> Mapping[str, bytes]:
    """The cubins; TreadleError for an artifact that was compiled for the emulator where NVRTC was absent."""
    files = artifact.manifest.files.keys()
    if names and not files & names and all(text_of(name) in files for name in names):
        accepted = "treadle.load(folder, rebuild=True) where NVRTC is installed, or device='emulator'"
        raise TreadleError("the artifact has CUDA text but no cubins", artifact.folder, accepted)
    return {name: artifact.read(name) for name in names}


def _rebuilt_images(artifact: Artifact, names: list[str]) -> Mapping[str, bytes]:
    units = [Unit(PurePosixPath(name).stem, artifact.read_text(text_of(name))) for name in names]
    header = artifact.read_text(f"kernels/{HEADER_NAME}")
    cubins = compile_cubins(units, Target.parse(artifact.manifest.target), header=header)
    return {name: cubin.image for name, cubin in zip(names, cubins, strict=True)}


def launch_of(launch: KernelLaunch, image: bytes) -> Launch:
    """A launch of an artifact with its cubin."""
    return Launch(
        kernel=launch.kernel,
        image=image,
        grid=launch.grid,
        block=launch.block,
        buffers=tuple(BufferRef(kind, index) for kind, index in launch.buffers),
        dynamic_shared=launch.dynamic_shared,
        maps=launch.maps,
    )


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.shape, np.dtype(tensor.dtype))
