"""This project's side of `benchmarks/language.py`, in a process of its own; requests are those of the peers' worker."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import treadle

CHOSEN: dict[str, dict[str, Any]] = {
    "f32": {}, "bf16": {"precision": "bf16"}, "int8": {"weights": "int8"}, "int4": {"weights": "int4"},
    "int8-bf16": {"weights": "int8", "precision": "bf16"}, "int4-bf16": {"weights": "int4", "precision": "bf16"},
}  # fmt: skip


class Own:
    """A decoder compiled for prompts and steps, with its past in it."""

    def __init__(self, model: str, kind: str, threads: int, prompt: int, room: int):
        new = treadle.Dim("sequence_length", 1, prompt)
        past = treadle.Dim("past_sequence_length", 0, room)
        total = "past_sequence_length + sequence_length"
        shapes = {"sequence_length": new, "past_sequence_length": past, "total_sequence_length": total}
        chosen = CHOSEN[kind]
        start = time.process_time()
        self._model = treadle.compile(Path(model), shapes=shapes, states="auto", threads=threads, **chosen)
        self.compiled = time.process_time() - start
        self.memory = self._model.memory
        self._chat = treadle.Conversation(self._model)

    def read(self, tokens: int) -> float:
        """Seconds of a prompt."""
        ids = np.random.default_rng(0).integers(0, 1000, tokens).tolist()
        self._chat.reset()
        start = time.perf_counter()
        self._chat.read(ids)
        return time.perf_counter() - start

    def read_behind(self, past: Sequence[int], tokens: Sequence[int]) -> float:
        """Seconds of a call of some tokens behind others, which were read before."""
        self._chat.read(past)
        start = time.perf_counter()
        self._chat.read([*past, *tokens])
        return time.perf_counter() - start

    def close(self) -> None:
        """Gives the memory back."""
        self._model.close()

    def step(self, count: int) -> float:
        """Seconds a token, of which each is the most probable one."""
        tokens = self._chat.tokens
        start = time.perf_counter()
        for _ in self._chat.stream([*tokens, 1], count):
            pass
        return (time.perf_counter() - start) / count


def main() -> None:
    """Answers until the input ends."""
    own: Own | None = None
    for line in sys.stdin:
        request = json.loads(line)
        match request.pop("do"):
            case "open":
                own = Own(**request)
                answer: dict[str, Any] = {"compiled": own.compiled}
            case "read":
                assert own is not None
                answer = {"seconds": own.read(request["tokens"])}
            case _:
                assert own is not None
                answer = {"seconds": own.step(request["count"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
