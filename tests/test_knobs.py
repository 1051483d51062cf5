"""Knobs and the error type."""

from pathlib import Path

import pytest

from treadle.errors import TreadleError
from treadle.knobs import DEFAULT_CACHE_LIMIT, load_knobs


def test_an_empty_environment_gives_the_defaults() -> None:
    knobs = load_knobs({})
    assert knobs.c_compiler == ()
    assert knobs.num_threads >= 1
    assert knobs.cache_dir.name == "treadle"
    assert knobs.trace_dir is None
    assert knobs.cache_limit == DEFAULT_CACHE_LIMIT


def test_every_variable_is_read() -> None:
    knobs = load_knobs(
        {
            "TREADLE_CACHE_DIR": "/c",
            "TREADLE_CACHE_LIMIT": "1.5 GB",
            "TREADLE_CC": "ccache 'my cc'",
            "CC": "other",
            "TREADLE_CFLAGS": "-g -O1",
            "TREADLE_NUM_THREADS": "3",
            "TREADLE_TRACE_DIR": "/t",
            "TREADLE_CUDA_DRIVER": "pycuda",
        }
    )
    assert knobs.cache_dir == Path("/c")
    assert knobs.cache_limit == 1_500_000_000
    assert knobs.c_compiler == ("ccache", "my cc")
    assert knobs.c_flags == ("-g", "-O1")
    assert knobs.num_threads == 3
    assert knobs.trace_dir == Path("/t")
    assert knobs.cuda_driver == "pycuda"


def test_an_unknown_driver_is_named() -> None:
    with pytest.raises(TreadleError, match="TREADLE_CUDA_DRIVER: 'cupy' is unknown; accepted: bindings, pycuda"):
        load_knobs({"TREADLE_CUDA_DRIVER": "cupy"})


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_threads_is_named(value: str) -> None:
    with pytest.raises(TreadleError, match=r"TREADLE_NUM_THREADS.*from 1 upwards"):
        load_knobs({"TREADLE_NUM_THREADS": value})


@pytest.mark.parametrize(
    ("value", "size"), [("0", 0), ("17", 17), ("3kb", 3000), ("2GiB", 2 << 30), ("0.5MB", 500_000), ("1TB", 10**12)]
)
def test_a_limit_of_bytes(value: str, size: int) -> None:
    assert load_knobs({"TREADLE_CACHE_LIMIT": value}).cache_limit == size


@pytest.mark.parametrize("value", ["-1", "much", "1e9", "GB", "3 XB", "inf", "1" * 400, "²GB"])
def test_a_wrong_limit_is_named(value: str) -> None:
    with pytest.raises(TreadleError, match=r"TREADLE_CACHE_LIMIT: .* is not a number of bytes; accepted: such as"):
        load_knobs({"TREADLE_CACHE_LIMIT": value})


def test_an_unfinished_quote_is_named() -> None:
    with pytest.raises(TreadleError, match="CC: cannot split"):
        load_knobs({"CC": "'gcc"})


def test_an_error_is_one_line() -> None:
    error = TreadleError("bad\nvalue", "node 'x'", ["a", 1])
    assert str(error) == "node 'x': bad value; accepted: a, 1"
    assert str(TreadleError("alone")) == "alone"
