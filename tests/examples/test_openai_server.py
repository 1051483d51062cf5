"""The server of OpenAI's protocol, asked by OpenAI's own client: where starlette, uvicorn and openai are installed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import treadle
from tests.test_generation import EVERY_ROW, SHAPES

openai: Any = pytest.importorskip("openai")
uvicorn: Any = pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytestmark = pytest.mark.slow
PROMPT = "w5 w17 w200 w3 w9"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    """A client of a server in another thread; the tokens are words w0 to w298, and <end>."""
    folder = tmp_path_factory.mktemp("served")
    words = {f"w{n}": n for n in range(299)} | {"<end>": 299}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    with treadle.compile(EVERY_ROW.model(), shapes=SHAPES, states="auto") as model:
        model.save(folder / "decoder")
    example = import_module("examples.serving.openai_server")
    command = [str(folder / "decoder"), "--tokenizer", str(folder / "tokenizer.json"), "--stop", "<end>"]
    given = example.arguments().parse_args([*command, "--message", "w1 {content} w2 ", "--answer", "w4"])
    config = uvicorn.Config(example.opened(given).app(), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    server.should_exit = True
    thread.join()


def generated(folder: Path, tokens: list[int], most: int) -> str:
    """By Treadle's own loop."""
    with treadle.compile(EVERY_ROW.model(), shapes=SHAPES, states="auto") as model:
        return " ".join(f"w{n}" for n in treadle.generate(model, tokens, most=most))


def test_completions(client: Any, tmp_path: Path) -> None:
    wanted = generated(tmp_path, [5, 17, 200, 3, 9], 12)
    assert client.models.list().data[0].id == "decoder"
    done = client.completions.create(model="decoder", prompt=PROMPT, max_tokens=12, temperature=0)
    assert done.choices[0].text.split() == wanted.split() and done.choices[0].finish_reason == "length"
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 12)
    pieces = client.completions.create(
        model="decoder", prompt=[5, 17, 200, 3, 9], max_tokens=12, temperature=0, stream=True
    )
    assert "".join(each.choices[0].text for each in pieces).split() == wanted.split()
    stop = wanted.split()[4]
    short = client.completions.create(model="decoder", prompt=PROMPT, max_tokens=12, temperature=0, stop=f" {stop}")
    assert short.choices[0].text.split() == wanted.split()[: wanted.split().index(stop)]
    assert short.choices[0].finish_reason == "stop"
    drawn = [
        client.completions.create(model="decoder", prompt=PROMPT, max_tokens=8, seed=3, top_p=0.9).choices[0].text
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]


def test_chats(client: Any, tmp_path: Path) -> None:
    wanted = generated(tmp_path, [1, 5, 17, 2, 4], 6)
    messages = [{"role": "user", "content": "w5 w17"}]
    done = client.chat.completions.create(model="decoder", messages=messages, max_tokens=6, temperature=0)
    assert done.choices[0].message.content.split() == wanted.split()
    parts = client.chat.completions.create(
        model="decoder",
        messages=messages,
        max_tokens=6,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *words, last = list(parts)
    assert "".join(each.choices[0].delta.content for each in words).split() == wanted.split()
    assert last.usage.completion_tokens == 6


def test_requests_take_turns(client: Any) -> None:
    prompts = [f"w{n} w{n + 1}" for n in range(1, 7)]
    alone = [_asked(client, prompt) for prompt in prompts]
    found: dict[str, str] = {}
    threads = [threading.Thread(target=lambda p=p: found.update({p: _asked(client, p)})) for p in prompts]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [found[prompt] for prompt in prompts] == alone


def _asked(client: Any, prompt: str) -> str:
    return client.completions.create(model="decoder", prompt=prompt, max_tokens=8, temperature=0).choices[0].text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": PROMPT, "n": 2}, "n is not supported"),
        ({"prompt": [5, 400]}, "token 400"),
        ({"prompt": []}, "there are no tokens"),
        ({"prompt": None}, "there is no prompt"),
        ({"prompt": PROMPT, "temperature": -1}, "temperature is -1"),
    ],
)
def test_requests_that_are_refused(client: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message) as error:
        client.completions.create(model="decoder", **given)
    assert json.loads(error.value.response.text)["error"]["type"] == "invalid_request_error"
