"""Loops and spills that the reader of assembly finds: in texts written by hand, and in C that has too many vectors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.backends.c.toolchains import COMMANDS, private_environment
from tests.helpers.assembly import assembly_of, inner_loops
from treadle.backends.c.compiler import Unit
from treadle.target import TARGETS
from treadle.target.host import lacks

FUNCTION = "\t.type\tf, @function\nf:\n{}\n\tret\n\t.size\tf, .-f\n"
NESTED = """
.L2:
\tvaddps\t8(%rsp), %ymm1, %ymm1
.L3:
\tvaddps\t(%rax), %ymm0, %ymm0
\tjmp\t.L5\t# behind the end
.L4:
\taddq\t$32, %rax
\tcmpq\t%rax, %rdx
\tjne\t.L3
\tvmovaps\t%ymm0, 40(%rsp)
\tdecq\t%rcx
\tjne\t.L2
\tret
.L5:
\tvmulps\t%ymm0, %ymm2, %ymm0
\tjmp\t.L4
"""
"""The inner loop has a block behind the end of the function; the spills are in the outer one."""
SUMS = """
#include "treadle.h"
void sums(void *const *args, long worker, long workers) {{
    const float *restrict A = args[0];
    float *restrict C = args[1];
    v8f acc[{n}];
    TREADLE_UNROLL({n})
    for (long r = 0; r < {n}; r++) acc[r] = (v8f){{0}};
    for (long k = 0; k < workers; k++) {{
        TREADLE_UNROLL({n})
        for (long r = 0; r < {n}; r++) acc[r] += A[k * {n} + r] * *(const v8f_u *)&A[worker + k * 8];
    }}
    TREADLE_UNROLL({n})
    for (long r = 0; r < {n}; r++) *(v8f_u *)&C[r * 8] = acc[r];
}}
"""


def test_a_loop_has_its_blocks_from_everywhere_and_none_of_the_loop_around_it() -> None:
    (loop,) = inner_loops(FUNCTION.format(NESTED))
    assert (loop.function, loop.spilled) == ("f", set())
    assert loop.instructions == (
        "vaddps (%rax), %ymm0, %ymm0", "jmp .L5", "addq $32, %rax", "cmpq %rax, %rdx", "jne .L3",
        "vmulps %ymm0, %ymm2, %ymm0", "jmp .L4",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("instruction", "vectors", "others"),
    [
        ("vmovaps %zmm0, 72(%rsp)", {"72(%rsp)"}, set()),
        ("vmovaps (%rsp), %ymm0", {"(%rsp)"}, set()),
        ("vfmadd213ps -8(%rsp), %zmm2, %zmm0", {"-8(%rsp)"}, set()),
        ("movups %xmm0, 16(%rsp)", {"16(%rsp)"}, set()),
        ("movq 24(%rsp), %rax", set(), {"24(%rsp)"}),
        ("vmovaps 64(%rsp,%rax), %zmm0", set(), set()),
        ("vmovaps 64(%rbp), %zmm0", set(), set()),
        ("vmovaps .LC0(%rip), %zmm0", set(), set()),
    ],
)
def test_what_is_a_spill(instruction: str, vectors: set[str], others: set[str]) -> None:
    (loop,) = inner_loops(FUNCTION.format(f".L2:\n\t{instruction}\n\tjne\t.L2"))
    assert (loop.spilled, loop.spilled_addresses) == (vectors, others)


def test_a_frame_is_part_of_the_stack() -> None:
    text = "\tmovq\t%rsp, %rbp\n.L2:\n\tvmovaps\t-64(%rbp), %zmm0\n\tjne\t.L2"
    (loop,) = inner_loops(FUNCTION.format(text))
    assert loop.spilled == {"-64(%rbp)"}


def test_a_jump_backwards_alone_is_no_loop() -> None:
    text = ".L2:\n\tvaddps\t%ymm0, %ymm0, %ymm0\n\tret\n.L3:\n\tjmp\t.L2"
    assert not inner_loops(FUNCTION.format(text))


def test_a_jump_to_a_computed_address_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("f: 'jmp *%rax' goes to an address that is computed")):
        inner_loops(FUNCTION.format(".L2:\n\tjmp\t*%rax"))


@pytest.mark.skipif(bool(lacks("x86_64")), reason="registers of x86-64")
@pytest.mark.parametrize("compiler", COMMANDS)
@pytest.mark.parametrize(("accumulators", "spills"), [(12, False), (24, True)])
def test_compiled_sums_with_and_without_enough_registers(
    accumulators: int, spills: bool, compiler: str, tmp_path: Path
) -> None:
    """A vector and a broadcast element beside them, with 16 registers."""
    unit = Unit(f"sums_of_{accumulators}", SUMS.format(n=accumulators))
    text = assembly_of([unit], private_environment(tmp_path, COMMANDS[compiler]), TARGETS["avx2"])
    (loop,) = [loop for loop in inner_loops(text) if loop.computes]
    assert loop.function == unit.name
    assert sum(each.startswith("vfmadd") for each in loop.instructions) % accumulators == 0
    assert (len(loop.spilled) >= accumulators + 1 - 16) if spills else not loop.spilled
