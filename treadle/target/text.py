"""The text of a target, `NAME{field=value ...}`, as a name and values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from treadle.errors import TreadleError

_TEXT = re.compile(r"\s*(?P<name>[^{}\s]+)\s*(?:\{(?P<fields>[^{}]*)\})?\s*")
_FIELD = re.compile(r"\s*(?P<name>\w+)=(?:'(?P<string>[^']*)'|(?P<word>[^\s']+))(?=\s|$)")
_FORM = "NAME, or NAME{field=value ...} such as sm_80{multiprocessors=56 device='half an A100'}"


def read_text(text: str, types: Mapping[str, object]) -> tuple[str, dict[str, str | int | float]]:
    """The name, and the fields that are given, as values of their `types`: "int", "float", or text for any other.

    TreadleError for anything else.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise TreadleError(f"cannot read the target {text!r}", where="target", accepted=_FORM)
    return found["name"], _read_fields(found["fields"] or "", types)


def write_text(name: str, values: Mapping[str, object], types: Mapping[str, object]) -> str:
    """The text of a name and of those values that have a type."""
    parts = [f"{key}={_value_text(key, value, types[key])}" for key, value in values.items() if key in types]
    return f"{name}{{{' '.join(parts)}}}" if parts else name


def _value_text(name: str, value: object, type: object) -> str:
    if type == "float":
        return str(float(cast("float", value)))
    return f"'{value}'" if name == "device" else str(value)


def _read_fields(text: str, types: Mapping[str, object]) -> dict[str, str | int | float]:
    """`a=1 b='two'` as values."""
    values: dict[str, str | int | float] = {}
    position = 0
    while text[position:].strip():
        found = _FIELD.match(text, position)
        if found is None:
            raise TreadleError(f"cannot read {text[position:].strip()!r}", "target", _FORM)
        name, position = found["name"], found.end()
        if name not in types:
            raise TreadleError(f"there is no field '{name}'", "target", types)
        if name in values:
            raise TreadleError(f"field '{name}' is given twice", "target", "each field once")
        quoted, word = found["string"], found["word"]
        values[name] = quoted if quoted is not None else _read_value(name, word, types[name])
    return values


def _read_value(name: str, word: str, type: object) -> str | int | float:
    if type not in ("int", "float"):
        return word
    try:
        return int(word) if type == "int" else float(word)
    except ValueError:
        what = "a whole number" if type == "int" else "a number"
        raise TreadleError(f"{name} is {word!r}", "target", what) from None
