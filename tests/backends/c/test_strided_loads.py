"""treadle.h: loads of elements some distance apart read those that are asked for, and no byte behind the last one."""

import ctypes
import mmap

import numpy as np
import pytest

from tests.backends.c.toolchains import BUILDS, library_of

WIDTHS, STRIDES = (4, 8, 16), (1, 2, 3, 7)
FAR = 1 << 32
"""Elements; no multiple of it is an offset of 32 bits."""


def loads(lanes: int, stride: int) -> str:
    """Functions with a constant distance, as kernels call them."""
    v, name = f"v{lanes}", f"{lanes}_{stride}"
    return (
        f"void all_{name}(const float *x, float *y) "
        f"{{ treadle_store_{v}f(y, treadle_load_strided_{v}f(x, {stride})); }}\n"
        f"void some_{name}(const float *x, float *y, long lo, long hi) "
        f"{{ treadle_store_{v}f(y, treadle_load_strided_where_{v}f(x, {stride}, treadle_lanes_{v}m(lo, hi), "
        f"treadle_splat_{v}f(-1.0f))); }}"
    )


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = "\n".join(loads(lanes, stride) for lanes in WIDTHS for stride in (*STRIDES, FAR))
    text += "".join(
        f"\nvoid transpose_{lanes}(float *x) {{ treadle_transpose_v{lanes}f((v{lanes}f *)x); }}" for lanes in WIDTHS
    )
    return library_of(text, request.param, tmp_path_factory.mktemp("strided"))


@pytest.fixture(scope="module")
def page() -> ctypes.Array[ctypes.c_float]:
    """1, 2, 3, ... up to the end of a page, behind which nothing may be read."""
    both = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    floats = (ctypes.c_float * (mmap.PAGESIZE // 4)).from_buffer(both)
    floats[:] = range(1, len(floats) + 1)
    behind = ctypes.c_void_p(ctypes.addressof(floats) + mmap.PAGESIZE)
    assert ctypes.CDLL(None, use_errno=True).mprotect(behind, mmap.PAGESIZE, 0) == 0  # PROT_NONE
    return floats


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("lanes", WIDTHS)
def test_strided_loads(library: ctypes.CDLL, page: ctypes.Array[ctypes.c_float], lanes: int, stride: int) -> None:
    y = (ctypes.c_float * lanes)()
    first = len(page) - 1 - (lanes - 1) * stride
    wanted = np.array(page)[first::stride]
    library[f"all_{lanes}_{stride}"](ctypes.byref(page, 4 * first), y)
    assert list(y) == list(wanted)


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("lanes", WIDTHS)
def test_strided_loads_of_some_lanes(
    library: ctypes.CDLL, page: ctypes.Array[ctypes.c_float], lanes: int, stride: int
) -> None:
    """The last lane that is on is the last element of the page."""
    some = library[f"some_{lanes}_{stride}"]
    some.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    y = (ctypes.c_float * lanes)()
    for lo in range(lanes + 1):
        for hi in range(lo, lanes + 1):
            first = len(page) - 1 - max(hi - 1, 0) * stride
            some(ctypes.addressof(page) + 4 * first, ctypes.addressof(y), lo, hi)
            wanted = [page[first + lane * stride] if lo <= lane < hi else -1.0 for lane in range(lanes)]
            assert list(y) == wanted, (lo, hi)


@pytest.mark.parametrize("lanes", WIDTHS)
def test_lanes_farther_apart_than_offsets_of_32_bits_reach(
    library: ctypes.CDLL, page: ctypes.Array[ctypes.c_float], lanes: int
) -> None:
    """Only the last lane is on, and lies on the page."""
    y = (ctypes.c_float * lanes)()
    first = ctypes.addressof(page) - 4 * FAR * (lanes - 1)
    library[f"some_{lanes}_{FAR}"](ctypes.c_void_p(first), y, ctypes.c_long(lanes - 1), ctypes.c_long(lanes))
    assert list(y) == [*[-1.0] * (lanes - 1), 1.0]


@pytest.mark.parametrize("lanes", WIDTHS)
def test_squares_are_transposed(library: ctypes.CDLL, lanes: int) -> None:
    memory = np.empty(lanes * lanes + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4
    x = memory[first : first + lanes * lanes].reshape(lanes, lanes)
    x[:] = np.arange(lanes * lanes).reshape(lanes, lanes)
    wanted = x.T.copy()
    library[f"transpose_{lanes}"](ctypes.c_void_p(x.ctypes.data))
    np.testing.assert_array_equal(x, wanted)
