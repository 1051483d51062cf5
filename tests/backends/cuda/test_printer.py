"""The CUDA printer: what the text looks like, and that NVRTC compiles it without spills."""

from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser

from treadle.backends.cuda.compiler import Unit, compile_cubin
from treadle.backends.cuda.cubin import Resources
from treadle.backends.cuda.printer import print_kernels
from treadle.dialects.registry import treadle_context
from treadle.errors import TreadleError
from treadle.passes.lower.loop_lower_accesses import LoopLowerAccessesPass
from treadle.passes.lower.loop_to_cuda import LoopToCudaPass
from treadle.target import Target

INPUTS = Path(__file__).parent / "inputs"


def parsed(text: str, lower: bool = False) -> ModuleOp:
    context = treadle_context()
    module = Parser(context, text).parse_module()
    module.verify()
    if lower:
        for lowering in (LoopLowerAccessesPass(), LoopToCudaPass()):
            lowering.apply(context, module)
            module.verify()
    return module


def one_unit(text: str, lower: bool = False) -> Unit:
    (unit,) = print_kernels(parsed(text, lower))
    return unit


def resources(unit: Unit, arch: str = "sm_80") -> Resources:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")
    return compile_cubin(unit, Target.parse(arch)).resources[unit.name]


def kernel(body: str, arguments: str = "%A : memref<64xf32>, %C : memref<64xf32>") -> str:
    constants = "\n".join(f"%c{n} = arith.constant {n} : index" for n in (0, 1, 2, 3, 4, 16))
    return (
        f"cuda.kernel @k({arguments}) grid = [2, 1, 1] block = [32, 1, 1] {{\n{constants}\n"
        f"%t = cuda.thread_id x : index\n{body}\ncuda.return\n}}"
    )


def inner(text: str) -> str:
    """The lines of the only kernel's body."""
    lines = one_unit(text).text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.endswith(") {") and line.startswith("extern"))
    return "\n".join(line[4:] for line in lines[start + 1 : -1])


def test_a_matmul_reads_as_written_by_hand() -> None:
    unit = one_unit((INPUTS / "matmul.mlir").read_text(), lower=True)
    assert unit.text.startswith("""#include "treadle_cuda.h"

// MatMul * / int evil; / *
extern "C" __global__ void __launch_bounds__(64) matmul(const float *__restrict__ A, const float *__restrict__ B, \
float *__restrict__ C) {
    alignas(16) __shared__ float tileA[32][32];
    alignas(16) __shared__ float tileB[32][32];
    const int b = (int)blockIdx.x;
    const int t = (int)threadIdx.x;
    float acc[4][4];
""")
    assert (
        """
        treadle_barrier();
        for (int k = 0; k < 32; k++) {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    acc[i][j] += tileA[ti * 4 + i][k] * tileB[k][tj * 4 + j];
                }
            }
        }
        treadle_barrier();
"""
        in unit.text
    )
    used = resources(unit)
    assert used.shared_bytes == 8192
    assert not used.spills
    assert used.stack_bytes == 0


def test_a_load_never_passes_a_barrier() -> None:
    text = kernel("""
  %s = cuda.alloc : memref<32xf32, #cuda.space<shared>>
  %x = memref.load %s[%t] : memref<32xf32, #cuda.space<shared>>
  cuda.barrier
  memref.store %x, %C[%t] : memref<64xf32>""")
    assert (
        inner(text)
        == """const int t = (int)threadIdx.x;
alignas(16) __shared__ float s[32];
const float x = s[t];
treadle_barrier();
C[t] = x;"""
    )


def test_shuffles_keep_their_place() -> None:
    text = kernel("""
  %x = memref.load %A[%t] : memref<64xf32>
  %y = cuda.shuffle xor %x, %c16 : f32
  %s = arith.addf %x, %y : f32
  %first = arith.cmpi eq, %t, %c0 : index
  scf.if %first {
    memref.store %s, %C[%c0] : memref<64xf32>
  }""")
    assert (
        inner(text)
        == """const int t = (int)threadIdx.x;
const float x = A[t];
const float y = treadle_shuffle_xor(x, 16);
if (t == 0) {
    C[0] = x + y;
}"""
    )
    assert resources(one_unit(text)).registers > 0


def test_halves_are_computed_in_float() -> None:
    text = kernel(
        """
  %x = memref.load %A[%t] : memref<64xf16>
  %half = arith.constant 0.5 : f16
  %p = arith.mulf %x, %half : f16
  %e = math.exp %p : f16
  memref.store %e, %C[%t] : memref<64xf16>
  %w = arith.extf %x : f16 to f32
  %n = arith.fptosi %x : f16 to i32
  memref.store %w, %D[%t] : memref<64xf32>
  memref.store %n, %E[%t] : memref<64xi32>""",
        "%A : memref<64xf16>, %C : memref<64xf16>, %D : memref<64xf32>, %E : memref<64xi32>",
    )
    assert "C[t] = treadle_float_to_half(treadle_exp(treadle_half_to_float(treadle_float_to_half(" in inner(text)
    assert "D[t] = treadle_half_to_float(x);" in inner(text)
    assert "E[t] = treadle_to_integer<int>(treadle_half_to_float(x));" in inner(text)
    resources(one_unit(text))


def test_tensor_cores_and_asynchronous_copies() -> None:
    text = kernel(
        """
  %tile = cuda.alloc dynamic : memref<2x32x40xf16, #cuda.space<shared>>
  %more = cuda.alloc dynamic : memref<64xf32, #cuda.space<shared>>
  %zero = arith.constant dense<0.0> : vector<2x2xf32>
  %in = arith.cmpi slt, %t, %c16 : index
  cuda.cp_async %A[%t, %c0], %tile[%c0, %t, %c0] bytes 16 where %in
    : memref<64x64xf16>, memref<2x32x40xf16, #cuda.space<shared>>
  cuda.cp_async_commit
  cuda.cp_async_wait 0
  cuda.barrier
  %a = cuda.ldmatrix %tile[%c0, %t, %c0] : memref<2x32x40xf16, #cuda.space<shared>> -> vector<4x2xf16>
  %b = cuda.ldmatrix transpose %tile[%c1, %t, %c0] : memref<2x32x40xf16, #cuda.space<shared>> -> vector<2x2xf16>
  %sum = scf.for %k = %c0 to %c4 step %c1 iter_args(%s = %zero) -> (vector<2x2xf32>) {
    %d = cuda.mma m16n8k16 %a, %b, %s : vector<4x2xf16>, vector<2x2xf16>, vector<2x2xf32>
    scf.yield %d : vector<2x2xf32>
  } {loop.unroll}
  %v = vector.extract %sum[1, 0] : f32 from vector<2x2xf32>
  memref.store %v, %more[%t] : memref<64xf32, #cuda.space<shared>>
  %w = memref.load %more[%t] : memref<64xf32, #cuda.space<shared>>
  memref.store %w, %C[%t] : memref<64xf32>""",
        "%A : memref<64x64xf16>, %C : memref<64xf32>",
    )
    assert (
        inner(text)
        == """const int t = (int)threadIdx.x;
alignas(16) extern __shared__ char treadle_dynamic[];
treadle_half (&tile)[2][32][40] = *reinterpret_cast<treadle_half (*)[2][32][40]>(treadle_dynamic + 0);
float (&more)[64] = *reinterpret_cast<float (*)[64]>(treadle_dynamic + 5120);
treadle_cp_async_16(&tile[0][t][0], &A[t * 64], t < 16);
treadle_cp_async_commit();
treadle_cp_async_wait<0>();
treadle_barrier();
const treadle_vec<unsigned, 4> a = treadle_ldmatrix_x4(&tile[0][t][0]);
const treadle_vec<unsigned, 2> b = treadle_ldmatrix_x2_trans(&tile[1][t][0]);
treadle_vec<float, 4> sum = treadle_vec<float, 4>{};
#pragma unroll
for (int k = 0; k < 4; k++) {
    sum = treadle_mma_m16n8k16_f16(a, b, sum);
}
more[t] = sum.v[2];
C[t] = more[t];"""
    )
    assert not resources(one_unit(text)).spills


def test_padded_rows_are_addressed_by_one_number() -> None:
    space = "memref<4x8xf32, strided<[9, 1]>, #cuda.space<shared>>"
    text = inner(
        kernel(f"""
  %s = cuda.alloc : {space}
  %x = memref.load %A[%t] : memref<64xf32>
  memref.store %x, %s[%c3, %t] : {space}""")
    )
    assert "float s[35];" in text
    assert "s[t + 27] = A[t];" in text


def test_vectors_of_four() -> None:
    text = kernel("""
  %x = vector.load %A[%t] : memref<64xf32>, vector<4xf32>
  %y = memref.load %A[%c0] : memref<64xf32>
  %w = vector.broadcast %y : f32 to vector<4xf32>
  %two = arith.constant dense<2.0> : vector<4xf32>
  %p = arith.mulf %x, %w : vector<4xf32>
  %s = arith.addf %p, %two : vector<4xf32>
  vector.store %s, %C[%t] : memref<64xf32>, vector<4xf32>""")
    assert inner(text).splitlines()[-1] == (
        "treadle_store(&C[t], treadle_load<treadle_vec<float, 4>>(&A[t]) * A[0] + 2.0f);"
    )
    resources(one_unit(text))


def test_vectors_of_one_half() -> None:
    text = kernel(
        """
  %y = memref.load %A[%t] : memref<64xf16>
  %w = vector.broadcast %y : f16 to vector<8xf16>
  vector.store %w, %C[%t] : memref<64xf16>, vector<8xf16>
  %ones = arith.constant dense<1.0> : vector<2xbf16>
  vector.store %ones, %B[%t] : memref<64xbf16>, vector<2xbf16>""",
        "%A : memref<64xf16>, %B : memref<64xbf16>, %C : memref<64xf16>",
    )
    one = "treadle_twice(treadle_float_to_bfloat16(1.0f))"
    assert inner(text).splitlines()[-2:] == [
        "treadle_store(&C[t], treadle_splat<treadle_vec<unsigned, 4>>(treadle_twice(A[t])));",
        f"treadle_store(&B[t], treadle_splat<treadle_vec<unsigned, 1>>({one}));",
    ]
    resources(one_unit(text))


def test_integer_helpers_and_comparisons_compile() -> None:
    text = kernel(
        """
  %m1 = arith.constant -1 : index
  %n = arith.addi %t, %m1 : index
  %q = arith.floordivsi %n, %c3 : index
  %r = arith.ceildivsi %n, %c3 : index
  %u = arith.minsi %q, %r : index
  %v = arith.maxsi %u, %c2 : index
  %x = memref.load %A[%t] : memref<64xf32>
  %p = arith.cmpf uno, %x, %x : f32
  %o = arith.cmpf one, %x, %f : f32
  %e = arith.andi %p, %o : i1
  memref.store %v, %C[%t] : memref<64xindex>
  memref.store %e, %D[%t] : memref<64xi1>""".replace("%m1 =", "%f = arith.constant 1.5 : f32\n%m1 =", 1),
        "%A : memref<64xf32>, %C : memref<64xindex>, %D : memref<64xi1>",
    )
    assert "D[t] = x != x && treadle_differ(x, 1.5f);" in inner(text)
    resources(one_unit(text))


def test_large_buffers_get_wide_indices() -> None:
    text = kernel("memref.store %t, %C[%t] : memref<2147483648xindex>", "%C : memref<2147483648xindex>")
    assert inner(text).startswith("const long long t = (long long)threadIdx.x;")


def test_reserved_kernel_names_are_rejected() -> None:
    with pytest.raises(TreadleError, match="kernel name 'while'"):
        print_kernels(parsed(kernel("").replace("@k(", "@while(")))


def test_doubles_have_functions_of_their_own() -> None:
    """An infinity is a float in the text, so that overloads would not tell which function is meant."""
    text = kernel(
        """
  %x = memref.load %A[%t] : memref<64xf64>
  %e = math.exp %x : f64
  %i = arith.constant 0xFFF0000000000000 : f64
  %m = arith.maximumf %e, %i : f64
  %s = cuda.shuffle xor %m, %t : f64
  memref.store %s, %A[%t] : memref<64xf64>
  %h = arith.truncf %x : f64 to f16
  memref.store %h, %C[%t] : memref<64xf16>
  %b = arith.truncf %x : f64 to bf16
  memref.store %b, %D[%t] : memref<64xbf16>""",
        "%A : memref<64xf64>, %C : memref<64xf16>, %D : memref<64xbf16>",
    )
    assert inner(text).splitlines()[-3:] == [
        "A[t] = treadle_shuffle_xor(treadle_max_double(treadle_exp_double(x), -INFINITY), t);",
        "C[t] = treadle_double_to_half(x);",
        "D[t] = treadle_double_to_bfloat16(x);",
    ]
    resources(one_unit(text))


def test_functions_of_vectors_are_rejected() -> None:
    text = kernel("%x = vector.load %A[%t] : memref<64xf64>, vector<2xf64>\n%e = math.exp %x : vector<2xf64>\n"
                  "vector.store %e, %A[%t] : memref<64xf64>, vector<2xf64>", "%A : memref<64xf64>")  # fmt: skip
    with pytest.raises(TreadleError, match="exp on vector<2xf64>"):
        print_kernels(parsed(text))
