"""Reading machine code."""

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.backends.cuda.machine_code import disassembled
from treadle.backends.cuda import machine_code as module
from treadle.backends.cuda.compiler import Cubin, Unit, compile_cubin
from treadle.backends.cuda.machine_code import Instruction, Sass, disassemble, parse_sass
from treadle.errors import TreadleError
from treadle.target import TARGETS, Target

LISTING = """\
\t.section\t.text.k,"ax",@progbits
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   EXIT ;
\t.section\t.text.other,"ax",@progbits
        /*0000*/                   STL [R1], R2 ;
"""

KERNELS = """#include "treadle_cuda.h"
extern "C" __global__ void wide(float4 *a, const float4 *b) { a[threadIdx.x] = b[threadIdx.x]; }
extern "C" __global__ void narrow(float *a, const float *b) {
  __shared__ float s[64];
  s[threadIdx.x] = b[threadIdx.x];
  treadle_barrier();
  a[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void pick(float *a, int n) {
  float v[64];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) v[i * n % 64] = a[i];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) a[i] = v[i];
}
extern "C" __global__ void staged(float *a, const float *b) {
  __shared__ alignas(16) float s[256];
  treadle_cp_async_16(s + 4 * threadIdx.x, b + 4 * threadIdx.x);
  treadle_cp_async_commit();
  treadle_cp_async_wait<0>();
  treadle_barrier();
  const auto v = treadle_load<treadle_vec<float, 4>>(s + 252 - 4 * threadIdx.x);
  a[threadIdx.x] = v.v[0] + v.v[1] + v.v[2] + v.v[3];
}
extern "C" __global__ void tensor(float *a, unsigned b) {
  const auto d = treadle_mma_m16n8k16_f16({{b, b, b, b}}, {{b, b}}, {{a[0], a[1], a[2], a[3]}});
  a[threadIdx.x] = d.v[0];
}
"""

# Of the kernels above those for which a helper says yes; for the others it says no.
HELPERS = {
    "has_vector_loads": {"wide"},
    "has_vector_stores": {"wide"},
    "has_shared_vector_loads": {"staged"},
    "has_async_copies": {"staged"},
    "has_tensor_products": {"tensor"},
    "uses_local_memory": {"pick"},
}


def test_a_listing_is_split_by_kernel() -> None:
    found = parse_sass(LISTING)
    assert list(found) == ["k", "other"]
    assert found["k"].instructions[1] == Instruction("LDG.E.128.CONSTANT", "R4, desc[UR4][R2.64]")
    assert found["other"].uses_local_memory


@pytest.mark.parametrize("opcode", ["LDG", "LDG.E", "LDG.128", "LDG.E.128.CONSTANT"])
def test_an_opcode_matches_by_its_parts_in_order(opcode: str) -> None:
    assert Sass((Instruction("LDG.E.128.CONSTANT", ""),)).has(opcode)


@pytest.mark.parametrize("opcode", ["LD", "LDGSTS", "LDG.64", "LDG.128.E"])
def test_an_opcode_does_not_match_in_part(opcode: str) -> None:
    assert not Sass((Instruction("LDG.E.128.CONSTANT", ""),)).has(opcode)


@functools.cache
def machine_code(arch: str) -> Mapping[str, Sass]:
    return disassembled(compile_cubin(Unit("kernels", KERNELS), Target.parse(arch)))


@pytest.mark.parametrize("arch", [name for name, target in TARGETS.items() if target.copies_asynchronously])
@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_tells_one_kernel_from_the_others(helper: str, arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    assert {name for name, sass in machine_code(arch).items() if getattr(sass, helper)} == HELPERS[helper]


def test_every_helper_is_tested() -> None:
    assert {name for name, member in vars(Sass).items() if isinstance(member, property)} == set(HELPERS)


def test_instructions_are_counted() -> None:
    assert parse_sass(LISTING)["k"].count("EXIT") == 1


LOOP = """\t.section\t.text.k,"ax",@progbits
        /*0000*/                   MOV R1, RZ ;
.L_x_0:
        /*0010*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/              @!P1 BRA `(.L_x_0) ;
.L_x_1:
        /*0040*/                   EXIT ;
"""


def test_loops_end_with_branches_backwards() -> None:
    (loop,) = parse_sass(LOOP)["k"].loops()
    assert [each.opcode for each in loop] == ["IADD3", "BRA", "BRA"]


def test_an_architecture_newer_than_nvdisasm_is_named() -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    image = bytearray(compile_cubin(Unit("kernels", KERNELS), Target.parse("sm_120")).image)
    # Since Blackwell the architecture stands in the flags of the ELF header: its number is their second byte.
    image[49] = 200
    with pytest.raises(TreadleError, match="nvdisasm does not know SM200; accepted: a newer nvidia-cuda-nvdisasm"):
        disassemble(bytes(image))
    with pytest.raises(pytest.skip.Exception, match="sm_200: disassembler: nvdisasm does not know SM200"):
        disassembled(Cubin(bytes(image), "sm_200", {}))


def test_an_absent_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DISTRIBUTION", "no-such-distribution")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TreadleError) as caught:
        disassemble(b"")
    assert caught.value.accepted == "pip install no-such-distribution, or nvdisasm in PATH"


def test_a_toolkit_s_nvdisasm_serves_without_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvdisasm"
    program.write_text("#!/bin/sh\necho of the toolkit >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "_DISTRIBUTION", "no-such-distribution")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(TreadleError, match="nvdisasm failed: of the toolkit"):
        disassemble(b"")


def test_what_is_no_cubin_is_rejected() -> None:
    try:
        disassemble(b"nonsense")
    except TreadleError as error:
        if "not installed" in error.message:
            pytest.skip(str(error))
        assert "nvdisasm failed" in error.message
    else:
        pytest.fail("nonsense was disassembled")
