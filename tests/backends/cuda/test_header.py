"""treadle_cuda.h: every function compiles, and becomes the instruction that it stands for."""

import functools

import pytest

from treadle.backends.cuda.compiler import HEADER, Cubin, Unit, compile_cubin
from treadle.backends.cuda.sass import Sass, disassemble
from treadle.errors import TreadleError
from treadle.target import Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

ARCHS = ["sm_80", "sm_90"]
SOURCE = HEADER.read_text()

UNARY = (
    *("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "tan"),
    *("abs", "floor", "ceil", "trunc", "roundeven", "float_to_tf32"),
)
BINARY = ("max", "min", "maxnum", "minnum", "pow", "mod", "copysign")
SHUFFLES = ("down", "up", "xor", "idx")

# Instructions by the statement that must become them; `x` is a float, `s` shared and `g` global memory.
STATEMENTS: dict[str, tuple[str, str]] = {
    "max propagates NaN": ("g[0] = treadle_max(g[1], g[2]);", "FMNMX.NAN"),
    "min propagates NaN": ("g[0] = treadle_min(g[1], g[2]);", "FMNMX.NAN"),
    "fma": ("g[0] = treadle_fma(g[1], g[2], g[3]);", "FFMA"),
    "barrier": ("s[threadIdx.x] = x; treadle_barrier(); g[0] = s[0];", "BAR.SYNC"),
    "cp.async 4": ("treadle_cp_async_4(s, g); treadle_cp_async_commit();", "LDGSTS"),
    "cp.async 8": ("treadle_cp_async_8(s, g); treadle_cp_async_commit();", "LDGSTS.64"),
    "cp.async 16": ("treadle_cp_async_16(s, g, x > 0); treadle_cp_async_commit();", "LDGSTS.BYPASS.128"),
    "commit": ("treadle_cp_async_16(s, g); treadle_cp_async_commit();", "LDGDEPBAR"),
    "wait": ("treadle_cp_async_4(s, g); treadle_cp_async_commit(); treadle_cp_async_wait<1>();", "DEPBAR"),
    "half to float": ("g[0] = treadle_half_to_float(*(treadle_half*)(g + 1));", "HADD2.F32"),
    "float to half": ("*(treadle_half*)g = treadle_float_to_half(x);", "F2FP"),
    "float to bfloat16": ("*(treadle_bfloat16*)g = treadle_float_to_bfloat16(x);", "F2FP.BF16"),
    "mma f16": (
        "treadle_vec<float, 4> c{}; c = treadle_mma_m16n8k16_f16(treadle_ldmatrix_x4(s + threadIdx.x * 4),"
        " treadle_ldmatrix_x2_trans(s), c); g[0] = c.v[0] + c.v[3];",
        "HMMA.16816.F32",
    ),
    "mma bf16": (
        "treadle_vec<float, 4> c{}; c = treadle_mma_m16n8k16_bf16(treadle_ldmatrix_x4(s + threadIdx.x * 4),"
        " treadle_ldmatrix_x2(s), c); g[0] = c.v[0] + c.v[3];",
        "HMMA.16816.F32.BF16",
    ),
    "tf32 from shared memory": (
        "treadle_vec<float, 4> a = treadle_round_tf32(treadle_as_float(treadle_ldmatrix_x4(s + threadIdx.x * 4)));"
        " g[0] = treadle_mma_m16n8k8_tf32(a, treadle_part<treadle_vec<float, 2>>(a, 1), a).v[1];",
        "LDSM.16.M88.4",
    ),
    "mma tf32": (
        "treadle_vec<float, 4> a{{x, x, x, x}}; treadle_vec<float, 2> b{{g[3], g[4]}};"
        " g[0] = treadle_mma_m16n8k8_tf32(a, b, a).v[1];",
        "HMMA.1688.F32.TF32",
    ),
}


@functools.cache
def compile_body(body: str, arch: str) -> Cubin:
    text = f"""#include "treadle_cuda.h"
extern "C" __global__ void k(float *g) {{
  alignas(16) __shared__ float s[512];
  float x = g[threadIdx.x];
  {body}
}}
"""
    return compile_cubin(Unit("header", text), Target.parse(arch))


def sass_of(body: str, arch: str) -> Sass:
    image = compile_body(body, arch).image
    try:
        return disassemble(image)["k"]
    except TreadleError as error:
        if "not installed" not in error.message:
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", ARCHS)
def test_all_scalar_functions_and_shuffles_compile_without_spills(arch: str) -> None:
    body = [f"g[{i}] = treadle_{name}(x);" for i, name in enumerate(UNARY)]
    body += [f"g[{i + 50}] = treadle_{name}(x, g[100]);" for i, name in enumerate(BINARY)]
    body += [f"g[{i + 60}] = treadle_shuffle_{mode}(x, 3);" for i, mode in enumerate(SHUFFLES)]
    body += [f"g[{i + 70}] = treadle_shuffle_{mode}((int)x, 3);" for i, mode in enumerate(SHUFFLES)]
    body += ["g[80] = INFINITY; g[81] = NAN; g[82] = treadle_bfloat16_to_float(*(treadle_bfloat16*)(g + 83));"]
    resources = compile_body("\n  ".join(body), arch).resources["k"]
    assert not resources.spills


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("suffix", ["", "_trans"])
def test_ldmatrix(arch: str, count: int, suffix: str) -> None:
    body = (
        f"s[threadIdx.x] = x; auto m = treadle_ldmatrix_x{count}{suffix}(s + threadIdx.x * 4);"
        f" for (int i = 0; i < {count}; ++i) ((unsigned*)g)[i] = m.v[i];"
    )
    kind = "MT88" if suffix else "M88"
    assert sass_of(body, arch).has(f"LDSM.16.{kind}" + (f".{count}" if count > 1 else ""))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("what", list(STATEMENTS))
def test_wrapper_becomes_its_instruction(arch: str, what: str) -> None:
    body, opcode = STATEMENTS[what]
    sass = sass_of(body, arch)
    assert sass.has(opcode), sorted({each.opcode for each in sass.instructions})


def test_every_function_of_the_header_is_compiled_here() -> None:
    """A function that no test names would be declared but never instantiated."""
    named = {f"treadle_{name}" for name in (*UNARY, *BINARY)}
    named |= {f"treadle_shuffle_{mode}" for mode in SHUFFLES}
    named |= {f"treadle_ldmatrix_x{n}{suffix}" for n in (1, 2, 4) for suffix in ("", "_trans")}
    bodies = " ".join(body for body, _ in STATEMENTS.values()) + "treadle_bfloat16_to_float("
    declared = {
        word.split("(")[0]
        for line in SOURCE.splitlines()
        if line.startswith("inline ")
        for word in line.split()
        if word.startswith("treadle_") and "(" in word
    }
    unused = {name for name in declared - named if f"{name}(" not in bodies and f"{name}<" not in bodies}
    assert unused == {"treadle_shared_address"}
