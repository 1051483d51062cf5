"""What the emulator reads in a text before it compiles it."""

import pytest

from treadle.backends.cuda.emulator.build import ZONE_BYTES, dynamic_arrays, kernels, with_red_zones

TEXT = """
// extern "C" __global__ void commented(int a) {}
/* __global__ void too(int a); */
const char *s = "__global__ void quoted(int a)";
template <typename T> __global__ void generic(T *x) {}
extern "C" __global__ void __launch_bounds__(128, 2) first(const float *__restrict__ A, float (&B)[4], int n) {}
__global__ __launch_bounds__(64) void second() {}
static __global__ void third(
    const int *rows,  // a, comment
    long long n = 3, float (*tile)[8] /* b */, Pair<int, float> p) {}
"""


def test_kernels_and_their_parameters() -> None:
    found = kernels(TEXT)
    assert list(found) == ["first", "second", "third"]
    assert (found["first"].max_threads, found["second"].max_threads, found["third"].max_threads) == (128, 64, None)
    assert found["second"].parameters == ()
    assert found["first"].parameters[0] == "A" and found["first"].parameters[2] == "n"
    assert found["third"].parameters[:2] == ("rows", "n") and found["third"].parameters[3] == "p"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("extern __shared__ float s[];", ("s",)),
        ("alignas(16) extern __shared__ char treadle_dynamic[];", ("treadle_dynamic",)),
        ("extern __shared__ __align__(16) unsigned char raw[];", ("raw",)),
        ("extern __shared__ alignas(16) float a[];\nvoid f();\nextern __shared__ float a[]; extern __shared__ int b[];",
         ("a", "b")),
        ("extern float table[]; __shared__ float s[64];", ()),
        ("// extern __shared__ float s[];", ()),
    ],
)  # fmt: skip
def test_dynamic_shared_memory(text: str, names: tuple[str, ...]) -> None:
    assert dynamic_arrays(text) == names


def test_red_zones_stand_behind_thread_local_variables_only() -> None:
    text = "\t.data\nx:\n\t.zero 8\n\t.section .tbss,a\ns:\n\t.zero 64\nr:\n\t.zero 32\n\t.text\n\t.zero 1"
    zone = f"\t.zero\t{ZONE_BYTES}"
    lines = with_red_zones(text).splitlines()
    assert [n for n, line in enumerate(lines) if line == zone] == [6, 9]
    assert [line for line in lines if line != zone] == text.splitlines()
