"""Calls and rows that counting puts into assembly text, on text in the forms that gcc and clang print."""

from __future__ import annotations

import struct

import pytest

from treadle.backends.cuda.emulator.instrument import Row, rows, with_counts


def _rows(assembly: str) -> list[tuple[int, int, int]]:
    """Run, operations and special functions of each row."""
    lines = [line.split() for line in with_counts(assembly).splitlines()]
    numbers = [int(line[1]) for line in lines if line[:1] == [".long"]]
    counts = [(int(line[1].rstrip(",")), int(line[2])) for line in lines if line[:1] == [".short"]]
    return [(run, *count) for run, count in zip(numbers, counts, strict=True)]


@pytest.mark.parametrize(
    ("instruction", "operations", "special"),
    [
        ("addss\t-8(%rbp), %xmm0", 1, 0),
        ("subsd\t%xmm1, %xmm0", 1, 0),
        ("sqrtss\t%xmm0, %xmm0", 1, 0),
        ("mulps\t%xmm1, %xmm0", 4, 0),
        ("divpd\t(%rax), %xmm0", 2, 0),
        ("vaddss\t%xmm1, %xmm0, %xmm0", 1, 0),
        ("vmulps\t%ymm1, %ymm0, %ymm0", 8, 0),
        ("vmulpd\t(%rax), %zmm0, %zmm0", 8, 0),
        ("vfmadd231ss\t%xmm2, %xmm1, %xmm0", 2, 0),
        ("vfnmsub132pd\t%ymm2, %ymm1, %ymm0", 8, 0),
        ("call\texpf@PLT", 0, 1),
        ("callq\ttanh@PLT", 0, 1),
        ("call\t*powf@GOTPCREL(%rip)", 0, 1),
        ("jmp\terff@PLT", 0, 1),
        ("call\tfmaf@PLT", 2, 0),
        ("call\tfmaxf@PLT", 0, 0),
        ("call\texpand@PLT", 0, 0),
        ("call\t*%rax", 0, 0),
        ("addl\t$1, %eax", 0, 0),
        ("ucomiss\t%xmm1, %xmm0", 0, 0),
        ("cvtsi2ssl\t%eax, %xmm0", 0, 0),
        ("xorps\t%xmm1, %xmm0", 0, 0),
        ("maxss\t%xmm1, %xmm0", 0, 0),
        ("paddd\t%xmm1, %xmm0", 0, 0),
    ],
)
def test_what_an_instruction_counts(instruction: str, operations: int, special: int) -> None:
    expected = [(0, operations, special)] if operations or special else []
    assert _rows(f"k:\n\t{instruction}\n") == expected


def test_labels_and_jumps_end_a_run() -> None:
    text = """k:
	addss	%xmm1, %xmm0
	movss	%xmm0, -4(%rbp)
	call	__tsan_read4@PLT
	mulss	%xmm1, %xmm0
	jp	.L2
	addss	%xmm1, %xmm0
.L2:
	.loc 1 3 4
	addss	%xmm1, %xmm0
	ret
"""
    assert _rows(text) == [(0, 1, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0)]
    assert with_counts(text).count("treadle_emu_run@GOTPCREL") == 3


def test_loops_that_call_something_have_passes() -> None:
    text = """k:
	jmp	.L3
.L2:
	call	__tsan_read4@PLT
	jne	.L2
.L3:
	cmpl	$1, %eax
	jl	.L2
.L4:
	decl	%eax
	jne	.L4
	call	__tsan_read4@PLT
	jmp	.L5
.L5:
	ret
"""
    made = with_counts(text).splitlines()
    calls = [number for number, line in enumerate(made) if "treadle_emu_pass" in line and "call" in line]
    assert [made[number - 2] for number in calls] == [".L2:"]
    assert made[made.index("\tjl\t.L2") + 1] == ".Ltreadle_emu_end_2:"


def test_rows_of_a_section() -> None:
    assert rows(b"") == ()
    assert rows(struct.pack("<QIHH", 0x1234, 7, 2, 1)) == (Row(address=0x1234, run=7, operations=2, special=1),)
