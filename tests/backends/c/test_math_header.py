"""treadle.h: its float32 functions against float64, scalar and vector, over all of float32's range."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.backends.c.toolchains import COMMANDS, library_of

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

UNARY = ("exp", "log", "tanh", "erf", "sqrt", "rsqrt", "floor", "ceil", "round", "abs", "sin", "cos")
BINARY = ("max", "min", "mod", "pow")
WIDTHS = (4, 8, 16)

SPECIAL = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-45, -1e-45, 1.17549435e-38, 3.4e38, -3.4e38, 0.5, 1.5],
    np.float32,
)


def header_text() -> str:
    """Loops over arrays: `s_exp` calls the scalar function, `v16_exp` the one on 16 lanes."""
    lines = list[str]()
    for name in UNARY:
        lines.append(
            f"void s_{name}(const float *x, const float *z, float *restrict y, long n) "
            f"{{ (void)z; for (long i = 0; i < n; i++) y[i] = treadle_{name}f(x[i]); }}"
        )
    for name in BINARY:
        lines.append(
            f"void s_{name}(const float *x, const float *z, float *restrict y, long n) "
            f"{{ for (long i = 0; i < n; i++) y[i] = treadle_{name}f(x[i], z[i]); }}"
        )
    lines += [vector_loop(name, lanes) for name in (*UNARY, *BINARY) for lanes in WIDTHS]
    lines += [
        f"float reduce_{name}_{lanes}(const float *x) "
        f"{{ return treadle_reduce_{name}_v{lanes}f(treadle_load_v{lanes}f(x)); }}"
        for name in ("add", "max", "min")
        for lanes in WIDTHS
    ]
    lines += [
        f"void copy_first_{lanes}(const float *x, float *y, long n) "
        f"{{ treadle_store_first_v{lanes}f(y, treadle_load_first_v{lanes}f(x, n), n); }}"
        for lanes in WIDTHS
    ]
    return "\n".join(lines)


def vector_loop(name: str, lanes: int) -> str:
    """One vector function applied to arrays whose length is a multiple of its width."""
    vector = f"v{lanes}f"
    operands = f"treadle_load_{vector}(x + i)"
    if name in BINARY:
        operands += f", treadle_load_{vector}(z + i)"
    return (
        f"void v{lanes}_{name}(const float *x, const float *z, float *restrict y, long n) {{ (void)z; "
        f"for (long i = 0; i < n; i += {lanes}) "
        f"treadle_store_{vector}(y + i, treadle_{name}_{vector}({operands})); }}"
    )


# The second target takes away fused multiply-add and wide vectors: the bounds must not depend on them.
BUILDS = [(name, "cpu") for name in COMMANDS] + [(name, "sse2") for name in list(COMMANDS)[:1]]


@pytest.fixture(scope="module", params=BUILDS, ids="-".join)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header's functions, compiled."""
    flags = ("-Wall", "-Wextra", "-Werror")
    return library_of(header_text(), request.param, tmp_path_factory.mktemp("cache"), flags)


def call(library: ctypes.CDLL, function: str, x: Floats, z: Floats | None = None) -> Floats:
    """`function` applied to whole arrays."""
    y = np.empty_like(x)
    second = x if z is None else z
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, second, y)]
    library[function](*pointers, ctypes.c_long(x.size))
    return y


def samples() -> Floats:
    """Special values, random bit patterns, and uniform numbers where the functions bend."""
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 2**32, 1 << 16, dtype=np.uint32).view(np.float32)
    uniform = [rng.uniform(-bound, bound, 1 << 15).astype(np.float32) for bound in (1, 5, 110)]
    x = np.concatenate([SPECIAL, patterns, *uniform])
    return np.ascontiguousarray(x[: x.size // 16 * 16])


def erf(x: Doubles) -> Doubles:
    return np.array([math.erf(value) for value in x])


def worst_ulp(y: Floats, exact: Doubles) -> float:
    """The largest distance in units in the last place of the exact result; infinities and NaN must agree."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
    finite = np.isfinite(nearest) & np.isfinite(y)
    np.testing.assert_array_equal(y[~finite], nearest[~finite])
    ulp = np.spacing(np.abs(nearest[finite])).astype(np.float64)
    return float(np.max(np.abs(y[finite] - exact[finite]) / ulp))


BOUNDS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "exp": (np.exp, 1.5),
    "log": (np.log, 1.5),
    "tanh": (np.tanh, 2.0),
    "erf": (erf, 2.0),
    "sqrt": (np.sqrt, 0.501),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "floor": (np.floor, 0.0),
    "ceil": (np.ceil, 0.0),
    "round": (np.rint, 0.0),
    "abs": (np.abs, 0.0),
    "sin": (np.sin, 1.0),
    "cos": (np.cos, 1.0),
}


@pytest.mark.parametrize("form", ["s", *(f"v{lanes}" for lanes in WIDTHS)])
@pytest.mark.parametrize("name", UNARY)
def test_a_function_is_within_its_bound(library: ctypes.CDLL, name: str, form: str) -> None:
    exact, bound = BOUNDS[name]
    x = samples()
    with np.errstate(all="ignore"):
        reference = exact(x.astype(np.float64))
    assert worst_ulp(call(library, f"{form}_{name}", x), reference) <= bound


@pytest.mark.parametrize("form", ["s", "v16"])
@pytest.mark.parametrize("name", ["tanh", "erf", "floor", "ceil", "round", "sqrt", "sin"])
def test_an_odd_function_keeps_the_sign_of_zero(library: ctypes.CDLL, name: str, form: str) -> None:
    zeros = np.tile(np.array([0.0, -0.0], np.float32), 8)
    assert np.array_equal(np.signbit(call(library, f"{form}_{name}", zeros)), np.signbit(zeros))


@pytest.mark.parametrize("form", ["s", *(f"v{lanes}" for lanes in WIDTHS)])
@pytest.mark.parametrize(("name", "reference"), [("max", np.maximum), ("min", np.minimum)])
def test_maximum_and_minimum_pass_nan_on(library: ctypes.CDLL, name: str, reference: np.ufunc, form: str) -> None:
    x, z = (np.ascontiguousarray(side.ravel()[:192]) for side in np.meshgrid(SPECIAL, SPECIAL))
    np.testing.assert_array_equal(call(library, f"{form}_{name}", x, z), reference(x, z))


@pytest.mark.parametrize("form", ["s", *(f"v{lanes}" for lanes in WIDTHS)])
def test_a_remainder_is_exact(library: ctypes.CDLL, form: str) -> None:
    rng = np.random.default_rng(5)
    pairs = [side.ravel()[:192] for side in np.meshgrid(SPECIAL, SPECIAL)]
    x, z = (np.concatenate([p, rng.permutation(samples())[: 1 << 12]]) for p in pairs)
    with np.errstate(all="ignore"):
        exact = np.fmod(x, z)
    y = call(library, f"{form}_mod", x, z)
    np.testing.assert_array_equal(y, exact)
    known = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(y[known]), np.signbit(exact[known]))


@pytest.mark.parametrize("form", ["s", "v16"])
def test_a_power_is_within_one_ulp(library: ctypes.CDLL, form: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(0.01, 8, 1 << 12).astype(np.float32)
    z = rng.uniform(-8, 8, 1 << 12).astype(np.float32)
    assert worst_ulp(call(library, f"{form}_pow", x, z), x.astype(np.float64) ** z) <= 1.0


@pytest.mark.parametrize("lanes", WIDTHS)
def test_reductions_meet_every_lane(library: ctypes.CDLL, lanes: int) -> None:
    x = np.random.default_rng(1).permutation(lanes).astype(np.float32) - 2
    for name, reference in (("add", np.sum), ("max", np.max), ("min", np.min)):
        function = library[f"reduce_{name}_{lanes}"]
        function.restype = ctypes.c_float
        assert function(ctypes.c_void_p(x.ctypes.data)) == reference(x)
        with_nan = x.copy()
        with_nan[lanes // 2] = np.nan
        assert math.isnan(function(ctypes.c_void_p(with_nan.ctypes.data)))


@pytest.mark.parametrize("lanes", WIDTHS)
def test_a_partial_access_touches_only_its_lanes(library: ctypes.CDLL, lanes: int) -> None:
    x = np.arange(1, 18, dtype=np.float32)
    for count in range(-1, lanes + 2):
        y = np.zeros(17, np.float32)
        library[f"copy_first_{lanes}"](*(ctypes.c_void_p(a.ctypes.data) for a in (x, y)), ctypes.c_long(count))
        kept = min(max(count, 0), lanes)
        np.testing.assert_array_equal(y, np.where(np.arange(17) < kept, x, 0))
