"""Environment variables, and the error type."""

import pwd
from pathlib import Path

import pytest

from treadle.environment import DEFAULT_CACHE_LIMIT, load_environment, temporary_cache_dir
from treadle.errors import TreadleError


def test_an_empty_environment_gives_the_defaults() -> None:
    environment = load_environment({})
    assert environment.c_compiler == ()
    assert environment.num_threads >= 1
    assert environment.cache_dir.name == "treadle"
    assert environment.trace_dir is None
    assert environment.cache_limit == DEFAULT_CACHE_LIMIT


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_without_a_home_the_cache_is_a_temporary_folder(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user has neither HOME nor an entry in the system's table."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    assert load_environment({} if home is None else {"HOME": home}).cache_dir == temporary_cache_dir()
    assert temporary_cache_dir().is_absolute()


def test_the_users_cache_is_where_its_variable_says() -> None:
    assert load_environment({"XDG_CACHE_HOME": "/of/mine"}).cache_dir == Path("/of/mine/treadle")
    relative = load_environment({"XDG_CACHE_HOME": "of/mine"}).cache_dir
    assert relative == load_environment({}).cache_dir, "the specification has relative paths ignored"


@pytest.mark.parametrize("name", ["TREADLE_CACHE_DIR", "TREADLE_TRACE_DIR"])
def test_the_home_of_nobody_is_named(name: str) -> None:
    with pytest.raises(
        TreadleError, match=f"{name}: '~no-such-user/x' names no folder: .*; accepted: an absolute path"
    ):
        load_environment({name: "~no-such-user/x"})


def test_every_variable_is_read() -> None:
    environment = load_environment(
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
    assert environment.cache_dir == Path("/c")
    assert environment.cache_limit == 1_500_000_000
    assert environment.c_compiler == ("ccache", "my cc")
    assert environment.c_flags == ("-g", "-O1")
    assert environment.num_threads == 3
    assert environment.trace_dir == Path("/t")
    assert environment.cuda_driver == "pycuda"


def test_an_unknown_driver_is_named() -> None:
    with pytest.raises(TreadleError, match="TREADLE_CUDA_DRIVER: 'cupy' is unknown; accepted: bindings, pycuda"):
        load_environment({"TREADLE_CUDA_DRIVER": "cupy"})


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_threads_is_named(value: str) -> None:
    with pytest.raises(TreadleError, match=r"TREADLE_NUM_THREADS.*from 1 upwards"):
        load_environment({"TREADLE_NUM_THREADS": value})


@pytest.mark.parametrize(
    ("value", "size"), [("0", 0), ("17", 17), ("3kb", 3000), ("2GiB", 2 << 30), ("0.5MB", 500_000), ("1TB", 10**12)]
)
def test_a_limit_of_bytes(value: str, size: int) -> None:
    assert load_environment({"TREADLE_CACHE_LIMIT": value}).cache_limit == size


@pytest.mark.parametrize("value", ["-1", "much", "1e9", "GB", "3 XB", "inf", "1" * 400, "²GB"])
def test_a_wrong_limit_is_named(value: str) -> None:
    with pytest.raises(TreadleError, match=r"TREADLE_CACHE_LIMIT: .* is not a number of bytes; accepted: such as"):
        load_environment({"TREADLE_CACHE_LIMIT": value})


def test_an_unfinished_quote_is_named() -> None:
    with pytest.raises(TreadleError, match="CC: cannot split"):
        load_environment({"CC": "'gcc"})


def test_an_error_is_one_line() -> None:
    error = TreadleError("bad\nvalue", "node 'x'", ["a", 1])
    assert str(error) == "node 'x': bad value; accepted: a, 1"
    assert str(TreadleError("alone")) == "alone"
