"""The options of a compilation besides its target: precision, how weights are stored, and more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

from treadle.errors import TreadleError

Precision = Literal["f32", "f16", "bf16", "tf32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Weights = Literal["float", "int4", "int8", "bf16"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)

Convolution = Literal["direct", "winograd2", "winograd4"]
CONVOLUTIONS: tuple[Convolution, ...] = get_args(Convolution)

Construction = Literal["default", "walk", "walk-paper", "greedy", "exhaustive", "evolution", "evolution-annealed"]
CONSTRUCTIONS: tuple[Construction, ...] = get_args(Construction)

Emulated = Literal["emulator"]
"""What runs a model in place of the hardware that it was compiled for: its CUDA kernels on the CPU."""

DEVICES: tuple[Emulated, ...] = get_args(Emulated)


class DeviceOfTorch(Protocol):
    """A `torch.device`."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int | None: ...


Device = int | str | DeviceOfTorch
"""What runs a model: a GPU by its number, as `"cuda:1"` or as a `torch.device`, or the emulator."""

ALL_DEVICES = (*DEVICES, "the number of a GPU", "'cuda:1'", "a torch.device of one")


def gpu_number(device: Device) -> int:
    """Which GPU of the machine it is, from 0; "cuda" without a number is the first. TreadleError if it is none."""
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if kind == "cuda":
        return 0 if index is None else int(index)
    found = re.fullmatch(r"cuda(?::(\d{1,4}))?", device, re.ASCII) if isinstance(device, str) else None
    if found is None:
        raise TreadleError(f"unknown device '{device}'", "device", ALL_DEVICES)
    return int(found[1] or 0)


EPSILON: dict[Precision, float] = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, "tf32": 2.0**-10}
"""The distance from 1 to the next number of each precision."""


@dataclass(frozen=True)
class CompileOptions:
    """Choices that change what is compiled.

    precision:      of products, convolutions and attention; f32 means what the model says
    convolution:    of CPUs, in f32: direct, or by Winograd's algorithm in tiles of at most 2x2 or 4x4 outputs, where
                    that is estimated to be faster
    explain_fusion: print to stderr, for each pair of neighbours, whether they share a kernel and why (not)
    database:       folder of tuned schedules, which are taken where it has some; empty means: the defaults
    weights:        how the constant matrices of products are stored; float means as the model has them
    construct:      how a group without a tuned schedule gets one: its template's default, or what a search predicts to
                    be fastest, without timing anything
    """

    precision: Precision = "f32"
    explain_fusion: bool = False
    database: str = ""
    convolution: Convolution = "winograd2"
    construct: Construction = "default"
    weights: Weights = "float"

    def words(self) -> dict[str, str]:
        """The values of the words in capitals in the pipeline's passes."""
        words = {"PRECISION": self.precision, "EXPLAIN": str(self.explain_fusion).lower()}
        words |= {"CONVOLUTION": self.convolution, "CONSTRUCT": self.construct, "WEIGHTS": self.weights}
        return words | {"DATABASE": f'"{self.database}"'}


def parse_precision(name: str) -> Precision:
    """The precision of that name; TreadleError if there is none."""
    if name not in PRECISIONS:
        raise TreadleError(f"unknown precision '{name}'", accepted=PRECISIONS)
    return name


def parse_weights(name: str | None) -> Weights:
    """The way of that name to store weights, the default for None; TreadleError if there is none."""
    if name is None:
        return CompileOptions.weights
    if name not in WEIGHTS:
        raise TreadleError(f"unknown weights '{name}'", accepted=WEIGHTS)
    return name


def parse_construction(name: str | None) -> Construction:
    """The construction of that name, the default for None; TreadleError if there is none."""
    if name is None:
        return CompileOptions.construct
    if name not in CONSTRUCTIONS:
        raise TreadleError(f"unknown construction '{name}'", accepted=CONSTRUCTIONS)
    return name


def parse_convolution(name: str | None, kind: str) -> Convolution:
    """The way of that name to compute convolutions, the default for None; TreadleError for one that targets of that
    kind do not have."""
    if name is None:
        return CompileOptions.convolution
    if name not in CONVOLUTIONS:
        raise TreadleError(f"unknown convolution '{name}'", accepted=CONVOLUTIONS)
    if kind != "cpu" and name != "direct":
        raise TreadleError(f"convolution '{name}' for a {kind} target", accepted="direct; others are of CPUs")
    return name
