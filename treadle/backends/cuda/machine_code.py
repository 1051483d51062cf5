"""What tests and benchmarks ask of a cubin: its machine code, and how many blocks of its kernels are resident."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from treadle.backends.cuda.cubin import Resources
from treadle.errors import TreadleError
from treadle.schedules.occupancy import Occupancy, occupancy_of
from treadle.target import Target


def occupancy(resources: Resources, target: Target, threads: int, dynamic_shared: int = 0) -> Occupancy:
    """The theoretical occupancy of a kernel launched with `threads` per block on `target`.

    `dynamic_shared` is the launch's dynamic shared memory in bytes. Raises what `occupancy_of` raises.
    """
    return occupancy_of(target, threads, resources.registers, resources.shared_bytes + dynamic_shared)


# The machine code of a cubin, for tests that a kernel uses the instructions it was written for.

_DISTRIBUTION = "nvidia-cuda-nvdisasm"
_TEXT_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.M)
_UNKNOWN_ARCHITECTURE = re.compile(r"Cannot decode architecture '(\w+)'")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);|^(\.L_x_\d+):", re.M)
_TARGET = re.compile(r"\.L_x_\d+")


@dataclass(frozen=True)
class Instruction:
    """One machine instruction: `LDG.E.128` and `R4, desc[UR4][R2.64]`."""

    opcode: str
    operands: str


@dataclass(frozen=True)
class Sass:
    """The machine code of one kernel.

    labels: of branch targets, the number of the instruction that they stand before
    """

    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int] = field(default_factory=dict[str, int], compare=False)

    def loops(self) -> list[Sequence[Instruction]]:
        """What is between the target of each backward branch and the branch, in the order of their ends."""
        found: list[Sequence[Instruction]] = []
        for n, each in enumerate(self.instructions):
            target = _TARGET.search(each.operands) if each.opcode.startswith("BRA") else None
            start = None if target is None else self.labels.get(target.group())
            if start is not None and start <= n:
                found.append(self.instructions[start : n + 1])
        return found

    def has(self, opcode: str) -> bool:
        """Whether there is an instruction `opcode`, such as `HMMA` or `LDG.E.128`.

        Parts after the given ones do not matter, and other parts may stand between: `LDG.128` finds
        `LDG.E.128.CONSTANT`.
        """
        return self.count(opcode) > 0

    def count(self, opcode: str) -> int:
        """How many instructions match `opcode`, as `has` does."""
        return sum(_matches(each.opcode, opcode) for each in self.instructions)

    @property
    def has_vector_loads(self) -> bool:
        """Whether global memory is read 16 bytes at a time."""
        return self.has("LDG.128")

    @property
    def has_vector_stores(self) -> bool:
        """Whether global memory is written 16 bytes at a time."""
        return self.has("STG.128")

    @property
    def has_shared_vector_loads(self) -> bool:
        """Whether shared memory is read 16 bytes at a time, other than by `ldmatrix`."""
        return self.has("LDS.128")

    @property
    def has_tensor_products(self) -> bool:
        """Whether tensor cores multiply matrices of floats, or of bytes, in registers."""
        return self.has("HMMA") or self.has("IMMA")

    @property
    def has_async_copies(self) -> bool:
        """Whether data goes from global to shared memory without passing through registers."""
        return self.has("LDGSTS")

    @property
    def uses_local_memory(self) -> bool:
        """Whether a register array or a spilled register lives in local memory."""
        return self.has("LDL") or self.has("STL")


def disassemble(image: bytes) -> Mapping[str, Sass]:
    """The machine code of every kernel in a cubin, by name.

    Raises `TreadleError` when the nvdisasm wheel is absent or older than the architecture, and with nvdisasm's
    message when it rejects `image`.
    """
    program = _nvdisasm()
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(image)
        # Without the analysis of branch targets, which the text does not show and which takes a quarter of the time.
        done = subprocess.run([program, "--no-dataflow", str(cubin)], capture_output=True, text=True, check=False)
    unknown = _UNKNOWN_ARCHITECTURE.search(done.stderr)
    if unknown is not None:
        message = f"nvdisasm does not know {unknown.group(1)}"
        raise TreadleError(message, where="disassembler", accepted=f"a newer {_DISTRIBUTION}")
    if done.returncode != 0:
        raise TreadleError(f"nvdisasm failed: {done.stderr.strip()}", where="disassembler", accepted="a cubin")
    return parse_sass(done.stdout)


def parse_sass(text: str) -> dict[str, Sass]:
    """The instructions in nvdisasm's output, by kernel."""
    sections = _TEXT_SECTION.split(text)
    return {name: _kernel(section) for name, section in zip(sections[1::2], sections[2::2], strict=True)}


def _kernel(section: str) -> Sass:
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for opcode, operands, label in _INSTRUCTION.findall(section):
        if label:
            labels[label] = len(instructions)
        else:
            instructions.append(Instruction(opcode, operands.strip()))
    return Sass(tuple(instructions), labels)


def _matches(opcode: str, wanted: str) -> bool:
    """Whether the first parts are the same, and the other wanted parts follow in order."""
    first, *parts = opcode.split(".")
    wanted_first, *wanted_parts = wanted.split(".")
    rest = iter(parts)
    return first == wanted_first and all(part in rest for part in wanted_parts)


def _nvdisasm() -> str:
    """The path of the wheel's program; without the wheel that of a CUDA toolkit's in PATH."""
    try:
        files = metadata.files(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        files = []
    program = next((file for file in files if file.name in ("nvdisasm", "nvdisasm.exe")), None)
    found = shutil.which("nvdisasm") if program is None else str(program.locate())
    if found is None:
        accepted = f"pip install {_DISTRIBUTION}, or nvdisasm in PATH"
        raise TreadleError("nvdisasm is not installed", where="disassembler", accepted=accepted)
    return found
