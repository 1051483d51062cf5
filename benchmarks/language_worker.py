"""One peer of `benchmarks/language.py`, in a Python of its own: reads requests as lines of JSON, answers with seconds.

It imports nothing of this project, so that the peer's Python needs only the peer.

    {"do": "open", "peer": "genai", "folder": "...", "threads": 2, "room": 1024}
    {"do": "open", "peer": "openvino", "folder": "...", "threads": 2, "precision": "f32"}
    {"do": "read", "tokens": 512}        a prompt from an empty past
    {"do": "step", "count": 32}          tokens behind it, one by one
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class GenAi:
    """ONNX Runtime GenAI, whose cache is one buffer of all positions."""

    def __init__(self, folder: str, threads: int, room: int):
        import onnxruntime_genai  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

        self._library, self._room = onnxruntime_genai, room
        path = Path(folder) / "genai_config.json"
        config = json.loads(path.read_text())
        config["model"]["decoder"]["session_options"] = {
            "intra_op_num_threads": threads, "inter_op_num_threads": 1, "provider_options": [],
        }  # fmt: skip
        config["search"]["max_length"] = room
        path.write_text(json.dumps(config))
        self._model = onnxruntime_genai.Model(folder)
        self._generator: Any = None

    def read(self, tokens: int) -> float:
        """Seconds of a prompt."""
        parameters = self._library.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self._room, do_sample=False)
        self._generator = self._library.Generator(self._model, parameters)
        ids = np.random.default_rng(0).integers(0, 1000, tokens).astype(np.int32)
        start = time.perf_counter()
        self._generator.append_tokens(ids)
        return time.perf_counter() - start

    def step(self, count: int) -> float:
        """Seconds a token."""
        self._generator.generate_next_token()
        start = time.perf_counter()
        for _ in range(count):
            self._generator.generate_next_token()
        return (time.perf_counter() - start) / count


class OpenVino:
    """OpenVINO, whose model keeps keys and values itself; `precision` is that of activations, None for its default."""

    def __init__(self, folder: str, threads: int, precision: str | None):
        import openvino  # noqa: PLC0415 # pyright: ignore[reportMissingImports]

        self._library = openvino
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        if precision is not None:
            options["INFERENCE_PRECISION_HINT"] = precision
        compiled = openvino.Core().compile_model(f"{folder}/openvino_model.xml", "CPU", options)
        self._request, self._past = compiled.create_infer_request(), 0

    def read(self, tokens: int) -> float:
        """Seconds of a prompt."""
        ids = np.random.default_rng(0).integers(0, 1000, tokens)
        self._request.reset_state()
        self._past = 0
        start = time.perf_counter()
        self._call(ids)
        return time.perf_counter() - start

    def step(self, count: int) -> float:
        """Seconds a token, of which each is the most probable one."""
        token = self._call(np.ones(1, np.int64))
        start = time.perf_counter()
        for _ in range(count):
            token = self._call(np.array([token]))
        return (time.perf_counter() - start) / count

    def _call(self, ids: Any) -> int:
        past, self._past = self._past, self._past + len(ids)
        positions = np.arange(past, self._past, dtype=np.int64)[None]
        given = {"input_ids": ids[None].astype(np.int64), "attention_mask": np.ones((1, self._past), np.int64)}
        beams = np.zeros(1, np.int32)
        found = self._request.infer({**given, "position_ids": positions, "beam_idx": beams}, share_outputs=True)
        return int(next(iter(found.values()))[0, -1].argmax())


PEERS = {"genai": GenAi, "openvino": OpenVino}


def main() -> None:
    """Answers until the input ends."""
    peer: GenAi | OpenVino | None = None
    for line in sys.stdin:
        request = json.loads(line)
        match request.pop("do"):
            case "open":
                peer = PEERS[request.pop("peer")](**request)
                answer: dict[str, Any] = {"version": peer._library.__version__}
            case "read":
                assert peer is not None
                answer = {"seconds": peer.read(request["tokens"])}
            case _:
                assert peer is not None
                answer = {"seconds": peer.step(request["count"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
