"""Knobs and the error type."""

from pathlib import Path

import pytest

from treadle.errors import TreadleError
from treadle.knobs import load_knobs


def test_an_empty_environment_gives_the_defaults() -> None:
    knobs = load_knobs({})
    assert knobs.c_compiler == ()
    assert knobs.num_threads >= 1
    assert knobs.cache_dir.name == "treadle"
    assert knobs.trace_dir is None


def test_every_variable_is_read() -> None:
    knobs = load_knobs(
        {
            "TREADLE_CACHE_DIR": "/c",
            "TREADLE_CC": "ccache 'my cc'",
            "CC": "other",
            "TREADLE_CFLAGS": "-g -O1",
            "TREADLE_NUM_THREADS": "3",
            "TREADLE_TRACE_DIR": "/t",
            "TREADLE_CUDA_DRIVER": "pycuda",
        }
    )
    assert knobs.cache_dir == Path("/c")
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


def test_an_unfinished_quote_is_named() -> None:
    with pytest.raises(TreadleError, match="CC: cannot split"):
        load_knobs({"CC": "'gcc"})


def test_an_error_is_one_line() -> None:
    error = TreadleError("bad\nvalue", "node 'x'", ["a", 1])
    assert str(error) == "node 'x': bad value; accepted: a, 1"
    assert str(TreadleError("alone")) == "alone"
