"""treadle.h: masks of consecutive lanes, made of two numbers, and all that takes them."""

import ctypes

import numpy as np
import pytest

from tests.backends.c.toolchains import BUILDS, library_of

WIDTHS = (4, 8, 16)
FARTHEST = 1 << 62
REST = -1.0


def functions(lanes: int) -> str:
    """What a mask says of each lane, and accesses and selections under it, as kernels call them."""
    v, range_of = f"v{lanes}", "const float *x, float *y, long lo, long hi"
    mask, rest = f"treadle_lanes_{v}m(lo, hi)", f"treadle_splat_{v}f({REST}f)"
    bytes_there, byte_rest = "const signed char *x, signed char *y, long lo, long hi", f"(({v}b){{0}} - 1)"
    results = {
        f"select_where_{lanes}": f"treadle_select_where_{v}f({mask}, *(const {v}f_u *)x, {rest})",
        f"select_{lanes}": f"treadle_select_{v}f(treadle_on_{v}i({mask}), *(const {v}f_u *)x, {rest})",
        f"load_where_{lanes}": f"treadle_load_where_{v}f(x, {mask}, {rest})",
        f"load_again_{lanes}": f"treadle_load_where_{v}f(x, treadle_mask_{v}i(treadle_on_{v}i({mask})), {rest})",
        f"load_splat_where_{lanes}": f"treadle_load_splat_where_{v}f(x, {mask}, {rest})",
    }
    stores = {
        f"store_where_{lanes}": f"treadle_store_where_{v}f(y, *(const {v}f_u *)x, {mask})",
        f"store_strided_where_{lanes}": f"treadle_store_strided_where_{v}f(y, 1, *(const {v}f_u *)x, {mask})",
    }
    byte_results = {f"byte_load_{lanes}": f"treadle_load_where_{v}b(x, {mask}, {byte_rest})"}
    return "\n".join(
        [
            *(f"void {name}({range_of}) {{ treadle_store_{v}f(y, {text}); }}" for name, text in results.items()),
            *(f"void {name}({range_of}) {{ {text}; }}" for name, text in stores.items()),
            *(f"void {name}({bytes_there}) {{ *({v}b_u *)y = {text}; }}" for name, text in byte_results.items()),
            f"void byte_store_{lanes}({bytes_there}) {{ treadle_store_where_{v}b(y, *(const {v}b_u *)x, {mask}); }}",
        ]
    )


FLOATS = (
    "select_where",
    "select",
    "load_where",
    "load_again",
    "load_splat_where",
    "store_where",
    "store_strided_where",
)
BYTES = ("byte_load", "byte_store")


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library_of("\n".join(map(functions, WIDTHS)), request.param, tmp_path_factory.mktemp("masks"))


@pytest.mark.parametrize("name", [*FLOATS, *BYTES])
@pytest.mark.parametrize("lanes", WIDTHS)
def test_every_range_of_lanes(library: ctypes.CDLL, lanes: int, name: str) -> None:
    """Bounds before the first lane and behind the last one, as far as numbers go, and the wrong way round."""
    function = library[f"{name}_{lanes}"]
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    x = np.arange(1, lanes + 1, dtype=np.int8 if name in BYTES else np.float32)
    there = np.full_like(x, x[0]) if name == "load_splat_where" else x
    bounds = (-FARTHEST * 2, -(2**32), -1, *range(lanes + 1), lanes + 1, 31, 32, 33, 2**32, FARTHEST)
    for lo in bounds:
        for hi in bounds:
            y = np.full_like(x, REST)
            function(x.ctypes.data, y.ctypes.data, lo, hi)
            on = (np.arange(lanes) >= lo) & (np.arange(lanes) < hi)
            np.testing.assert_array_equal(y, np.where(on, there, REST), str((lo, hi)))


@pytest.mark.parametrize("lanes", WIDTHS)
def test_no_lane_touches_memory(library: ctypes.CDLL, lanes: int) -> None:
    """There is none at the address."""
    y = np.zeros(lanes, np.float32)
    for name in ("load_where", "load_splat_where"):
        library[f"{name}_{lanes}"](ctypes.c_void_p(64), y.ctypes.data_as(ctypes.c_void_p), 0, ctypes.c_long(-3))
        np.testing.assert_array_equal(y, REST)
    library[f"store_where_{lanes}"](y.ctypes.data_as(ctypes.c_void_p), ctypes.c_void_p(64), 0, ctypes.c_long(0))
