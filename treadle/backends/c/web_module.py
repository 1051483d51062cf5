"""A library for WebAssembly as a module, what calls it from JavaScript, and a page that shows it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from treadle.artifact.manifest import Manifest, Tensor, dynamic_calls
from treadle.backends.c.compiler import Toolchain, write
from treadle.backends.memory import memory_of
from treadle.errors import TreadleError
from treadle.shapes.states import given_of, made_of

_SOURCES = Path(__file__).parent / "library"
_MOST_BYTES = (1 << 31) - 1
"""Addresses have 32 bits, and so have the indices of kernels, with a sign."""
_FUNCTIONS = ("create", "run_at", "input_shape", "output_shape", "length", "rewind", "reset", "destroy", "message")
_MEMORY = ("aligned_alloc", "free")


def web_files(name: str) -> tuple[str, ...]:
    """The files of a module, beside those of its library."""
    return f"{name}.wasm", f"{name}.mjs", f"{name}.html"


def check_addresses(manifest: Manifest) -> None:
    """TreadleError for a model that needs more memory than indices of 32 bits reach."""
    needed = memory_of(manifest).peak
    if needed > _MOST_BYTES:
        accepted = f"up to {_MOST_BYTES} bytes: smaller shapes, or --weights int4"
        raise TreadleError(f"the model takes {needed} bytes", f"target {manifest.target}", accepted)


def write_web_module(
    toolchain: Toolchain, objects: Sequence[Path], name: str, manifest: Manifest, weights_bytes: int, folder: Path
) -> None:
    """Links the objects of a library to a module, and writes it with its JavaScript and the page into a folder.

    Raises what the linker raises.
    """
    module, script, page = (folder / each for each in web_files(name))
    exported = [*(f"{name}_{function}" for function in _FUNCTIONS), *_MEMORY]
    write(toolchain.link_command(list(objects), module, exported), module, str(module))
    description = json.dumps(_description(manifest, weights_bytes), indent=4)
    # The description last: names of a model may be anything.
    text = (_SOURCES / "model.mjs").read_text().replace("MODEL", name).replace("{DESCRIPTION}", description)
    script.write_text(text)
    page.write_text((_SOURCES / "page.html").read_text().replace("MODEL", name))


def _description(manifest: Manifest, weights_bytes: int) -> dict[str, object]:
    """What JavaScript has to know of a model: the header's tables."""
    given, calls = given_of(manifest.inputs, manifest.states), dynamic_calls(manifest)
    dimensions = [
        {
            "name": dim.name, "least": dim.least, "greatest": dim.greatest, "multiple": dim.multiple,
            "kept": dim.name in calls.lengths,
        }
        for dim in manifest.symbols
    ]  # fmt: skip
    return {
        "inputs": [_tensor(each) for each in given[: len(given) - len(manifest.extents)]],
        "outputs": [_tensor(each) for each in made_of(manifest.outputs, manifest.states)],
        "dimensions": dimensions,
        "weights": weights_bytes,
    }


def _tensor(tensor: Tensor) -> dict[str, object]:
    padded = bool(tensor.extents) and not tensor.dense
    shape, size = list(tensor.shape), tensor.num_bytes
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": shape, "bytes": size, "padded": padded}
