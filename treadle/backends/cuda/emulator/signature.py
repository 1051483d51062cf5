"""What the emulator reads in a CUDA text before compiling it: kernels, parameter names, dynamic shared memory."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.S)
_KERNEL = re.compile(r"__global__\s+(?:__launch_bounds__\s*\((?P<before>[^()]*)\)\s*)?void\s+"
                     r"(?:__launch_bounds__\s*\((?P<after>[^()]*)\)\s*)?(?P<name>[A-Za-z_]\w*)\s*\(")  # fmt: skip
_TEMPLATE = re.compile(r"template\s*<[^;{}]*>\s*(?:static\s+|inline\s+)*$")
_DYNAMIC = re.compile(r"\bextern\b[^;{}()\[\]]*?(?:\([^)]*\))*[^;{}\[\]]*?\b(?P<name>[A-Za-z_]\w*)\s*\[\s*\]\s*;")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\[[^\]]*\]\s*)*$")


@dataclass(frozen=True)
class Signature:
    """A `__global__` function of a text."""

    name: str
    parameters: tuple[str, ...]
    """Their names, in order; a parameter without one is called by its position."""
    max_threads: int | None
    """What `__launch_bounds__` allows, where it is a number."""


def kernels(text: str) -> dict[str, Signature]:
    """The kernels of a text by name, without templates."""
    plain = without_comments(text)
    found: dict[str, Signature] = {}
    for match in _KERNEL.finditer(plain):
        if _TEMPLATE.search(plain[: match.start()].rstrip() + " "):
            continue
        pieces = _split(plain, match.end())
        names = tuple(_parameter_name(piece, index) for index, piece in enumerate(pieces))
        bound = (match["before"] or match["after"] or "").split(",")[0].strip()
        found[match["name"]] = Signature(match["name"], names, int(bound) if bound.isdigit() else None)
    return found


def dynamic_arrays(text: str) -> tuple[str, ...]:
    """The names under which a text declares its dynamic shared memory, in order, each once."""
    matches = (match for match in _DYNAMIC.finditer(without_comments(text)) if "__shared__" in match[0])
    return tuple(dict.fromkeys(match["name"] for match in matches))


def without_comments(text: str) -> str:
    """The text with comments and strings blanked; lines keep their numbers."""
    return _COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _split(text: str, start: int) -> list[str]:
    """The comma-separated pieces from `start` up to the parenthesis that closes them."""
    pieces, depth, begin = [""], 0, start
    for position in range(begin, len(text)):
        character = text[position]
        if character == ")" and depth == 0:
            break
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    stripped = [piece.strip() for piece in pieces]
    return [] if stripped in ([""], ["void"]) else stripped


def _parameter_name(piece: str, index: int) -> str:
    match = _NAME.search(piece.split("=")[0].strip())
    return match[1] if match else f"argument {index}"
