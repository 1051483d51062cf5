"""What backends share: buffers as plain values, names of files, and the interface that compiled code states."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import le
from pathlib import Path
from typing import Any

import numpy as np

from treadle.artifact.manifest import WROTE_IT, BufferKind, KernelLaunch, Manifest, Tensor
from treadle.errors import TreadleError
from treadle.shapes.states import State

# Buffers of a program as plain values; importing it costs nothing, so that running a model needs no compiler.


@dataclass(frozen=True)
class BufferRef:
    """A kernel's argument: the `index`-th input, output or constant, or the arena or the zeroed memory from byte
    `index` on."""

    kind: BufferKind
    index: int


@dataclass(frozen=True)
class TensorSpec:
    """What an input must be, and what an output is: its name in the model, its shape, its element type; `dense` where
    a call may have a smaller shape, whose elements lie one after another."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dense: bool = False

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a call may have this shape."""
        if shape == self.shape or not self.dense:
            return shape == self.shape
        return len(shape) == len(self.shape) and all(map(le, shape, self.shape))

    @property
    def num_bytes(self) -> int:
        """Size of the tensor, row-major and without padding."""
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


# File names for generated text: names from a model are untrusted.

_LONGEST = 100


def file_names(names: Sequence[str]) -> list[str]:
    """A distinct stem of letters, digits, `_` and `-` for each name, in order; a clash gets a number."""
    taken: set[str] = set()
    stems: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_LONGEST] or "unit"
        chosen, count = stem, 1
        while chosen.lower() in taken:  # some file systems ignore case
            count += 1
            chosen = f"{stem}_{count}"
        taken.add(chosen.lower())
        stems.append(chosen)
    return stems


SYMBOL = "treadle_interface"
KERNEL_SPECIFIERS = "__device__"
"""What stands before the type of the text in a GPU's kernel."""


def program_interface(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    constants: Sequence[Tensor],
    arena_bytes: int,
    extents: Sequence[str] = (),
    states: Sequence[State] = (),
) -> str:
    """What `treadle_run` expects: its tensors in order, with the model's names, the bytes of its arena, which extents
    its last inputs are, and which of them are states."""
    lines = ["treadle interface 1"]
    lines += [f"input {json.dumps(each.name)} {_type(each)}" for each in inputs]
    lines += [f"output {json.dumps(each.name)} {_type(each)}" for each in outputs]
    lines += [f"constant {_type(each)}" for each in constants]
    lines += [f"extent {json.dumps(each)}" for each in extents]
    lines += [f"state {s.argument} {s.result}{' in place' if s.in_place else ''}" for s in states]
    return "\n".join([*lines, f"arena {arena_bytes}", "end"])


def manifest_interface(manifest: Manifest) -> str:
    """The interface of `treadle_run` according to a manifest."""
    tensors = manifest.inputs, manifest.outputs, manifest.constants
    return program_interface(*tensors, manifest.arena_bytes, manifest.extents, manifest.states)


def kernel_interface(launch: KernelLaunch) -> str:
    """What a GPU's kernel expects: its grid, its block, and the elements of each of its buffers."""
    types = [f"{dtype}[{elements}]" for dtype, elements in launch.types]
    sizes = f"grid {list(launch.grid)} block {list(launch.block)} shared {launch.dynamic_shared}"
    maps = [f"map {each.argument} {each.map}" for each in launch.maps]
    return "\n".join(["treadle kernel interface 1", f"kernel {launch.kernel}", sizes, *types, *maps, "end"])


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
