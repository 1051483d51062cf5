"""Names, comments and numbers of the generated text."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.backends.c_like.language import float_literal, int_literal
from treadle.backends.c_like.names import Names, comment_text
from treadle.passes.lower.identifiers import RESERVED, identifier


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_literals_read_back_exactly(value: float) -> None:
    text = float_literal(value, 32, "INF", "NAN").removesuffix("f")
    back = np.float32(float.fromhex(text) if "0x" in text else float(text))
    assert back == np.float32(value)
    assert math.copysign(1, back) == math.copysign(1, value)
    assert "0x" in text or "." in text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_double_literals_read_back_exactly(value: float) -> None:
    text = float_literal(value, 64, "INF", "NAN")
    assert (float.fromhex(text) if "0x" in text else float(text)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.0f"), (0.1, "0.1f"), (-0.0, "-0.0f"), (2**-20, "0x1p-20f"), (math.inf, "INF"), (-math.inf, "-INF"),
     (math.nan, "NAN"), (1e39, "INF")],
)  # fmt: skip
def test_float_literals(value: float, text: str) -> None:
    assert float_literal(value, 32, "INF", "NAN") == text


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [(5, 64, "5"), (1 << 31, 64, "2147483648L"), (-(1 << 31), 32, "(-2147483647 - 1)"),
     (-(1 << 63), 64, "(-9223372036854775807L - 1)")],
)  # fmt: skip
def test_int_literals(value: int, width: int, text: str) -> None:
    assert int_literal(value, width) == text


@given(st.text())
def test_any_text_becomes_an_identifier(hint: str) -> None:
    name = identifier(hint)
    assert name.isascii()
    assert name.isidentifier()
    assert name not in RESERVED
    assert not name.startswith(("_", "treadle_", "TREADLE_"))
    assert identifier(name) == name


@given(st.text())
def test_no_text_ends_its_comment(text: str) -> None:
    line = comment_text(text)
    assert "*/" not in line
    assert "/*" not in line
    assert all(" " <= c <= "~" for c in line)


def test_names_differ_within_open_scopes() -> None:
    names = Names()
    assert [names.claim("i"), names.claim("i"), names.claim("int"), names.claim(None)] == ["i", "i_1", "int_", "x"]
    names.open()
    assert names.claim("i_7") == "i_2"
    names.close()
    assert names.claim("i") == "i_2"
