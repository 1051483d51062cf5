"""Typed reading of a JSON object: a value of another type or range than expected is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from treadle.errors import TreadleError

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True)
class Fields:
    """A JSON object of the file `where`; `path` is its path in the file, such as `inputs[2]`.

    Every method takes a key and raises TreadleError for one that is missing or has a value of another kind.
    `unchanged` is what messages say is accepted where nothing more specific helps.
    """

    content: object
    path: str
    where: object
    unchanged: str

    def text(self, key: str) -> str:
        """A string."""
        return self._text(key, self._value(key))

    def choice(self, key: str, choices: Sequence[Choice]) -> Choice:
        """One of some strings."""
        return self._choice(key, self._value(key), choices)

    def natural(self, key: str, limit: int) -> int:
        """A whole number from 0 to `limit`."""
        return self._natural(key, self._value(key), limit)

    def truth(self, key: str) -> bool:
        """True or false."""
        value = self._value(key)
        if not isinstance(value, bool):
            raise self._mistyped(key, value, "true or false")
        return value

    def naturals(self, key: str, limit: int) -> tuple[int, ...]:
        """A list of such numbers."""
        return tuple(self._natural(key, each, limit) for each in self._list(key, self._value(key)))

    def texts(self, key: str) -> dict[str, str]:
        """An object of strings."""
        value = self._value(key)
        if not isinstance(value, dict):
            raise self._mistyped(key, value, "an object")
        entries = cast("dict[str, object]", value)
        return {name: self._text(f"{key}.{name[:80]}", each) for name, each in entries.items()}

    def strings(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._text(f"{key}[{n}]", each) for n, each in enumerate(self._entries(key)))

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        entries = self._list(key, self._value(key))
        return [Fields(each, f"{self._path(key)}[{n}]", self.where, self.unchanged) for n, each in enumerate(entries)]

    def pairs(self, key: str, choices: Sequence[Choice], limit: int) -> tuple[tuple[Choice, int], ...]:
        """A list of pairs: one of some strings, and a whole number from 0 to `limit`."""
        return tuple(self._pair(f"{key}[{n}]", each, choices, limit) for n, each in enumerate(self._entries(key)))

    def error(self, key: str, problem: str, accepted: str) -> TreadleError:
        """An error about a value, such as `inputs[2].shape is [-1]`."""
        return TreadleError(f"the manifest is damaged: {self._path(key)} {problem}", self.where, accepted)

    def _pair(self, key: str, value: object, choices: Sequence[Choice], limit: int) -> tuple[Choice, int]:
        entries = self._list(key, value)
        if len(entries) != 2:
            raise self.error(key, f"has {len(entries)} entries", "2")
        return self._choice(key, entries[0], choices), self._natural(key, entries[1], limit)

    def _entries(self, key: str) -> list[object]:
        return self._list(key, self._value(key))

    def _value(self, key: str) -> object:
        if not isinstance(self.content, dict):
            raise TreadleError(
                f"the manifest is damaged: {self.path or 'its text'} is no object", self.where, self.unchanged
            )
        entries = cast("dict[str, object]", self.content)
        if key not in entries:
            raise self.error(key, "is missing", self.unchanged)
        return entries[key]

    def _list(self, key: str, value: object) -> list[object]:
        if not isinstance(value, list):
            raise self._mistyped(key, value, "a list")
        return cast("list[object]", value)

    def _text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self._mistyped(key, value, "a string")
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(key, "is no Unicode text: it has a lone surrogate", "a string")
        return value

    def _choice(self, key: str, value: object, choices: Sequence[Choice]) -> Choice:
        for choice in choices:
            if value == choice:
                return choice
        raise self._mistyped(key, value, ", ".join(choices))

    def _natural(self, key: str, value: object, limit: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
            raise self._mistyped(key, value, f"a whole number from 0 to {limit}")
        return value

    def _mistyped(self, key: str, value: object, accepted: str) -> TreadleError:
        shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
        return self.error(key, f"is {shown[:80]}", accepted)

    def _path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key


__all__ = ["Fields"]
