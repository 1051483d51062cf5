"""The initial contents of local memory: a pattern that arithmetic propagates, put into the compiler's assembly text."""

from __future__ import annotations

import re

PATTERN = 0xFFFB
"""Each 16 bits of local memory: not a number as float16, bfloat16, float32 and float64, and no likely integer."""

# gcc fills local memory with bytes of 0xfe: as floats they are large numbers, which a product or a maximum hides. NaN
# propagates through both.
_WORD, _PAIR, _BYTES = -0x01010102, -0x0101010101010102, "\t.byte\t-2\n"
_MADE = {
    _WORD: (PATTERN << 16 | PATTERN) - (1 << 32),
    _PAIR: (PATTERN << 48 | PATTERN << 32 | PATTERN << 16 | PATTERN) - (1 << 64),
}
_NUMBER = re.compile(rf"(?<=[$\t ])({_PAIR}|{_WORD})\b")
_RUN = re.compile(rf"(?:{re.escape(_BYTES * 4)})+")
_IN_TEXT = re.compile(r"(?i)(fe){4}|16843010|4278124286|72340172838076674")


def with_unwritten_pattern(assembly: str, text: str) -> str:
    """The assembly with another pattern where the compiler wrote its own.

    A CUDA text that spells such a number itself is left alone, as is assembly that builds its constants in parts.
    """
    if _IN_TEXT.search(text):
        return assembly
    low, high = PATTERN & 0xFF, PATTERN >> 8
    halves = f"\t.byte\t{low}\n\t.byte\t{high}\n"
    with_numbers = _NUMBER.sub(lambda match: str(_MADE[int(match[1])]), assembly)
    return _RUN.sub(lambda match: halves * (len(match[0]) // len(_BYTES) // 2), with_numbers)
