"""The launches of a model on the emulator, one after another, and the memory that their kernels share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from treadle.backends.call_lock import CallLock
from treadle.backends.cuda.emulator.emulator import LIMIT, Emulator, check_limit
from treadle.backends.cuda.emulator.reports import Report
from treadle.backends.interface import BufferRef
from treadle.environment import Environment, available_cores
from treadle.errors import TreadleError
from treadle.shapes.decision_tree import Dispatch, chosen_launches
from treadle.target.tensor_map import TensorMap

# Options of a model that runs on the emulator.

OBSERVED_LIMIT = 600.0
"""Seconds that a kernel of a model may take with checks or counters, by default."""


@dataclass(frozen=True)
class Emulation:
    """How the kernels of a model run: the `checks`, `counters` and `limit` of `Emulator`.

    A limit of None is 60 seconds a kernel, and 600 with checks or counters. Raises TreadleError for a limit that is
    no number of seconds.
    """

    checks: tuple[str, ...] = ()
    counters: bool = False
    limit: float | None = None

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_limit(self.limit, "limit")

    @property
    def seconds(self) -> float:
        """The limit in force."""
        if self.limit is not None:
            return self.limit
        return OBSERVED_LIMIT if self.checks or self.counters else LIMIT

    @property
    def asked(self) -> str | None:
        """The first option that is set, as a message names it."""
        named = {"checks": bool(self.checks), "counters": self.counters, "a time limit": self.limit is not None}
        return next((name for name, is_set in named.items() if is_set), None)


Array = np.ndarray[Any, Any]

_ALIGNMENT = 256
_NEVER_WRITTEN = 0xFF
"""Fills scratch memory: NaN as a number, an index that lies outside of every buffer."""
LEFT_OUT = 0x7F
"""Fills scratch memory of which kernels may leave elements: as a number NaN or huge, as an index outside, and what the
emulator does not look for."""


@dataclass(frozen=True)
class Text:
    """A CUDA text and the file name that messages give it."""

    name: str
    text: str


@dataclass(frozen=True)
class Argument:
    """A kernel's buffer: where it lies, and what the kernel takes it for; `map` where that is a tensor map of it."""

    buffer: BufferRef
    dtype: np.dtype[Any]
    elements: int
    map: TensorMap | None = None


@dataclass(frozen=True)
class Launch:
    """A kernel, the emulator that has it, and all that a launch of it takes."""

    emulator: Emulator
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Argument, ...]
    dynamic_shared: int


@dataclass(frozen=True)
class Output:
    """The shape and the element type of one of the model's outputs."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Launches:
    """What a model's call launches, with its constants, the arena of its temporaries, of `arena_bytes`, and the memory
    that is zero between launches, of `zeroed_bytes`. Runs of several threads take turns.

    in_part: kernels may leave elements of temporaries and outputs unwritten, and compute others, which nobody needs,
        with them; the check for what is made of memory never written takes those for written
    dispatches: where a call runs one of several launches
    """

    def __init__(
        self,
        launches: Sequence[Launch],
        outputs: Sequence[Output],
        constants: Sequence[Array],
        arena_bytes: int,
        zeroed_bytes: int = 0,
        *,
        in_part: bool = False,
        dispatches: Sequence[Dispatch] = (),
    ):
        self._launches, self._dispatches = tuple(launches), tuple(dispatches)
        self._outputs = tuple(outputs)
        self._constants = [_copied(constant) for constant in constants]
        self._arena = _allocated(arena_bytes)
        self._unwritten = LEFT_OUT if in_part else _NEVER_WRITTEN
        self._zeroed = _allocated(zeroed_bytes)
        self._calls = CallLock("emulator")

    def run(
        self, inputs: Sequence[Array], before: Mapping[int, Array] | None = None
    ) -> tuple[list[Array], tuple[Report, ...]]:
        """The outputs for `inputs`, which must have the inputs' shapes and types, and a report a launch that runs.

        before: what outputs, by number, hold at first

        Raises TreadleError for a kernel that leaves memory other than zero where it found it zero, and what
        `Emulator.launch` raises.
        """
        return self._calls.call(lambda: self._run(inputs, before or {}))

    def _run(self, inputs: Sequence[Array], before: Mapping[int, Array]) -> tuple[list[Array], tuple[Report, ...]]:
        self._zeroed.fill(0)
        memory = {
            "input": [_copied(array) for array in inputs],
            "output": [_allocated_as(output.shape, output.dtype) for output in self._outputs],
            "constant": self._constants,
        }
        for scratch in (self._arena, *(output.reshape(-1).view(np.uint8) for output in memory["output"])):
            scratch.fill(self._unwritten)
        for number, array in before.items():
            memory["output"][number][...] = array
        reports: list[Report] = []
        chosen = chosen_launches(len(self._launches), self._dispatches, lambda number: int(inputs[number]))
        for launch in (self._launches[number] for number in chosen):
            args = [self._argument(argument, memory) for argument in launch.arguments]
            report = launch.emulator.launch(launch.kernel, launch.grid, launch.block, args, launch.dynamic_shared)
            reports.append(report)
            if self._zeroed.any():
                raise TreadleError("zeroed memory is not zero after the launch", f"kernel '{launch.kernel}'")
        return memory["output"], tuple(reports)

    def _argument(self, argument: Argument, memory: Mapping[str, list[Array]]) -> Array | tuple[TensorMap, Array]:
        array = self._array(argument, memory)
        return array if argument.map is None else (argument.map, array)

    def _array(self, argument: Argument, memory: Mapping[str, list[Array]]) -> Array:
        """The kernel's argument: all of a tensor, or its part of the arena or of the zeroed memory."""
        kind, index = argument.buffer.kind, argument.buffer.index
        if kind not in ("arena", "zeroed"):
            return memory[kind][index]
        shared = self._arena if kind == "arena" else self._zeroed
        return shared[index : index + argument.elements * argument.dtype.itemsize].view(argument.dtype)


def compiled(texts: Mapping[str, Text], emulation: Emulation, environment: Environment) -> dict[str, Emulator]:
    """An emulator for each text, compiled on all cores."""

    def compile_one(text: Text) -> Emulator:
        return Emulator(
            text.text,
            emulation.checks,
            counters=emulation.counters,
            name=text.name,
            limit=emulation.seconds,
            environment=environment,
        )

    with ThreadPoolExecutor(available_cores()) as pool:
        return dict(zip(texts, pool.map(compile_one, texts.values()), strict=True))


def _copied(array: Array) -> Array:
    """A copy that is aligned as device memory is: vector loads of an array that NumPy made may not be."""
    copy = _allocated_as(array.shape, array.dtype)
    copy[...] = array
    return copy


def _allocated_as(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return _allocated(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def _allocated(num_bytes: int) -> Array:
    """Bytes that begin at a multiple of 256, as device memory does."""
    raw = np.full(num_bytes + _ALIGNMENT, _NEVER_WRITTEN, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes]
