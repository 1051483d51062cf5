"""`treadle chat`: a compiled decoder continues what is typed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from treadle.errors import TreadleError
from treadle.generation import Conversation, Sampling
from treadle.model import load
from treadle.support.lazy import lazy_module

if TYPE_CHECKING:
    import tokenizers
else:  # an extra: `treadle[chat]`
    tokenizers = lazy_module("tokenizers")


def chat_command(args: argparse.Namespace) -> int:
    """Runs the command; its exit status. TreadleError for a folder, a tokenizer or numbers that cannot be used."""
    if args.turn.count("{}") != 1:
        raise TreadleError(f"{args.turn!r} has no place for what is typed", "--turn", "a text with one {}")
    if args.most < 1:
        raise TreadleError(f"{args.most} tokens", "--most", "1 upwards")
    tokenizer = _tokenizer(Path(args.tokenizer))
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.repetition_penalty, args.seed)
    stop = {_number(tokenizer, text) for text in args.stop}
    with load(args.folder, args.threads) as model:
        speaker = _Speaker(Conversation(model), tokenizer, sampling, stop, args.most, args.lookup)
        begin = args.begin
        for text in _typed(args.prompt):
            speaker.answer(begin + args.turn.replace("{}", text))
            begin = ""
    return 0


def _typed(prompt: str | None) -> Iterator[str]:
    """The prompt alone, or what is typed, line by line, to the end of the input."""
    if prompt is not None:
        yield prompt
        return
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if text := line.rstrip("\n"):
            yield text


class _Speaker:
    """A conversation in words; numbers of each answer go to stderr."""

    def __init__(
        self,
        conversation: Conversation,
        tokenizer: tokenizers.Tokenizer,
        sampling: Sampling,
        stop: set[int],
        most: int,
        lookup: int,
    ):
        self._conversation, self._tokenizer = conversation, tokenizer
        self._sampling, self._stop, self._most, self._lookup = sampling, stop, most, lookup
        self._tokens: list[int] = []

    def answer(self, text: str) -> None:
        """Prints what follows a turn, as it comes."""
        # What a tokenizer puts before a text, such as a token for its beginning, is not repeated in its middle.
        self._tokens += self._tokenizer.encode(text, add_special_tokens=not self._tokens).ids
        words, first, count = tokenizers.decoders.DecodeStream(skip_special_tokens=True), None, 0
        new, start = len(self._tokens) - len(self._conversation.tokens), time.perf_counter()
        for token in self._conversation.stream(self._tokens, self._most, self._stop, self._sampling, self._lookup):
            first = time.perf_counter() if first is None else first
            count += 1
            self._tokens.append(token)
            if token not in self._stop:
                print(words.step(self._tokenizer, token) or "", end="", flush=True)
        end = time.perf_counter()
        print(flush=True)
        if first is not None:
            rest = f", then {count} at {(count - 1) / (end - first):.1f} tokens/s" if count > 1 else ""
            print(f"[{new} tokens read at {new / (first - start):.1f} tokens/s{rest}]", file=sys.stderr)


def _tokenizer(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise TreadleError("there is no such file", path, "a tokenizer.json, as the tokenizers library writes it")
    read = tokenizers.Tokenizer.from_file
    try:
        return read(str(path))
    except Exception as error:  # the library raises nothing more specific
        raise TreadleError(f"cannot read: {error}", path, "a tokenizer.json of the tokenizers library") from error


def _number(tokenizer: tokenizers.Tokenizer, text: str) -> int:
    number = tokenizer.token_to_id(text)
    if number is None:
        raise TreadleError(f"{text!r} is no token", "--stop", "a token of the tokenizer's vocabulary")
    return number
