"""Generation: greedy tokens are those of ONNX Runtime's loop; sampling, conversations, and `treadle chat`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tokenizers
from numpy.typing import NDArray

import treadle
from benchmarks.language_models import Decoder
from tests.helpers.onnx_models import single_node_model
from treadle.errors import TreadleError
from treadle.generation import PromptLookup, Sampler
from treadle.tools.treadle_cli import main

Array = NDArray[Any]
SMALL = Decoder(layers=2, hidden=64, heads=4, groups=2, head=16, intermediate=96, vocabulary=300, positions=120)
EVERY_ROW = replace(SMALL, every_row=True)
SHAPES = {
    "sequence_length": treadle.Dim("sequence_length", 1, 8),
    "past_sequence_length": treadle.Dim("past_sequence_length", 0, 100),
    "total_sequence_length": "past_sequence_length + sequence_length",
}
PROMPT = [5, 17, 200, 3, 9, 44, 7, 8, 1, 2, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "m"
    with treadle.compile(SMALL.model(), shapes=SHAPES, states="auto") as model:
        model.save(path)
    return path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with the logits of all tokens of a call."""
    path = tmp_path_factory.mktemp("decoder") / "m"
    with treadle.compile(EVERY_ROW.model(), shapes=SHAPES, states="auto") as model:
        model.save(path)
    return path


def greedy(prompt: Sequence[int], most: int) -> list[int]:
    """By ONNX Runtime, which gets the past with each call."""
    oracle = onnxruntime.InferenceSession(SMALL.model().SerializeToString())
    names = [each.name for each in oracle.get_inputs()][2:]
    past: list[Any] = [np.zeros((1, SMALL.groups, 0, SMALL.head), np.float32)] * len(names)
    text, new = list(prompt), list(prompt)
    for _ in range(most):
        mask = np.ones((1, len(text)), np.int64)
        logits, *past = oracle.run(
            None, {"input_ids": np.array([new]), "attention_mask": mask, **dict(zip(names, past, strict=True))}
        )
        new = [int(np.argmax(np.asarray(logits)[0, -1]))]
        text += new
    return text[len(prompt) :]


def test_greedy_tokens_are_those_of_onnxruntime(folder: Path) -> None:
    with treadle.load(folder) as model:
        seen: list[int] = []
        wanted = greedy(PROMPT, 64)
        assert treadle.generate(model, PROMPT, most=64, callback=seen.append) == wanted == seen


def test_on_the_emulator() -> None:
    with treadle.compile(SMALL.model(), "sm_80", SHAPES, states="auto", device="emulator") as model:
        assert treadle.generate(model, PROMPT, most=6) == greedy(PROMPT, 6)


# Conversations: what was read is not read again, whatever comes next.


def test_a_conversation_reads_only_what_is_new(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with treadle.load(folder) as model:
        calls: list[int] = []
        run = model.run
        monkeypatch.setattr(model, "run", lambda inputs: (calls.append(inputs["input_ids"].shape[1]), run(inputs))[1])
        chat = treadle.Conversation(model)
        first = chat.generate(PROMPT, 5)
        assert calls == [8, 3, 1, 1, 1, 1]
        calls.clear()
        longer = [*PROMPT, *first, 77, 78]
        second = chat.generate(longer, 3)
        assert calls == [3, 1, 1]
        calls.clear()
        other = [*PROMPT[:9], 250, 251]
        third = chat.generate(other, 2)
        assert calls == [2, 1]
    for text, answer in ((longer, second), (other, third)):
        assert answer == greedy(text, len(answer))


def test_a_token_that_ends_the_text_is_the_last(folder: Path) -> None:
    with treadle.load(folder) as model:
        whole = treadle.generate(model, PROMPT, most=12)
        stop = whole[5]
        assert treadle.generate(model, PROMPT, most=12, stop={stop}) == whole[: whole.index(stop) + 1]


def test_text_ends_where_the_states_are_full(folder: Path) -> None:
    with treadle.load(folder) as model:
        chat = treadle.Conversation(model)
        assert chat.room == 101
        found = chat.generate(PROMPT, 500)
        assert len(PROMPT) + len(found) == 102 and len(chat.tokens) == 101


# Draft tokens, which are read along with the next one.


def test_drafts_are_what_followed_before() -> None:
    lookup = PromptLookup()
    assert lookup.draft([1, 2, 3, 4, 1], 8) == []
    assert lookup.draft([1, 2, 3, 4, 1, 2], 8) == [3, 4, 1, 2, 3, 4, 1, 2]
    assert lookup.draft([1, 2, 3, 4, 1, 2, 9, 1, 2], 3) == [9, 1, 2], "what came last"
    assert lookup.draft([1, 2, 3, 4, 1, 2, 9, 1, 2, 3], 1) == [4], "three tokens before two"


REPEATED = [7, 8, 9, 10, 11, 12] * 3


@pytest.mark.parametrize("lookup", [2, 20])
@pytest.mark.parametrize("prompt", [PROMPT, REPEATED])
def test_tokens_with_drafts_are_those_of_onnxruntime(
    rows: Path, prompt: list[int], lookup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = greedy(prompt, 60)
    with treadle.load(rows) as model:
        calls: list[int] = []
        run = model.run
        monkeypatch.setattr(model, "run", lambda inputs: (calls.append(inputs["input_ids"].shape[1]), run(inputs))[1])
        chat = treadle.Conversation(model)
        assert chat.generate(prompt, 60, lookup=lookup) == wanted
        assert chat.tokens == [*prompt, *wanted[:-1]] and max(calls) <= 8
        assert sum(calls) > len(calls) + len(prompt) - 3, "there were drafts"
        more = [*chat.tokens, wanted[-1], 77]
        assert chat.generate(more, 6, lookup=lookup) == greedy(more, 6)
        chat.generate([*prompt, 3], 3)
        assert chat.room == 101 and len(chat.generate(prompt, 500, lookup=lookup)) == 102 - len(prompt)


def test_accepted_drafts_save_calls(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that always repeats the text there is a call for eight tokens."""
    with treadle.load(rows) as model:
        read: list[int] = []
        calls = 0

        def run(inputs: dict[str, Array]) -> dict[str, Array]:
            nonlocal calls
            calls += 1
            read[len(read) :] = inputs["input_ids"][0]
            logits = np.zeros((1, inputs["input_ids"].shape[1], 300), np.float32)
            for row, token in enumerate(inputs["input_ids"][0]):
                logits[0, row, 7 + (token - 6) % 6] = 1
            return {"logits": logits}

        monkeypatch.setattr(model, "run", run)
        chat = treadle.Conversation(model)
        assert chat.generate(REPEATED, 24, lookup=7) == [*REPEATED, *REPEATED][:24]
        assert calls == 3 + 3, "18 tokens by eight, and 23 behind them"


def test_drafts_change_no_draws(rows: Path) -> None:
    sampling = treadle.Sampling(temperature=0.4, top_k=3, seed=3)
    with treadle.load(rows) as model:
        plain = treadle.generate(model, REPEATED, most=40, sampling=sampling)
        assert treadle.generate(model, REPEATED, most=40, sampling=sampling, lookup=5) == plain


def test_a_stream_that_is_left_leaves_no_drafts(rows: Path) -> None:
    with treadle.load(rows) as model:
        chat = treadle.Conversation(model)
        stream = chat.stream(REPEATED, 40, lookup=7)
        first = [next(stream) for _ in range(9)]
        known = chat.tokens
        assert known == [*REPEATED, *first][: len(known)]
        assert chat.generate([*known, 5], 4) == greedy([*known, 5], 4)


def test_drafts_are_refused_of_a_model_that_gives_one_row(folder: Path) -> None:
    with treadle.load(folder) as model:
        with pytest.raises(TreadleError, match="the logits of a call's last token alone"):
            treadle.generate(model, PROMPT, most=3, lookup=2)
        with pytest.raises(TreadleError, match="lookup is -1"):
            treadle.generate(model, PROMPT, most=3, lookup=-1)


# Sampling by its definition.


def frequencies(sampling: treadle.Sampling, logits: Array, before: Sequence[int] = (), count: int = 4000) -> Array:
    sampler = Sampler(sampling)
    return np.bincount([sampler.next(logits, before) for _ in range(count)], minlength=logits.size) / count


LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        (treadle.Sampling(temperature=1), [0.5, 0.25, 0.15, 0.1]),
        (treadle.Sampling(temperature=0.5), np.square([0.5, 0.25, 0.15, 0.1]) / 0.345),
        (treadle.Sampling(temperature=1, top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (treadle.Sampling(temperature=1, top_p=0.8), [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]),
        (treadle.Sampling(temperature=1, top_p=0.4), [1, 0, 0, 0]),
        (treadle.Sampling(), [1, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(sampling: treadle.Sampling, wanted: Array) -> None:
    np.testing.assert_allclose(frequencies(sampling, LOGITS), wanted, atol=0.03)  # four standard deviations


def test_tokens_that_occurred_are_less_probable() -> None:
    logits = np.array([2.0, 1.5, -1.0, -1.1], np.float32)
    penalty = treadle.Sampling(repetition_penalty=2)
    assert Sampler(penalty).next(logits, []) == 0 and Sampler(penalty).next(logits, [0, 0]) == 1
    drawn = frequencies(treadle.Sampling(temperature=1, repetition_penalty=2), logits, [0, 2])
    scores = np.exp([1.0, 1.5, -2.0, -1.1])
    np.testing.assert_allclose(drawn, scores / scores.sum(), atol=0.03)


def test_a_seed_gives_the_same_text(folder: Path) -> None:
    with treadle.load(folder) as model:
        texts = [
            treadle.generate(model, PROMPT, 12, sampling=treadle.Sampling(temperature=1.5, seed=seed))
            for seed in (1, 1, 2)
        ]
        assert texts[0] == texts[1] != texts[2]


# What cannot be generated; the states stay as they are.


@pytest.mark.parametrize(
    ("tokens", "most", "message"),
    [
        ([], 5, "there are no tokens"),
        ([1, 300], 5, "token 300; accepted: numbers from 0 to 299"),
        ([-1], 5, "token -1"),
        ([1] * 102, 5, "a text of 102 tokens; accepted: at most 101"),
        ([1], 0, "0 tokens are asked for"),
    ],
)
def test_what_cannot_be_read_is_refused(folder: Path, tokens: list[int], most: int, message: str) -> None:
    with treadle.load(folder) as model:
        chat = treadle.Conversation(model)
        chat.read(PROMPT)
        with pytest.raises(TreadleError, match=message):
            chat.generate(tokens, most)
        assert chat.tokens == PROMPT and model.lengths == {"past_sequence_length": len(PROMPT)}


@pytest.mark.parametrize("given", [{"temperature": -1}, {"top_p": 0}, {"top_k": -1}, {"repetition_penalty": 0}])
def test_numbers_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TreadleError, match=f"Sampling: {next(iter(given))} is"):
        treadle.Sampling(**given)


def test_models_that_are_no_decoders_are_refused(tmp_path: Path) -> None:
    with (
        treadle.compile(single_node_model(tmp_path / "m.onnx", "Relu")) as model,
        pytest.raises(TreadleError, match=r"the model keeps no states; accepted: treadle.compile\(..., states="),
    ):
        treadle.generate(model, PROMPT)


# `treadle chat`, with a tokenizer of 300 words.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = {f"w{n}": n for n in range(299)} | {"<end>": 299}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "w0"}
    text = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "WhitespaceSplit"}, "added_tokens": []}
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(text))
    return path


def test_chat_prints_what_follows(folder: Path, tokenizer: Path, capfd: pytest.CaptureFixture[str]) -> None:
    prompt = " ".join(f"w{n}" for n in PROMPT)
    assert main(["chat", str(folder), "--tokenizer", str(tokenizer), "--prompt", prompt, "--most", "9"]) == 0
    said = capfd.readouterr()
    wanted = tokenizers.Tokenizer.from_file(str(tokenizer)).decode(greedy(PROMPT, 9))
    assert said.out.strip() == wanted
    assert "[11 tokens read at" in said.err and "then 9 at" in said.err


def test_chat_reads_turns(
    folder: Path, tokenizer: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    turns = tmp_path / "turns"
    turns.write_text("w5 w17\n\nw9\n")
    with turns.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        command = ["chat", str(folder), "--tokenizer", str(tokenizer), "--begin", "w1 ", "--turn", "w2 {} w3"]
        assert main([*command, "--most", "4"]) == 0
    first = greedy([1, 2, 5, 17, 3], 4)
    second = greedy([1, 2, 5, 17, 3, *first, 2, 9, 3], 4)
    words = [f"w{n}" if n < 299 else "<end>" for n in (*first, *second)]
    assert capfd.readouterr().out.split() == words


def test_chat_begins_once(
    folder: Path, tokenizer: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begins = tokenizers.Tokenizer.from_file(str(tokenizer))
    begins.post_processor = tokenizers.processors.TemplateProcessing(single="w7 $A", special_tokens=[("w7", 7)])
    begins.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "turns").write_text("w5 w17\nw9\n")
    with (tmp_path / "turns").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main(["chat", str(folder), "--tokenizer", str(tmp_path / "tokenizer.json"), "--most", "4"]) == 0
    first = greedy([7, 5, 17], 4)
    second = greedy([7, 5, 17, *first, 9], 4)
    words = [f"w{n}" if n < 299 else "<end>" for n in (*first, *second)]
    assert capfd.readouterr().out.split() == words


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--turn", "{} {}"], "has no place for what is typed"),
        (["--stop", "</s>"], "'</s>' is no token"),
        (["--top-p", "3"], "top_p is 3.0"),
        (["--most", "0"], "0 tokens"),
    ],
)
def test_chat_refuses(
    folder: Path, tokenizer: Path, more: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", str(folder), "--tokenizer", str(tokenizer), "--prompt", "w1", *more]) == 2
    assert message in capfd.readouterr().err


def test_chat_names_a_tokenizer_that_is_none(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text("{}")
    for name, message in (("t.json", "cannot read"), ("none.json", "there is no such file")):
        assert main(["chat", str(folder), "--tokenizer", str(tmp_path / name), "--prompt", "w1"]) == 2
        assert message in capfd.readouterr().err
