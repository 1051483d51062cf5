"""A Dask cluster as workers that build and measure: `treadle tune --scheduler tcp://...`.

Dask runs what a lost worker was doing on another one, up to a few times; then the call fails, which costs a candidate.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from treadle.errors import TreadleError
from treadle.tuning.workers import Workers, workers_of

_CONNECT_SECONDS = 10
_WORKERS_SECONDS = 30
_ACCEPTED = "the address of a running `dask scheduler`, such as tcp://127.0.0.1:8786"


@contextmanager
def cluster(address: str) -> Generator[Workers]:
    """The workers of a Dask scheduler. TreadleError if Dask is not installed, or if no scheduler or worker answers."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise TreadleError("Dask is not installed", "--scheduler", "pip install 'treadle[dask]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it says of lost workers is no trouble here
    try:
        client = distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise TreadleError(f"no scheduler answers: {_first_line(error)}", address, _ACCEPTED) from error
    try:
        _wait_for_workers(client, address)
        yield workers_of(client.get_executor(pure=False))
    finally:
        client.close()


def _wait_for_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_SECONDS)
    except TimeoutError as error:
        raise TreadleError("the scheduler has no workers", address, f"`dask worker {address}` somewhere") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


__all__ = ["cluster"]
