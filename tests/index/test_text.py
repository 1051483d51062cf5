"""Index expressions as text; that it reads back is tested with `#graph.required`."""

from __future__ import annotations

from treadle.index.emitter import expression_text
from treadle.index.expr import const, var


def test_what_text_looks_like():
    d0, d1, d2 = (var(name, 0, None) for name in ("d0", "d1", "d2"))
    assert expression_text(d1 // 8 * 3 - d0 * 2 + d2 * (d0 % 4) - 5) == "d0 mod 4 * d2 + d1 floordiv 8 * 3 - d0 * 2 - 5"
    assert expression_text(-d0 - d1 + 2) == "0 - d0 - d1 + 2"
    assert expression_text(const(-2)) == "-2"
