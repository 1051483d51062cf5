"""Names and comments: nothing from a model reaches the generated text unescaped."""

from __future__ import annotations

import re

from treadle.passes.lower.identifiers import identifier


def comment_text(text: str) -> str:
    """`text` for the inside of `/* */`: one line of printable ASCII that cannot close or open a comment."""
    line = "".join(c if " " <= c <= "~" and c != "\\" else " " for c in text)
    return re.sub(r"\*(?=/)|/(?=\*)", lambda match: f"{match[0]} ", " ".join(line.split()))


class Names:
    """Gives names that differ from all names in the open scopes."""

    def __init__(self) -> None:
        self._scopes: list[set[str]] = [set()]

    def open(self) -> None:
        """Begins a scope inside the current one."""
        self._scopes.append(set())

    def close(self) -> None:
        """Ends the innermost scope: its names may be given again."""
        self._scopes.pop()

    def claim(self, hint: str | None, fallback: str = "x") -> str:
        """A name like `hint` (or `fallback`), taken until the innermost scope ends."""
        # The parser numbers what the text wrote twice; scopes make the numbers needless again.
        return self.claim_exact(re.sub(r"_\d+$", "", hint) if hint else fallback, fallback)

    def claim_exact(self, hint: str, fallback: str = "x") -> str:
        """As `claim`, but keeps a number at the hint's end."""
        base = identifier(hint, fallback)
        name, count = base, 0
        while any(name in scope for scope in self._scopes):
            count += 1
            name = f"{base}_{count}"
        self._scopes[-1].add(name)
        return name
