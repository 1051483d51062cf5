"""A server of OpenAI's protocol for a compiled language model: completions and chats, whole or as streams.

    pip install starlette uvicorn tokenizers
    python examples/serving/openai_server.py FOLDER --tokenizer tokenizer.json --stop '<|im_end|>'

Any client of the protocol talks to it: `OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")`. There is one
model with one past: requests take turns, and what a request has in common with the one before it is not read again,
which is most of a chat. Of the protocol it knows what `_KNOWN` lists, and refuses the rest by name.
"""

import argparse
import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import treadle

_KNOWN = {
    "model", "prompt", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "stop",
    "stream", "stream_options", "user",
}  # fmt: skip
_LEFT_OUT = {"n": 1, "logprobs": False, "echo": False, "best_of": 1, "frequency_penalty": 0, "presence_penalty": 0}
"""What clients may send with these values alone, which ask for nothing."""


@dataclass
class Answer:
    """One answer while it is made: its words, and what ended it."""

    prompt: list[int]
    most: int
    stop: list[str]
    sampling: treadle.Sampling
    words: str = ""
    tokens: int = 0
    reason: str = "length"

    def usage(self) -> dict[str, int]:
        """Tokens that were read and made."""
        read = len(self.prompt)
        return {"prompt_tokens": read, "completion_tokens": self.tokens, "total_tokens": read + self.tokens}


@dataclass
class Server:
    """A model with its tokenizer.

    message: a message of a chat, with {role} and {content}; answer: what stands before an answer to a chat
    stop: tokens that end an answer
    """

    model: treadle.CompiledModel
    tokenizer: tokenizers.Tokenizer
    name: str
    message: str
    answer: str
    stop: frozenset[int]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.conversation = treadle.Conversation(self.model)

    def app(self) -> Starlette:
        """The routes of the protocol."""
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.completions, methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={treadle.TreadleError: _refused})

    async def models(self, request: Request) -> Response:
        """The one that there is."""
        return JSONResponse({"object": "list", "data": [{"id": self.name, "object": "model", "owned_by": "treadle"}]})

    async def completions(self, request: Request) -> Response:
        """Continues a prompt, or answers a chat."""
        try:
            asked = await request.json()
        except ValueError as error:
            raise treadle.TreadleError(f"the body is no JSON: {error}", request.url.path) from error
        is_chat = request.url.path.endswith("/chat/completions")
        answer = self.asked(asked, is_chat)
        shown = _Shown(is_chat, self.name)
        if asked.get("stream"):
            with_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            return StreamingResponse(self._events(answer, shown, with_usage), media_type="text/event-stream")
        async for _ in self._pieces(answer):
            pass
        return JSONResponse(shown.whole(answer))

    def asked(self, asked: object, is_chat: bool) -> Answer:
        """The answer that a request asks for, not made yet; TreadleError for what is not known."""
        where = "the request"
        if not isinstance(asked, dict):
            raise treadle.TreadleError("the body is no object", where)
        given: Mapping[str, Any] = asked
        unknown = [name for name in given if name not in _KNOWN and given[name] not in (None, _LEFT_OUT.get(name))]
        if unknown:
            raise treadle.TreadleError(f"{', '.join(unknown)} is not supported", where, sorted(_KNOWN))
        prompt = self._chat(given.get("messages")) if is_chat else given.get("prompt")
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt).ids
        if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
            raise treadle.TreadleError("there is no prompt", where, "a text, or a list of tokens")
        most = given.get("max_completion_tokens") or given.get("max_tokens") or 256
        stop = given.get("stop") or []
        temperature, top_p, seed = (given.get(name) for name in ("temperature", "top_p", "seed"))
        sampling = treadle.Sampling(
            temperature=1.0 if temperature is None else temperature, top_p=1.0 if top_p is None else top_p,
            seed=uuid.uuid4().int % (1 << 32) if seed is None else seed,
        )  # fmt: skip
        return Answer(prompt, most, [stop] if isinstance(stop, str) else stop, sampling)

    def _chat(self, messages: Any) -> str:
        if not isinstance(messages, list) or not messages:
            raise treadle.TreadleError("there are no messages", "the request", "a list of role and content")
        text = ""
        for each in messages:
            role, content = (each.get(name) if isinstance(each, dict) else None for name in ("role", "content"))
            if not isinstance(role, str) or not isinstance(content, str):
                raise treadle.TreadleError(f"a message {each!r}", "the request", "a role, and a text as content")
            text += self.message.replace("{role}", role).replace("{content}", content)
        return text + self.answer

    async def _pieces(self, answer: Answer) -> AsyncIterator[str]:
        async with self.turn:
            async for piece in iterate_in_threadpool(self._words(answer)):
                yield piece

    def _words(self, answer: Answer) -> Iterator[str]:
        """The words of an answer as they come. What may be the beginning of a stop is held back."""
        decoder, sent = tokenizers.decoders.DecodeStream(skip_special_tokens=True), 0
        held = max((len(each) for each in answer.stop), default=1) - 1
        for token in self.conversation.stream(answer.prompt, answer.most, self.stop, answer.sampling):
            answer.tokens += 1
            if token in self.stop:
                answer.reason = "stop"
                break
            answer.words += decoder.step(self.tokenizer, token) or ""
            ends = [place for each in answer.stop if (place := answer.words.find(each)) >= 0]
            if ends:
                answer.words, answer.reason, held = answer.words[: min(ends)], "stop", 0
                break
            if len(answer.words) - held > sent:
                yield answer.words[sent : len(answer.words) - held]
                sent = len(answer.words) - held
        if len(answer.words) > sent:
            yield answer.words[sent:]

    async def _events(self, answer: Answer, shown: "_Shown", with_usage: bool) -> AsyncIterator[str]:
        try:
            async for piece in self._pieces(answer):
                yield _event(shown.part(piece, None))
        except treadle.TreadleError as error:  # the status is sent already
            yield _event(_error(error))
            return
        yield _event(shown.part("", answer.reason))
        if with_usage:
            yield _event(shown.head(".chunk") | {"choices": [], "usage": answer.usage()})
        yield "data: [DONE]\n\n"


class _Shown:
    """The form of answers: that of completions, or of chats."""

    def __init__(self, is_chat: bool, model: str):
        self._is_chat, self._model, self._made = is_chat, model, int(time.time())
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"

    def head(self, kind: str) -> dict[str, Any]:
        """What all answers have."""
        name = f"chat.completion{kind}" if self._is_chat else "text_completion"
        return {"id": self._id, "object": name, "created": self._made, "model": self._model}

    def whole(self, answer: Answer) -> dict[str, Any]:
        """An answer at once."""
        said = {"message": {"role": "assistant", "content": answer.words}} if self._is_chat else {"text": answer.words}
        choice = {"index": 0, "finish_reason": answer.reason, **said}
        return self.head("") | {"choices": [choice], "usage": answer.usage()}

    def part(self, piece: str, reason: str | None) -> dict[str, Any]:
        """Some of its words."""
        said = {"delta": {"role": "assistant", "content": piece}} if self._is_chat else {"text": piece}
        return self.head(".chunk") | {"choices": [{"index": 0, "finish_reason": reason, **said}]}


def _event(data: object) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _error(error: Exception) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": "invalid_request_error", "code": None, "param": None}}


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse(_error(error), 400)


def opened(args: argparse.Namespace) -> Server:
    """The server that the arguments describe; TreadleError for a stop that is no token."""
    tokenizer = tokenizers.Tokenizer.from_file(args.tokenizer)
    numbers = {text: tokenizer.token_to_id(text) for text in args.stop}
    missing = [text for text, number in numbers.items() if number is None]
    if missing:
        raise treadle.TreadleError(f"{missing[0]!r} is no token", "--stop", "a token of the tokenizer's vocabulary")
    model = treadle.load(args.folder, threads=args.threads)
    name = args.name or Path(args.folder).name
    return Server(model, tokenizer, name, args.message, args.answer, frozenset(numbers.values()))


def arguments() -> argparse.ArgumentParser:
    """Of the command line; the form of messages is ChatML unless told otherwise."""
    parser = argparse.ArgumentParser(description="Serves a compiled language model by OpenAI's protocol.")
    parser.add_argument("folder", help="what `treadle compile --states` wrote")
    parser.add_argument("--tokenizer", required=True, help="its tokenizer.json")
    parser.add_argument("--name", help="of the model; the folder's by default")
    parser.add_argument("--message", default="<|im_start|>{role}\n{content}<|im_end|>\n", help="of a chat")
    parser.add_argument("--answer", default="<|im_start|>assistant\n", help="what stands before an answer to a chat")
    parser.add_argument("--stop", action="append", default=[], help="a token that ends an answer; repeatable")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--port", type=int, default=8000)
    return parser


if __name__ == "__main__":
    given = arguments().parse_args()
    uvicorn.run(opened(given).app(), host="127.0.0.1", port=given.port)
