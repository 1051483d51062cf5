"""Random changes of bytes, protobuf messages, JSON and IR text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from random import Random
from typing import Any

from google.protobuf.message import Message
from onnx import AttributeProto, NodeProto, TensorProto, ValueInfoProto

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    28,
    64,
    65,
    1000,
    2**15,
    2**31 - 1,
    2**31,
    -(2**31),
    2**33,
    2**40,
    2**62,
    2**63 - 1,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "x",
    "x0",
    "t0_0",
    "c0",
    "a" * 5000,
    "é",
    "\0",
    "../x",
    "/dev/zero",
    "*/",
    '"',
    "\\",
    "\n",
    "ai.onnx",
    "-1",
    "nearest",
)


def mutated_bytes(random: Random, data: bytes) -> bytes:
    """A few bytes changed, dropped or put in, or a part repeated."""
    result = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        start = random.randrange(len(result) + 1)
        end = min(start + random.choice((1, 1, 4, 30)), len(result))
        match random.randrange(4):
            case 0:
                result[start:end] = random.randbytes(end - start)
            case 1:
                del result[start:end]
            case 2:
                result[start:start] = random.randbytes(random.choice((1, 8)))
            case _:
                result[start:start] = result[start:end]
    return bytes(result[: random.randrange(len(result) + 1)] if random.random() < 0.1 else result)


def mutate_message(random: Random, message: Message) -> None:
    """Changes one field, somewhere in the message."""
    found = list(_messages(message))
    for _ in range(20):
        owner = random.choice(found)
        fields = [f for f in owner.DESCRIPTOR.fields if random.random() < 0.1 or _has(owner, f)]
        if fields and _mutate_field(random, owner, random.choice(fields), found):
            return


def _messages(message: Message) -> list[Message]:
    found = [message]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                found += _messages(inner)
    return found


def _has(owner: Message, field: Any) -> bool:
    return bool(getattr(owner, field.name)) if field.is_repeated else owner.HasField(field.name)


def _mutate_field(random: Random, owner: Message, field: Any, others: Sequence[Message]) -> bool:
    if field.is_repeated:
        return _mutate_list(random, getattr(owner, field.name), field, others)
    if field.type == field.TYPE_MESSAGE or random.random() < 0.15:
        owner.ClearField(field.name)
        return True
    value = _scalar(random, field, others)
    if value is not None:
        setattr(owner, field.name, value)
    return value is not None


def _mutate_list(random: Random, values: Any, field: Any, others: Sequence[Message]) -> bool:
    position = random.randrange(len(values)) if values else 0
    action = random.randrange(4)
    if action == 0 and values:
        del values[position]
    elif action == 1 and values:
        other = random.randrange(len(values))
        copies = list(values) if field.type != field.TYPE_MESSAGE else [_copy(v) for v in values]
        copies[position], copies[other] = copies[other], copies[position]
        del values[:]
        values.extend(copies)
    elif action == 2 and values:
        values.extend([_copy(values[position]) if field.type == field.TYPE_MESSAGE else values[position]])
    elif field.type != field.TYPE_MESSAGE:
        value = _scalar(random, field, others)
        if value is None:
            return False
        if values and random.random() < 0.7:
            values[position] = value
        else:
            values.extend([value] * random.choice((1, 1, 70)))
    return True


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _scalar(random: Random, field: Any, others: Sequence[Message]) -> Any:
    """A value of a field's type; None if none fits."""
    if field.type == field.TYPE_STRING:
        return random.choice((random.choice(TEXTS), random.choice(_texts(others))))
    if field.type == field.TYPE_BYTES:
        return random.choice((b"", b"\xff", b"a" * 5000, random.randbytes(8), b"linear"))
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return random.choice(FLOATS)
    if field.type == field.TYPE_ENUM:
        return random.choice(list(field.enum_type.values_by_number))
    if field.type in (field.TYPE_INT32, field.TYPE_UINT64):
        return random.choice([v for v in INTEGERS if 0 <= v < 2**31])
    return random.choice(INTEGERS) if field.type == field.TYPE_INT64 else None


def _texts(messages: Sequence[Message]) -> list[str]:
    """Names and operators that the model has."""
    texts: list[str] = [""]
    for message in messages:
        if isinstance(message, NodeProto):
            texts += [message.op_type, *message.input, *message.output]
        elif isinstance(message, (AttributeProto, TensorProto, ValueInfoProto)):
            texts.append(message.name)
    return [text for text in texts if _is_text(text)]


def _is_text(value: object) -> bool:
    """Protobuf hands over bytes where a text is no UTF-8."""
    return isinstance(value, str)


def mutated_json(random: Random, value: Any) -> Any:
    """A JSON value with one value, somewhere inside, replaced, dropped or repeated."""
    places = list(_places(value))
    owner, key = random.choice(places)
    action = random.randrange(4)
    if action == 0:
        del owner[key]
    elif action == 1 and isinstance(owner, list):
        owner.append(deepcopy(owner[key]))
    elif action == 2:
        other, place = random.choice(places)
        owner[key] = deepcopy(other[place])
    else:
        deep: Any = [0]
        for _ in range(50):
            deep = [deep]
        owner[key] = random.choice((*INTEGERS, *FLOATS, *TEXTS, None, True, [], {}, deep, 10**400))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    found = [(value, key) for key in keys]
    for key in keys:
        found += _places(value[key])
    return found


_TOKEN = re.compile(r'"[^"\n]*"|[%@#!^]?[\w.$-]+|->|::|\s+|.')


def mutated_text(random: Random, text: str) -> str:
    """IR text with a few tokens changed, dropped, repeated, swapped, or replaced by others of the same text."""
    tokens = _TOKEN.findall(text)
    words = [n for n, token in enumerate(tokens) if not token.isspace()]
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        a, b = random.choice(words), random.choice(words)
        match random.randrange(5):
            case 0:
                tokens[a] = ""
            case 1:
                tokens[a] = f"{tokens[a]} {tokens[a]}"
            case 2:
                tokens[a], tokens[b] = tokens[b], tokens[a]
            case 3:
                tokens[a] = tokens[b]
            case _:
                tokens[a] = _other(random, tokens[a])
    return "".join(tokens)


def _other(random: Random, token: str) -> str:
    """Another token of the same kind."""
    if re.fullmatch(r"-?\d+", token):
        return str(random.choice(INTEGERS))
    sizes = re.fullmatch(r"(\d+x)+(\w+)", token)
    if sizes:
        extents = [
            random.choice(("0", "1", "2", "3", "64", "1048576", "?", "-1", "9223372036854775808"))
        ] * random.randint(0, 5)
        return "x".join([*extents, random.choice((sizes[2], "f16", "f64", "i8", "i1", "index", "bf16", "i7"))])
    if re.fullmatch(r"[fi]\d+|bf16|index", token):
        return random.choice(("f16", "f32", "f64", "bf16", "i1", "i8", "i64", "index", "i7", "tensor<2xf32>", "none"))
    if token.startswith('"'):
        return random.choice(('""', '"add"', '"cpu"', '"\\00"', '"mul"', '"max"'))
    return random.choice(
        ("", "0", "true", "{}", "[]", "dense<1>", "f32", "%0", "@main", "()", "<>", "0x7FC00000", "1e999")
    )


__all__ = ["mutate_message", "mutated_bytes", "mutated_json", "mutated_text"]
