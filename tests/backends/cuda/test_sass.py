"""Reading machine code."""

import pytest

from treadle.backends.cuda import sass
from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.sass import Instruction, Sass, disassemble, parse_sass
from treadle.errors import TreadleError
from treadle.target import Target

LISTING = """\
\t.section\t.text.k,"ax",@progbits
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0020*/                   EXIT ;
\t.section\t.text.other,"ax",@progbits
        /*0000*/                   STL [R1], R2 ;
"""

COPY = """extern "C" __global__ void copy(float4 *a, const float4 *b) { a[threadIdx.x] = b[threadIdx.x]; }
extern "C" __global__ void pick(float *a, int n) {
  float v[64];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) v[i * n % 64] = a[i];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) a[i] = v[i];
}
"""


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


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_compiled_kernels_show_vector_accesses_and_local_memory(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    cubin = compile_cubin(Unit("copy", COPY), Target.parse(arch))
    try:
        found = disassemble(cubin.image)
    except TreadleError as error:
        if "not installed" not in error.message:
            raise
        pytest.skip(str(error))
    assert found["copy"].has_vector_loads
    assert found["copy"].has_vector_stores
    assert not found["copy"].uses_local_memory
    assert found["pick"].uses_local_memory
    assert found["copy"].count("EXIT") >= 1


def test_an_absent_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(TreadleError) as caught:
        disassemble(b"")
    assert caught.value.accepted == "pip install no-such-distribution"


def test_what_is_no_cubin_is_rejected() -> None:
    try:
        disassemble(b"nonsense")
    except TreadleError as error:
        if "not installed" in error.message:
            pytest.skip(str(error))
        assert "nvdisasm failed" in error.message
    else:
        pytest.fail("nonsense was disassembled")
