"""The interface of compiled code, as a text in the code itself: a manifest that contradicts it is rejected.

Compiled code accesses as many bytes as it was compiled for. A manifest with smaller shapes, fewer inputs or a smaller
arena would make it run on buffers that are too small.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from treadle.errors import TreadleError
from treadle.manifest import WROTE_IT, KernelLaunch, Manifest, Tensor

SYMBOL = "treadle_interface"
KERNEL_SPECIFIERS = "__device__"
"""What stands before the type of the text in a GPU's kernel."""


def program_interface(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    constants: Sequence[Tensor],
    arena_bytes: int,
    extents: Sequence[str] = (),
) -> str:
    """What `treadle_run` expects: its tensors in order, with the model's names, the bytes of its arena, and which
    extents its last inputs are."""
    lines = ["treadle interface 1"]
    lines += [f"input {json.dumps(each.name)} {_type(each)}" for each in inputs]
    lines += [f"output {json.dumps(each.name)} {_type(each)}" for each in outputs]
    lines += [f"constant {_type(each)}" for each in constants]
    lines += [f"extent {json.dumps(each)}" for each in extents]
    return "\n".join([*lines, f"arena {arena_bytes}", "end"])


def manifest_interface(manifest: Manifest) -> str:
    """The interface of `treadle_run` according to a manifest."""
    tensors = manifest.inputs, manifest.outputs, manifest.constants
    return program_interface(*tensors, manifest.arena_bytes, manifest.extents)


def kernel_interface(launch: KernelLaunch) -> str:
    """What a GPU's kernel expects: its grid, its block, and the elements of each of its buffers."""
    types = [f"{dtype}[{elements}]" for dtype, elements in launch.types]
    sizes = f"grid {list(launch.grid)} block {list(launch.block)} shared {launch.dynamic_shared}"
    return "\n".join(["treadle kernel interface 1", f"kernel {launch.kernel}", sizes, *types, "end"])


def c_definition(text: str, specifiers: str) -> str:
    """The definition of the text as a string in C, with `specifiers` such as `const` before its type."""
    literals = "\n".join(f'    "{_escaped(line)}\\n"' for line in text.splitlines())
    return f"{specifiers} char {SYMBOL}[] =\n{literals};"


def has_interface(code: bytes, text: str) -> bool:
    """Whether compiled code contains the text."""
    return f"{text}\n\0".encode() in code


def check_interface(code: bytes, text: str, what: str, where: Path) -> None:
    """Raises TreadleError unless the compiled code contains the text."""
    if not has_interface(code, text):
        message = f"the manifest does not fit {what}: other inputs, outputs, constants, sizes or launches"
        raise TreadleError(message, where, WROTE_IT)


def check_source(source: str, launch: KernelLaunch, where: Path) -> None:
    """Raises TreadleError unless the text of a kernel says the same of its launch as the manifest."""
    if c_definition(kernel_interface(launch), KERNEL_SPECIFIERS) not in source:
        message = f"the manifest does not fit the text of kernel '{launch.kernel}': another grid, block or other sizes"
        raise TreadleError(message, where, WROTE_IT)


def _type(tensor: Tensor) -> str:
    """Element type and largest shape, and the extents of what has the shape of the call."""
    extents = f" dense {json.dumps(tensor.extents)}" if tensor.dense else ""
    return f"{tensor.dtype}{list(tensor.shape)}{extents}"


def _escaped(line: str) -> str:
    """ASCII as it may stand between quotes in C; octal, since hexadecimal escapes have no end."""
    return "".join(c if c.isalnum() or c in " []{}()<>=,.:;_+-*/" else f"\\{ord(c):03o}" for c in line)


__all__ = [
    "KERNEL_SPECIFIERS", "SYMBOL", "c_definition", "check_interface", "check_source", "has_interface",
    "kernel_interface", "manifest_interface", "program_interface",
]  # fmt: skip
