"""Names for kernels, from the operators that they compute."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

LIMIT = 60
"""Characters of a label."""

_MOVERS = frozenset(("reshape", "transpose", "broadcast", "slice", "pad_constant", "concat", "gather"))
_TAKEN = frozenset((
    "abs", "and", "auto", "bool", "break", "case", "ceil", "char", "const", "continue", "cos", "default",
    "div", "do", "double", "else", "erf", "exp", "extern", "float", "floor", "for", "goto", "if", "inline",
    "int", "isinf", "isnan", "log", "long", "main", "max", "min", "not", "or", "pow", "register", "return",
    "round", "short", "sin", "sign", "signed", "sizeof", "sqrt", "static", "struct", "switch", "tan", "tanh",
    "union", "unsigned", "void", "volatile", "while", "xor",
))  # fmt: skip
"""Single words that C, C++ or their libraries use."""


class GroupLabels:
    """Gives each label once.

    taken: labels that exist already
    """

    def __init__(self, taken: Iterable[str] = ()):
        self._known = set(taken)
        self._numbers: dict[str, int] = {}
        """The last number that was tried as a suffix of each label."""

    def label(self, words: Sequence[str]) -> str:
        """A C identifier like `matmul_add_relu`, not given before, of at most 60 characters.

        Repeated words and words for pure data movement are left out, the latter where others remain.
        """
        unique = list(dict.fromkeys(words))
        kept = [w for w in unique if w not in _MOVERS] or unique or ["copy"]
        text = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(kept))
        text = f"k{text}" if text[0].isdigit() or text[0] == "_" else text
        base = _shortened(f"{text}_kernel" if text in _TAKEN else text, LIMIT)
        label, number = base, self._numbers.get(base, 1)
        while label in self._known:
            number += 1
            label = f"{_shortened(base, LIMIT - len(str(number)) - 1)}_{number}"
        self._known.add(label)
        self._numbers[base] = max(number - 1, 1)
        return label


def group_label(words: Sequence[str], taken: Iterable[str] = ()) -> str:
    """One label; see `GroupLabels`."""
    return GroupLabels(taken).label(words)


def _shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut between words where one ends in the second half."""
    if len(text) <= limit:
        return text
    cut = text.rfind("_", limit // 2, limit + 1)
    return text[: cut if cut > 0 else limit].rstrip("_")
