"""Reads the text form of a task mapping, the inverse of `str(mapping)`.

    mapping ::= part ("*" part)*
    part    ::= name "(" int ("," (int | keyword "=" value))* ")"
    name    ::= "repeat" | "spatial" | "replicate" | "custom"

`order` (repeat, spatial) takes a tuple of dimensions; `workers`, `steps` (custom) an integer and `map`
(custom) a tuple of expressions over `w` and `s`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

from treadle.dialects.task.affine import STEP, WORKER, Affine, binding_of, combine
from treadle.dialects.task.mapping import Mapping, custom, repeat, replicate, spatial
from treadle.errors import TreadleError

_TOKEN = re.compile(r"\s*(?:(\d+|[A-Za-z_]+|[-+*(),=])|(\S))")
_DIGITS = 18
"""The most digits of an integer."""
_Value: TypeAlias = "Affine | tuple[Affine, ...]"
_KEYWORDS = {
    "repeat": {"order"},
    "spatial": {"order"},
    "replicate": set[str](),
    "custom": {"workers", "steps", "map"},
}


def parse_mapping(text: str) -> Mapping:
    """The mapping that `text` spells; TreadleError names the word that does not fit."""
    reader = _Reader(text)
    mapping = _part(reader)
    while reader.take("*"):
        mapping = mapping * _part(reader)
    if reader.word:
        raise reader.error("'*' or the end")
    return mapping


@dataclass
class _Reader:
    """Words of a text, one at a time; `word` is empty at the end."""

    text: str
    at: int = 0
    word: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.advance()

    def advance(self) -> str:
        """Moves to the next word and returns the one left behind."""
        last = self.word
        match = _TOKEN.match(self.text, self.at)
        self.word = ""
        if match is not None:
            self.at = match.end()
            self.word = match[1] or match[2]
        return last

    def take(self, word: str) -> bool:
        if self.word != word:
            return False
        self.advance()
        return True

    def expect(self, word: str) -> None:
        if not self.take(word):
            raise self.error(f"'{word}'")

    def error(self, accepted: str) -> TreadleError:
        found = f"'{self.word}'" if self.word else "the end"
        return TreadleError(f"task mapping '{self.text.strip()}' has {found}", accepted=accepted)


def _part(reader: _Reader) -> Mapping:
    name = reader.word
    if name not in _KEYWORDS:
        raise reader.error(", ".join(_KEYWORDS))
    reader.advance()
    reader.expect("(")
    sizes: list[int] = []
    keywords: dict[str, _Value] = {}
    while True:
        if reader.word in _KEYWORDS[name]:
            keyword = reader.advance()
            reader.expect("=")
            keywords[keyword] = _value(reader)
        else:
            sizes.append(_integer(reader))
        if not reader.take(","):
            break
    reader.expect(")")
    return _make(reader, name, sizes, keywords)


def _make(reader: _Reader, name: str, sizes: list[int], keywords: dict[str, _Value]) -> Mapping:
    if name in ("repeat", "spatial"):
        make = repeat if name == "repeat" else spatial
        return make(*sizes, order=_integers(reader, keywords["order"]) if "order" in keywords else None)
    if name == "replicate":
        if len(sizes) != 1:
            raise TreadleError(f"replicate with {len(sizes)} sizes", accepted="one number of workers")
        return replicate(sizes[0])
    missing = {"workers", "map"} - keywords.keys()
    if missing:
        raise TreadleError(
            f"custom mapping without {' and '.join(sorted(missing))}", accepted="workers = N, map = (...)"
        )
    coordinates = keywords["map"]
    return custom(
        sizes,
        _integers(reader, keywords["workers"])[0],
        coordinates if isinstance(coordinates, tuple) else (coordinates,),
        steps=_integers(reader, keywords.get("steps", Affine(1)))[0],
    )


def _integer(reader: _Reader) -> int:
    if not (reader.word.isascii() and reader.word.isdigit() and len(reader.word) <= _DIGITS):
        raise reader.error(f"an integer of at most {_DIGITS} digits")
    return int(reader.advance())


def _integers(reader: _Reader, value: _Value) -> tuple[int, ...]:
    items = value if isinstance(value, tuple) else (value,)
    numbers = tuple(i.value for i in items if i.left is None and isinstance(i.value, int))
    if len(numbers) != len(items):
        raise TreadleError(
            f"task mapping '{reader.text.strip()}' has an expression for an integer", accepted="integers"
        )
    return numbers


def _value(reader: _Reader) -> _Value:
    """An expression, or a parenthesised list of them (one in parentheses is a list of one)."""
    if not reader.take("("):
        return _expression(reader, 1)
    items = [_expression(reader, 1)]
    while reader.take(","):
        items.append(_expression(reader, 1))
    reader.expect(")")
    return tuple(items)


def _expression(reader: _Reader, binding: int) -> Affine:
    left = _leaf(reader)
    while (own := binding_of(reader.word)) >= binding:
        spelling = reader.advance()
        left = combine(spelling, left, _expression(reader, own + 1))
    return left


def _leaf(reader: _Reader) -> Affine:
    if reader.take("("):
        inner = _expression(reader, 1)
        reader.expect(")")
        return inner
    if reader.take("w"):
        return WORKER
    if reader.take("s"):
        return STEP
    if reader.take("-"):
        return Affine(0) - _leaf(reader)
    return Affine(_integer(reader))
