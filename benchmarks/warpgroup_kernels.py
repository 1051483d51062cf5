"""Main loops of kernels of warpgroups, beside those of kernels that were written by hand and measured on an H100."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser

from benchmarks.schedule_cases import Case, Operators, Shape, group_of
from treadle.backends.cuda.compiler import Cubin, compile_cubin
from treadle.backends.cuda.machine_code import Instruction, Sass
from treadle.backends.cuda.printer import print_kernels
from treadle.compiler.pipeline import lower
from treadle.dialects.graph import AttentionOp, ConvOp, MatmulOp, TransposeOp
from treadle.dialects.registry import treadle_context
from treadle.dialects.schedule import Choice, UseAttr
from treadle.passes.schedule.instance import anchor_of
from treadle.schedules.templates import TEMPLATES
from treadle.target import Target

TARGET = Target.parse("sm_90a")
MOST_OTHERS = 1.1
"""How many other instructions a step may have, as a part of those of the kernel by hand."""
_LABEL = re.compile(r"\.L_x_\d+")


@dataclass(frozen=True)
class Step:
    """One step of a kernel's main loop.

    products: HGMMA instructions of a warpgroup
    others: other instructions of a thread, where each wait succeeds at its first try
    registers: of a thread at the launch
    spills: bytes of spilled registers
    """

    products: float
    others: float
    registers: int
    spills: int = 0

    def cells(self) -> list[str]:
        """Products, other instructions, registers and spilled bytes, as the document has them."""
        return [f"{self.products:.3g}", f"{self.others:.3g}", str(self.registers), str(self.spills)]


@dataclass(frozen=True)
class Form:
    """A schedule of a group, and the kernel that was written by hand for it.

    choices: knobs other than the default's
    groups: of products that a step commits
    """

    name: str
    template: str
    case: Case
    by_hand: Step
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    groups: int = 1

    def cubin(self) -> Cubin:
        """The compiler's kernel. Raises what `compile_cubin` does."""
        context = treadle_context()
        module = Parser(context, self.case.text()).parse_module()
        group = group_of(module)
        chosen = {**TEMPLATES[self.template].default(anchor_of(group), TARGET), **self.choices}
        group.schedule = UseAttr.get(self.template, chosen)
        lower(context, module, TARGET, after="schedule")
        (unit,) = print_kernels(module)
        return compile_cubin(unit, TARGET)

    def step(self, sass: Sass, cubin: Cubin) -> Step:
        """A step of the compiler's kernel."""
        (resources,) = cubin.resources.values()
        spills = resources.spill_store_bytes + resources.spill_load_bytes
        return Step(*instructions_of_a_step(sass, self.groups), resources.registers, spills)

    def row(self, step: Step) -> list[str]:
        """What the document says of a step of the compiler's kernel, and of one by hand."""
        pairs = zip(step.cells(), self.by_hand.cells(), strict=True)
        return [self.name, f"`{self.template}`", *(cell for pair in pairs for cell in pair)]


def instructions_of_a_step(sass: Sass, groups: int) -> tuple[float, float]:
    """Products of a step of the main loop, which commits so many groups, and other instructions that a thread executes.

    The main loop is the shortest with whole steps; it may hold several. Without one, the steps are written out: then
    it is the mean of those between the first and the last, among which the epilogue's addresses are computed.
    """
    loops = [loop for loop in sass.loops() if _steps(loop, groups) and not any(x.opcode == "EXIT" for x in loop)]
    if loops:
        loop = min(loops, key=len)
        steps, executed, products = _steps(loop, groups), len(loop) - _retried(sass, loop), _products(loop)
    else:
        ends = [n for n, each in enumerate(sass.instructions) if _ends_group(each)]
        loop = sass.instructions[ends[0] + 1 : ends[-2] + 1]
        steps, executed, products = len(ends) - 2, len(loop), _products(loop)
    return products / steps, (executed - products) / steps


def _products(instructions: Sequence[Instruction]) -> int:
    return sum(each.opcode.startswith("HGMMA") for each in instructions)


def _ends_group(instruction: Instruction) -> bool:
    return instruction.opcode.startswith("HGMMA") and "gsb0" in instruction.operands


def _steps(loop: Sequence[Instruction], groups: int) -> int:
    """How many steps a loop has; 0 where it has parts of some."""
    found = sum(map(_ends_group, loop))
    return 0 if found % groups else found // groups


def _retried(sass: Sass, loop: Sequence[Instruction]) -> int:
    """Instructions of a loop that are skipped where waits succeed at once.

    A branch behind the first try, to a place further down in the loop, leads around those that try again.
    """
    start = next(n for n in range(len(sass.instructions)) if sass.instructions[n] is loop[0])
    skipped, n = 0, 0
    while n < len(loop):
        label = _LABEL.search(loop[n].operands) if loop[n].opcode.startswith("BRA") else None
        tried = n > 0 and loop[n - 1].opcode.endswith("TRYWAIT")
        behind = sass.labels.get(label.group(), 0) - start if tried and label is not None else 0
        if n < behind < len(loop):
            skipped += behind - n - 1
            n = behind
        else:
            n += 1
    return skipped


def _product(x: Sequence[SSAValue]) -> Sequence[Operation]:
    return [MatmulOp(x[0], x[1])]


def _attention(size: int, *, causal: bool) -> Operators:
    return lambda x: [AttentionOp(*x, scale=size**-0.5, causal=causal)]


def _of_product(m: int, k: int, n: int) -> Case:
    shapes: tuple[Shape, ...] = ((m, k), (k, n))
    return Case(f"{m} x {k} x {n}", shapes, _product, "float16")


def _tiles(size: int, block: tuple[int, int], stages: int, by_hand: Step) -> Form:
    name = f"{block[0]} x {block[1]}, {stages} stages"
    choices: Mapping[str, Choice] = {"block": block, "stages": stages}
    return Form(name, "matmul_wgmma", _of_product(size, size, size), by_hand, choices)


def _heads(size: int, columns: int, consumers: int, by_hand: Step, *, causal: bool) -> Form:
    name = f"{'causal, ' if causal else ''}heads of {size}, {columns} keys, {consumers} consumers"
    stages = consumers if columns == 128 else 2
    choices: Mapping[str, Choice] = {"columns": columns, "consumers": consumers, "stages": stages, "order": 2}
    case = Case(name, ((1, 16, 2048, size),) * 3, _attention(size, causal=causal), "float16")
    return Form(name, "attention_wgmma", case, by_hand, choices, groups=2)


def _clusters(m: int, k: int, n: int, by_hand: Step) -> Form:
    return Form(f"{m} x {k} x {n}", "matmul_cluster", _of_product(m, k, n), by_hand)


def _of_convolution(name: str, image: Shape, channels: int, kernel: int, stride: int) -> Case:
    """Of images and filters that have their channels last, as they have inside of a model."""

    def operators(x: Sequence[SSAValue]) -> Sequence[Operation]:
        first, filters = TransposeOp(x[0], [0, 3, 1, 2]), TransposeOp(x[1], [3, 2, 0, 1])
        result = ConvOp(first.result, filters.result, [stride] * 2, [kernel // 2] * 4, [1, 1], 1)
        return [first, filters, result, TransposeOp(result.result, [0, 2, 3, 1])]

    return Case(name, (image, (kernel, kernel, image[-1], channels)), operators, "float16", after=None)


def _convolution(template: str, image: Shape, channels: int, kernel: int, stride: int, by_hand: Step) -> Form:
    count, *pixels, _ = image
    name = f"{kernel} x {kernel}, {image[-1]} to {channels}, {count} x {pixels[0]} x {pixels[1]}"
    name += f" by {stride}" if stride > 1 else ""
    return Form(name, template, _of_convolution(name, image, channels, kernel, stride), by_hand)


@cache
def forms() -> Mapping[str, Form]:
    """The kernels, by name. Those by hand were compiled by nvcc 13.0, and their instructions counted likewise."""
    listed = (
        _tiles(4096, (128, 256), 4, Step(4, 37, 168)),
        _tiles(4096, (128, 192), 4, Step(4, 39, 168)),
        _tiles(3072, (128, 192), 5, Step(4, 39, 168)),
        _tiles(4096, (256, 128), 4, Step(8, 44, 168)),
        *(
            _heads(size, columns, consumers, by_hand, causal=causal)
            for size, columns, consumers, by_hand in (
                (128, 128, 2, Step(16, 436, 168)),
                (64, 128, 3, Step(12, 403, 128)),
                (128, 176, 2, Step(19, 556, 168)),
                (64, 192, 2, Step(16, 553, 168)),
            )
            for causal in (False, True)
        ),
        _clusters(128, 768, 2304, Step(4, 33, 72)),
        _clusters(128, 768, 768, Step(4, 33, 64)),
        _clusters(128, 768, 3072, Step(4, 33, 72)),
        _clusters(128, 3072, 768, Step(4, 33, 64)),
        _convolution("matmul_cluster", (1, 14, 14, 256), 256, 3, 1, Step(4, 32, 64)),
        _convolution("matmul_cluster", (1, 7, 7, 512), 512, 3, 1, Step(4, 32, 64)),
        _convolution("matmul_wgmma", (32, 14, 14, 1024), 2048, 1, 2, Step(4, 37, 168)),
        _convolution("matmul_wgmma", (128, 7, 7, 512), 512, 3, 1, Step(4, 37, 168)),
        _convolution("matmul_wgmma", (128, 14, 14, 512), 512, 3, 2, Step(4, 37, 168)),
    )
    return {f"{form.template} {form.name}": form for form in listed}
