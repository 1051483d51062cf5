"""Values made of registers that were never written: what is found, what is not, and that nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from treadle.backends.cuda.emulator import Emulator, Report
from treadle.backends.cuda.emulator.build import with_unwritten_pattern

TYPES: dict[str, type[Any]] = {
    "float": np.float32,
    "double": np.float64,
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "treadle_half": np.float16,
    "treadle_bfloat16": np.uint16,
}

FAULTS = {
    "copied": ("float", "float x[4]; for (int i = off; i < 4; ++i) x[i] = a[t]; b[t] = x[t % 4];"),
    "summed": ("float", "float x; if (t % 8 >= off) x = 0; for (int i = 0; i < 9; ++i) x += a[i]; b[t] = x;"),
    "scaled": ("float", "float x[4]; for (int i = off; i < 4; ++i) x[i] = 1; b[t] = x[t % 4] * a[t] * 0.125f;"),
    "multiplied and added": ("float", "float x; if (t >= off) x = 1; b[t] = fmaf(x, a[t], a[t + 1]);"),
    "rectified": ("float", "float x; if (t >= off) x = 1; b[t] = treadle_max(x * a[t], 0.0f);"),
    "shuffled": ("float", "float x; if (t >= off) x = 1; b[t] = __shfl_xor_sync(~0u, x, 1) + 1;"),
    "of a function": ("float", "float x; if (t >= off) x = 1; b[t] = tanhf(x) + expf(x);"),
    "divided": ("float", "float x; if (t >= off) x = 1; b[t] = 1 / x;"),
    "a large array": (
        "float",
        "float x[40][20]; for (int i = off; i < 800; ++i) x[i / 20][i % 20] = i; b[t] = x[t][0];",
    ),
    "a double": ("double", "double x[2]; for (int i = off; i < 2; ++i) x[i] = a[t]; b[t] = x[t % 2] * 3;"),
    "a float as a double": ("double", "float x; if (t >= off) x = 1; b[t] = x;"),
    "an int": ("int", "int x[4]; for (int i = off; i < 4; ++i) x[i] = i; b[t] = x[t % 4];"),
    "an unsigned int": ("unsigned", "unsigned x; if (t >= off) x = 1; b[t] = x;"),
    "a long int": ("long long", "long long x[3]; for (int i = off; i < 3; ++i) x[i] = i; b[t] = x[t % 3];"),
    "a half": ("treadle_half", "treadle_half x[8]; for (int i = off; i < 8; ++i) x[i].bits = 0; b[t] = x[t % 8];"),
    "one half": ("treadle_half", "treadle_half x; if (t >= off) x.bits = 0; b[t] = x;"),
    "a float as a half": (
        "treadle_half",
        "float x; if (t >= off) x = 1; b[t] = treadle_float_to_half(x * a[t] + 1);",
    ),
    "a half as a float": (
        "float",
        "treadle_half x[4]; for (int i = off; i < 4; ++i) x[i].bits = 0; b[t] = treadle_half_to_float(x[t % 4]) * 2;",
    ),
    "a bfloat16": (
        "treadle_bfloat16",
        "treadle_bfloat16 x[4]; for (int i = off; i < 4; ++i) x[i].bits = 0; b[t] = x[t % 4];",
    ),
    "a float as a bfloat16": (
        "treadle_bfloat16",
        "float x; if (t >= off) x = 1; b[t] = treadle_float_to_bfloat16(x - a[t]);",
    ),
    "a bfloat16 as a float": (
        "float",
        "treadle_bfloat16 x[4]; for (int i = off; i < 4; ++i) x[i].bits = 0;"
        " b[t] = treadle_bfloat16_to_float(x[t % 4]) + 1;",
    ),
    "an accumulator of a matrix product": (
        "float",
        "treadle_vec<float, 4> c, x{{1, 1, 1, 1}}; treadle_vec<float, 2> y{{1, 1}}; if (t >= off) c = {{0, 0, 0, 0}};"
        " c = treadle_mma_m16n8k8_tf32(x, y, c); b[t] = c.v[0];",
    ),
    "an operand of a matrix product": (
        "float",
        "treadle_vec<float, 4> c{}; treadle_vec<unsigned, 4> x; treadle_vec<unsigned, 2> y{{0x3c003c00, 0x3c003c00}};"
        " if (t >= off) x = {{1, 1, 1, 1}}; c = treadle_mma_m16n8k16_f16(x, y, c); b[t] = c.v[0];",
    ),
}

MISSED = {
    "swallowed by a maximum": ("float", "float x; if (t >= off) x = 1; b[t] = fmaxf(x, a[t]);"),
    "swallowed by a comparison": ("float", "float x; if (t >= off) x = 1; b[t] = x > 0 ? x : 0;"),
    "as an integer that was changed": ("float", "int x; if (t >= off) x = 1; b[t] = (float)(x + 1);"),
    "in a condition alone": ("float", "int x; if (t >= off) x = 1; b[t] = x == 3 ? 1 : 2;"),
}


def source(name: str, type: str, body: str) -> str:
    head = f'#include "treadle_cuda.h"\nextern "C" __global__ void {name}(const float *a, {type} *b, int off) {{'
    return f"{head}\n  const int t = threadIdx.x;\n  {body}\n}}\n"


KERNELS = {name: (f"k{number}", type) for number, (name, (type, _)) in enumerate((FAULTS | MISSED).items())}
TEXT = "".join(source(KERNELS[name][0], *fault) for name, fault in (FAULTS | MISSED).items())


def launch(emulate: Callable[..., Emulator], name: str, off: int) -> Report:
    kernel, type = KERNELS[name]
    a, b = np.arange(64, dtype=np.float32), np.zeros(32, TYPES[type])
    return emulate(TEXT).launch(kernel, (1, 1, 1), (32, 1, 1), [a, b, off])


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_value_made_of_registers_never_written(name: str, emulate: Callable[..., Emulator]) -> None:
    (finding,) = launch(emulate, name, 1).findings
    line = TEXT.splitlines().index(f"  {FAULTS[name][1]}") + 1
    assert (finding.kind, finding.line, finding.buffer) == ("init", line, "b")
    assert "registers that were never written" in finding.message


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_same_kernel_that_writes_them(name: str, emulate: Callable[..., Emulator]) -> None:
    report = launch(emulate, name, 0)
    assert not report.findings, str(report)


@pytest.mark.parametrize("name", list(MISSED))
def test_what_is_known_to_be_missed(name: str, emulate: Callable[..., Emulator]) -> None:
    assert not launch(emulate, name, 1).findings


@pytest.mark.parametrize("bits", [0xFFFBFFFB, 0xFEFEFEFE, 0xFFFB0000])
def test_a_pattern_that_the_kernel_was_given(bits: int, emulate: Callable[..., Emulator]) -> None:
    text = 'extern "C" __global__ void k(const float *a, float *b) {\n  b[threadIdx.x] = a[threadIdx.x];\n}\n'
    a, b = np.full(32, bits, np.uint32).view(np.float32), np.zeros(32, np.float32)
    assert not emulate(text).launch("k", (1, 1, 1), (32, 1, 1), [a, b]).findings
    assert (b.view(np.uint32) == bits).all()


def test_a_text_that_spells_the_compilers_pattern(emulate: Callable[..., Emulator]) -> None:
    text = 'extern "C" __global__ void k(unsigned *b) {\n  b[threadIdx.x] = 0xFEFEFEFE - threadIdx.x - 1;\n}\n'
    b = np.zeros(32, np.uint32)
    assert not emulate(text).launch("k", (1, 1, 1), (32, 1, 1), [b]).findings
    np.testing.assert_array_equal(b, 0xFEFEFEFD - np.arange(32, dtype=np.uint32))


def test_the_assembly_with_another_pattern() -> None:
    text = "\tmovl\t$-16843010, 8(%rsp)\n\tmovabsq\t$-72340172838076674, %rax\n\t.long\t-168430101\n"
    text += "\tmovw\t$-258, 4(%rsp)\n"
    run = "\t.byte\t-2\n" * 4 + "\t.byte\t1\n\t.byte\t-2\n"
    pair = "\t.byte\t251\n\t.byte\t255\n"
    numbers = "\tmovl\t$-262149, 8(%rsp)\n\tmovabsq\t$-1125917086973957, %rax\n\t.long\t-168430101\n"
    expected = f"{numbers}\tmovw\t$-258, 4(%rsp)\n{pair * 2}\t.byte\t1\n\t.byte\t-2\n"
    assert with_unwritten_pattern(text + run, "x = 1;") == expected
    assert with_unwritten_pattern(text + run, "x = 0xfefefefe;") == text + run
