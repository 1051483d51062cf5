"""Requests of a few rows each, joined into calls of one artifact that was compiled for a range of batches.

    treadle compile model.onnx --shape batch=1..32 -o served
    python examples/serving/batching.py served --clients 16

A call of the artifact does the work of the rows that it gets, so nothing is padded, and there is no list of allowed
batches. The command measures requests of one row, one by one and joined. `docs/serving.md` explains it.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import treadle

Array = NDArray[Any]
Arrays = Mapping[str, Array]


def largest_batch(model: treadle.CompiledModel) -> int:
    """The most rows of a call; TreadleError for a model whose inputs and outputs are not batches of one range."""
    (batch, *others) = model.symbols or (None,)
    tensors = [*model.inputs, *model.outputs]
    if batch is None or others or any(not t.extents or t.extents[0] != batch.name for t in tensors):
        accepted = "a model compiled with --shape batch=1..N, the first dimension of every input and output"
        raise treadle.TreadleError("the model takes no batches of one range", str(model.folder), accepted)
    return batch.upper


def rows_of(model: treadle.CompiledModel, inputs: Arrays) -> int:
    """How many rows a request has; TreadleError where it is none that the model takes, alone or among others."""
    where, names = "request", [tensor.name for tensor in model.inputs]
    if set(inputs) != set(names):
        raise treadle.TreadleError(f"inputs {sorted(inputs)}", where, names)
    for tensor in model.inputs:
        array = inputs[tensor.name]
        if array.dtype != tensor.dtype or array.ndim != len(tensor.shape) or array.shape[1:] != tensor.shape[1:]:
            given = f"input '{tensor.name}': {array.dtype}{list(array.shape)}"
            raise treadle.TreadleError(given, where, f"{tensor.dtype}, rows of {list(tensor.shape[1:])}")
    rows = {len(array) for array in inputs.values()}
    limit = largest_batch(model)
    if len(rows) != 1 or not 1 <= max(rows) <= limit:
        raise treadle.TreadleError(f"{sorted(rows)} rows", where, f"1 to {limit}, of all inputs alike")
    return max(rows)


def joined(model: treadle.CompiledModel, requests: Sequence[Arrays]) -> list[dict[str, Array]]:
    """One call for all requests, and the rows of its outputs that belong to each."""
    names = [tensor.name for tensor in model.inputs]
    inputs = {name: np.concatenate([request[name] for request in requests]) for name in names}
    ends = np.cumsum([len(request[names[0]]) for request in requests])
    outputs = model.run(inputs)
    parts = {name: np.split(array, ends[:-1]) for name, array in outputs.items()}
    return [{name: part[number] for name, part in parts.items()} for number in range(len(requests))]


@dataclass(frozen=True)
class _Request:
    inputs: Arrays
    rows: int
    answer: Future[dict[str, Array]] = field(default_factory=Future[dict[str, Array]])


class Batcher:
    """A queue in front of a model: what has come while a call ran, or within `wait` seconds, is the next call.

    ```python
    with Batcher(treadle.load("served")) as batcher:
        outputs = batcher.submit({"x": x}).result()  # from any thread
    ```
    A wrong request is refused by `submit`, and spoils no call of others. With `most` requests waiting, `submit` blocks.
    """

    def __init__(self, model: treadle.CompiledModel, wait: float = 0.001, most: int = 1024) -> None:
        self.model, self.wait = model, wait
        self.calls = 0
        self._limit = largest_batch(model)
        self._ended = False
        self._requests: queue.Queue[_Request | None] = queue.Queue(most)
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def submit(self, inputs: Arrays) -> Future[dict[str, Array]]:
        """The outputs of a request to come; TreadleError for one that the model does not take, now."""
        request = _Request(inputs, rows_of(self.model, inputs))
        self._requests.put(request)
        return request.answer

    def close(self) -> None:
        """Answers what was submitted, and ends the thread."""
        self._requests.put(None)
        self._thread.join()

    def __enter__(self) -> Batcher:
        """The queue."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    def _work(self) -> None:
        first = self._next(None)
        while first is not None:
            batch, held = self._gathered(first)
            self._answer([request for request in batch if request.answer.set_running_or_notify_cancel()])
            first = held if held is not None or self._ended else self._next(None)

    def _gathered(self, first: _Request) -> tuple[list[_Request], _Request | None]:
        """The requests of the next call, and one that has no room in it: the call after it begins with that."""
        batch, rows, until = [first], first.rows, time.monotonic() + self.wait
        while rows < self._limit and (following := self._next(until - time.monotonic())) is not None:
            if rows + following.rows > self._limit:
                return batch, following
            batch.append(following)
            rows += following.rows
        return batch, None

    def _next(self, seconds: float | None) -> _Request | None:
        """The next request; None if none came in time, or if there are to be no more."""
        try:
            request = self._requests.get(timeout=None if seconds is None else max(0.0, seconds))
        except queue.Empty:
            return None
        self._ended = request is None
        return request

    def _answer(self, batch: Sequence[_Request]) -> None:
        """One call; what it raises is raised for each request."""
        if not batch:
            return
        try:
            answers = joined(self.model, [request.inputs for request in batch])
        except Exception as error:
            for request in batch:
                request.answer.set_exception(error)
            return
        self.calls += 1
        for request, answer in zip(batch, answers, strict=True):
            request.answer.set_result(answer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints how many requests of one row a second are answered, one by one and joined."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what `treadle compile --shape batch=1..N` wrote")
    parser.add_argument("--clients", type=int, default=16, help="threads that ask (default 16)")
    parser.add_argument("--requests", type=int, default=200, help="of each (default 200)")
    options = parser.parse_args(arguments)
    try:
        model = treadle.load(options.folder)
        draw = np.random.default_rng(0)
        inputs = {t.name: draw.random((1, *t.shape[1:])).astype(t.dtype) for t in model.inputs}
        alone = _requests_a_second(options, lambda: model.run(inputs))
        with Batcher(model) as batcher:
            together = _requests_a_second(options, lambda: batcher.submit(inputs).result())
    except treadle.TreadleError as error:
        print(error, file=sys.stderr)
        return 2
    mean = options.clients * options.requests / batcher.calls
    print(f"one by one: {alone:.0f} requests/s; joined: {together:.0f} requests/s, {mean:.1f} rows a call")
    return 0


def _requests_a_second(options: argparse.Namespace, ask: Callable[[], object]) -> float:
    with ThreadPoolExecutor(options.clients) as clients:
        begin = time.perf_counter()
        for done in [clients.submit(lambda: [ask() for _ in range(options.requests)]) for _ in range(options.clients)]:
            done.result()
        return options.clients * options.requests / (time.perf_counter() - begin)


if __name__ == "__main__":
    sys.exit(main())
