"""Text generation: the loop around a compiled decoder that keeps its past (`treadle.compile(..., states="auto")`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treadle.artifact.decoder import LOGITS, MADE, MASK, POSITIONS, TOKENS
from treadle.artifact.manifest import Tensor
from treadle.errors import TreadleError
from treadle.model import CompiledModel
from treadle.shapes.dynamic import ExtentExpression

Array = NDArray[Any]


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from a model's logits.

    temperature: what the logits are divided by; 0 takes the most probable token (greedy)
    top_k:  only so many of the most probable tokens are drawn from; 0: all
    top_p:  only the most probable tokens whose probabilities together reach it (Holtzman et al., "The curious case of
            neural text degeneration", ICLR 2020, section 3.1)
    repetition_penalty: what logits above 0 of tokens that occurred are divided by, and others are multiplied by (Keskar
            et al., "CTRL", 2019, section 4.1)
    seed:   of the random numbers

    TreadleError for numbers out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        limits = (
            ("temperature", self.temperature >= 0, "0 for greedy, or a number above"),
            ("top_k", self.top_k >= 0, "0 for all, or a number of tokens"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and up to 1"),
            ("repetition_penalty", self.repetition_penalty > 0, "a number above 0; 1 changes nothing"),
            ("seed", self.seed >= 0, "0 upwards"),
        )
        for name, fits, accepted in limits:
            if not fits:
                raise TreadleError(f"{name} is {getattr(self, name)}", "Sampling", accepted)


class Sampler:
    """Draws tokens, one after the other, by a `Sampling`."""

    def __init__(self, sampling: Sampling):
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def next(self, logits: Array, before: Collection[int]) -> int:
        """A token by its logit in a row of the vocabulary; `before`: the tokens so far. TreadleError for NaN."""
        how = self._sampling
        scores = logits.astype(np.float32) if how.repetition_penalty != 1 else logits
        if how.repetition_penalty != 1 and before:
            seen = np.unique(np.fromiter(before, np.int64))
            known = scores[seen]
            scores[seen] = np.where(known > 0, known / how.repetition_penalty, known * how.repetition_penalty)
        best = int(np.argmax(scores))  # NaN, if there is any
        if np.isnan(scores[best]):
            raise TreadleError("a logit is NaN", "generate", "a model without infinite activations")
        return best if how.temperature == 0 else self._drawn(scores.astype(np.float64) / how.temperature)

    def _drawn(self, scores: Array) -> int:
        how = self._sampling
        tokens = np.arange(scores.size)
        if 0 < how.top_k < scores.size:
            tokens = np.argpartition(scores, -how.top_k)[-how.top_k :]
        tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
        weights = np.exp(scores[tokens] - scores[tokens[0]])
        weights /= weights.sum()
        if how.top_p < 1:
            # As many as reach it, the one that does included.
            count = int(np.searchsorted(np.cumsum(weights), how.top_p)) + 1
            tokens, weights = tokens[:count], weights[:count] / weights[:count].sum()
        return int(self._random.choice(tokens, p=weights))


class PromptLookup:
    """Draft tokens from the text itself: those that followed the last tokens where they stood before.

    Source: Saxena, "Prompt lookup decoding", 2023: speculative decoding (Leviathan et al., "Fast inference from
    transformers via speculative decoding", ICML 2023) whose draft is the text itself.
    """

    SIZES = (3, 2)
    """Tokens that have to be the same, the longest run first."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], int] = {}
        """Where a run of tokens was followed last."""
        self._known = 0

    def draft(self, text: Sequence[int], most: int) -> list[int]:
        """So many tokens, or none where the last ones are new. A text begins with the one of the call before."""
        for end in range(self._known + 1, len(text)):
            self._next.update((tuple(text[end - size : end]), end) for size in self.SIZES if size <= end)
        self._known = max(self._known, len(text) - 1)
        found = (self._next.get(tuple(text[-size:])) for size in self.SIZES if size <= len(text))
        place = next((each for each in found if each is not None), None)
        return [] if place is None else list(islice(cycle(text[place:]), most))


class Conversation:
    """The tokens that a model with states has read, and those that come next.

    ```python
    with treadle.load("decoder.treadle") as model:
        chat = treadle.Conversation(model)
        for token in chat.stream([1, 15043, 29892], most=100, stop={2}):
            print(token)
        answer = chat.generate(chat.tokens + [306, 763])      # what is known of them is not read again
    ```
    The model takes token numbers as `input_ids` `[1, n]` and gives `logits` `[1, n or 1, vocabulary]`; an
    `attention_mask`, `position_ids` and a `cache_position` are made for it. Nobody else may call it meanwhile.

    inputs: what else it takes, in every call
    TreadleError: a model without states, that takes other inputs, or gives no logits.
    """

    def __init__(self, model: CompiledModel, inputs: Mapping[str, Array] | None = None):
        self._model, self._given = model, dict(inputs or {})
        self._tokens: list[int] = []
        self._ahead: list[int] = []
        """Draft tokens that the model has read behind them."""
        self._forms = {tensor.name: _Form.of(tensor, model) for tensor in model.inputs}
        known = {*MADE, *self._given}
        unknown = [name for name in self._forms if name not in known]
        if not model.states:
            raise TreadleError("the model keeps no states", "generate", 'treadle.compile(..., states="auto")')
        if TOKENS not in self._forms or unknown:
            message = f"the model takes {', '.join(unknown)}" if unknown else f"the model takes no {TOKENS}"
            accepted = f"{TOKENS}, {MASK} and {', '.join(POSITIONS)}, or `inputs` with the others"
            raise TreadleError(message, "generate", accepted)
        logits = [tensor for tensor in model.outputs if tensor.name == LOGITS] or list(model.outputs[:1])
        if not logits or len(logits[0].shape) != 3:
            raise TreadleError("the model gives no logits", "generate", "an output [1, n or 1, vocabulary]")
        self._logits, self.vocabulary = logits[0], logits[0].shape[-1]
        self.reset()

    @property
    def tokens(self) -> list[int]:
        """The tokens that the model has read."""
        return list(self._tokens)

    @property
    def room(self) -> int:
        """How many tokens the states can hold in all: one more than the longest past that a call may have."""
        limits = [dim.greatest for dim in self._model.symbols if dim.name in self._model.lengths]
        fixed = [self._model.manifest.inputs[s.argument].shape for s in self._model.manifest.states]
        return min(limits) + 1 if limits else max(shape[-2] for shape in fixed if len(shape) > 1)

    def reset(self) -> None:
        """Forgets everything."""
        self._model.reset()
        self._tokens, self._ahead = [], []

    def generate(
        self,
        tokens: Sequence[int],
        most: int = 256,
        stop: Collection[int] = (),
        sampling: Sampling | None = None,
        callback: Callable[[int], object] | None = None,
        lookup: int = 0,
    ) -> list[int]:
        """The tokens that follow, as `stream` gives them; `callback` is called with each."""
        found: list[int] = []
        for token in self.stream(tokens, most, stop, sampling, lookup):
            found.append(token)
            if callback is not None:
                callback(token)
        return found

    def stream(
        self,
        tokens: Sequence[int],
        most: int = 256,
        stop: Collection[int] = (),
        sampling: Sampling | None = None,
        lookup: int = 0,
    ) -> Iterator[int]:
        """The tokens that follow some, one by one: at most so many, and none behind one of `stop`, which is given.

        tokens: all of the text, of which what the model has read already is not read again; a text of more tokens than
            a call takes is read in parts
        lookup: draft tokens (`PromptLookup`) that a call reads along with the next one at most, 0 for none; those that
            are drawn, too, need no call of their own. What is drawn is the same but for the rounding of other kernels.

        TreadleError: no tokens, one out of the vocabulary, more than there is room for, draft tokens for a model that
        gives the logits of a call's last token alone. The states stay as they were.
        """
        sampler, text = Sampler(sampling or Sampling()), list(map(int, tokens))
        self._check(text, most)
        self._check_lookup(lookup)
        drafts, rows = PromptLookup(), [self.read(text)]
        for n in range(most):
            token = sampler.next(rows.pop(0), self._tokens)
            yield token
            if token in stop or n == most - 1 or len(self._tokens) >= self.room:
                return
            if self._ahead[:1] == [token]:
                self._tokens.append(self._ahead.pop(0))
                continue
            room = min(lookup, most - n - 2, self._chunk - 1, self.room - len(self._tokens) - 1)
            rows = list(self._rows([token], drafts.draft([*self._tokens, token], room) if room > 0 else []))

    def read(self, tokens: Sequence[int]) -> Array:
        """Has the model read a text, as far as it has not; the logits of what follows it."""
        text = list(map(int, tokens))
        self._check(text, 1)
        same = next((n for n, (a, b) in enumerate(zip(self._tokens, text, strict=False)) if a != b), None)
        common = min(len(self._tokens), len(text) - 1) if same is None else min(same, len(text) - 1)
        if common < len(self._tokens) or self._ahead:
            self._forget(common)
        rest = text[len(self._tokens) :]
        parts = [rest[n : n + self._chunk] for n in range(0, len(rest), self._chunk)]
        return [self._rows(part)[-1] for part in parts][-1]

    def _check(self, text: Sequence[int], most: int) -> None:
        if not text:
            raise TreadleError("there are no tokens", "generate", "at least one")
        wrong = next((token for token in text if not 0 <= token < self.vocabulary), None)
        if wrong is not None:
            raise TreadleError(f"token {wrong}", "generate", f"numbers from 0 to {self.vocabulary - 1}")
        if len(text) > self.room:
            raise TreadleError(f"a text of {len(text)} tokens", "generate", f"at most {self.room}: the states' room")
        if most < 1:
            raise TreadleError(f"{most} tokens are asked for", "generate", "at least one")

    def _check_lookup(self, lookup: int) -> None:
        if lookup < 0:
            raise TreadleError(f"lookup is {lookup}", "generate", "0 for none, or a number of tokens")
        if lookup and self._logits.shape[-2] == 1 != self._chunk:
            message = "the model gives the logits of a call's last token alone, so that draft tokens cannot be verified"
            raise TreadleError(message, "generate", "lookup=0")

    @property
    def _chunk(self) -> int:
        """Tokens of a call."""
        return self._forms[TOKENS].tensor.shape[-1]

    def _forget(self, count: int) -> None:
        """All but the first tokens."""
        if count and self._model.lengths:
            self._model.rewind(**dict.fromkeys(self._model.lengths, count))
            self._tokens = self._tokens[:count]
        elif self._model.lengths or not count:
            self.reset()
        else:
            self._tokens = self._tokens[:count]  # later positions are written again before they are read
        self._ahead = []

    def _rows(self, tokens: Sequence[int], ahead: Sequence[int] = ()) -> Array:
        """The logits behind each of some more tokens and the draft tokens behind them, or behind the last one alone."""
        if self._ahead:
            self._forget(len(self._tokens))
        text = [*tokens, *ahead]
        inputs = {
            name: self._given[name] if name in self._given else form.made(text, len(self._tokens))
            for name, form in self._forms.items()
        }
        outputs = self._model.run(inputs)
        self._tokens += tokens
        self._ahead = list(ahead)
        return outputs[self._logits.name][0]


@dataclass(frozen=True)
class _Form:
    """An input of the model, and the symbol that the number of a call's tokens is."""

    tensor: Tensor
    lengths: tuple[str, ...]
    symbols: tuple[str, ...]
    dtype: Any = field(repr=False)

    @classmethod
    def of(cls, tensor: Tensor, model: CompiledModel) -> _Form:
        symbols = tuple(dim.name for dim in model.symbols)
        return cls(tensor, tuple(model.lengths), symbols, np.dtype(tensor.dtype))

    def made(self, tokens: Sequence[int], past: int) -> Array:
        """What it is in a call with these tokens behind as many others."""
        if self.tensor.name == TOKENS:
            return np.array([tokens], self.dtype)
        if self.tensor.name == MASK:
            return np.ones((1, self._extent(len(tokens), past)), self.dtype)
        positions = np.arange(past, past + len(tokens), dtype=self.dtype)
        return positions.reshape((1, -1) if len(self.tensor.shape) == 2 else -1)

    def _extent(self, new: int, past: int) -> int:
        """That of the mask: all tokens, where it is no expression that says otherwise."""
        text = self.tensor.extents[-1] if self.tensor.extents else str(self.tensor.shape[-1])
        if text in self.symbols:
            return past + new
        values = {name: past if name in self.lengths else new for name in self.symbols}
        return ExtentExpression(text, list(values)).value(values)


def generate(
    model: CompiledModel,
    tokens: Sequence[int],
    most: int = 256,
    stop: Collection[int] = (),
    sampling: Sampling | None = None,
    callback: Callable[[int], object] | None = None,
    inputs: Mapping[str, Array] | None = None,
    lookup: int = 0,
) -> list[int]:
    """The tokens that follow some, by a decoder that was compiled with states, from an empty past on.

    ```python
    m = treadle.compile("model.onnx", shapes={"sequence_length": treadle.Dim("sequence_length", 1, 512),
                        "past_sequence_length": treadle.Dim("past_sequence_length", 0, 2048),
                        "total_sequence_length": "past_sequence_length + sequence_length"}, states="auto")
    treadle.generate(m, [1, 15043], most=64, stop={2}, sampling=treadle.Sampling(temperature=0.8, top_p=0.95))
    ```
    Arguments and errors are those of `Conversation` and its `stream`.
    """
    return Conversation(model, inputs).generate(tokens, most, stop, sampling, callback, lookup)


__all__ = ["Conversation", "Sampler", "Sampling", "generate"]
