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


def group_label(words: Sequence[str], taken: Iterable[str] = ()) -> str:
    """A C identifier like `matmul_add_relu`, not in `taken`, of at most 60 characters.

    Repeated words and words for pure data movement are left out, the latter where others remain.
    """
    unique = list(dict.fromkeys(words))
    kept = [w for w in unique if w not in _MOVERS] or unique or ["copy"]
    text = re.sub(r"[^A-Za-z0-9_]", "_", "_".join(kept))
    text = f"k{text}" if text[0].isdigit() or text[0] == "_" else text
    base = _shortened(f"{text}_kernel" if text in _TAKEN else text, LIMIT)
    label, number, known = base, 1, set(taken)
    while label in known:
        number += 1
        label = f"{_shortened(base, LIMIT - len(str(number)) - 1)}_{number}"
    return label


def _shortened(text: str, limit: int) -> str:
    """At most `limit` characters, cut between words where one ends in the second half."""
    if len(text) <= limit:
        return text
    cut = text.rfind("_", limit // 2, limit + 1)
    return text[: cut if cut > 0 else limit].rstrip("_")
