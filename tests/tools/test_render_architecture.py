"""The documentation is what the code says now; and how excerpts are made."""

from __future__ import annotations

import pytest

from docs.build.architecture import DOCUMENTS, EXCERPTS, ROOT, render
from docs.build.excerpts import block, cut_digests, enclosing, indices_in_place, shortened
from tests.helpers.bless import assert_golden
from treadle.errors import TreadleError


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_up_to_date(name: str) -> None:
    path = ROOT / name
    assert_golden(render(path.read_text(), name), path)


def test_a_part_is_made_anew_and_the_prose_stays() -> None:
    document = "a\n\n<!-- generated: c host -->\nold\n<!-- end -->\n\nb\n"
    rendered = render(document)
    assert rendered.startswith("a\n\n<!-- generated: c host -->\n```c\n") and rendered.endswith("<!-- end -->\n\nb\n")
    assert "old" not in rendered and "treadle_run" in rendered
    assert render(rendered) == rendered


def test_what_cannot_be_made_is_named() -> None:
    with pytest.raises(TreadleError, match=r"page: unknown part 'cpu fusion'; accepted: stages, passes, "):
        render("<!-- generated: cpu fusion -->\n<!-- end -->\n", "page")
    with pytest.raises(TreadleError, match=r"page: a generated part has no end; accepted: <!-- end -->"):
        render("<!-- generated: stages -->\n", "page")


def test_every_excerpt_shows_something() -> None:
    for name, make in EXCERPTS.items():
        assert len(make().splitlines()) >= 3, name


def test_index_constants_stand_where_they_are_used() -> None:
    text = """\
func.func @f() {
  %c = arith.constant 8 : index
  scf.for %i = %c to %n {
    %0 = arith.constant 1 : index
    use %0, %c, %c1
  }
  use %0
}"""
    assert indices_in_place(text) == "func.func @f() {\n  scf.for %i = 8 to %n {\n    use 1, 8, %c1\n  }\n  use %0\n}"


def test_a_name_that_is_defined_again_means_the_new_value() -> None:
    text = "%0 = arith.constant 1 : index\nuse %0\n%0 = arith.constant 2 : index\nuse %0"
    assert indices_in_place(text) == "use 1\nuse 2"


def test_digests_and_values_are_cut() -> None:
    assert cut_digests('#graph.blob<"sha256:0123456789ab", 8>') == '#graph.blob<"sha256:012345...", 8>'
    assert cut_digests('#graph.inline<"0.0, 1.0">') == '#graph.inline<"0.0, 1.0">'
    assert cut_digests(f'#graph.inline<"{"1.0, " * 9}">') == '#graph.inline<"1.0, 1.0, 1.0, 1.0, 1.0,...">'


def test_a_block_ends_at_its_own_brace() -> None:
    text = "a {\n  b {\n    c\n  } {attribute}\n  d\n}\n"
    assert block(text, "b {") == "b {\n  c\n} {attribute}"
    with pytest.raises(TreadleError, match="no line contains 'z'; accepted: a part of the text"):
        block(text, "z")
    with pytest.raises(TreadleError, match="nothing closes 'c'; accepted: a line that opens a block"):
        block("c\n", "c")


def test_blocks_around_a_line() -> None:
    text = "a {\n  b {\n    if {\n    }\n    c\n  }\n}\n"
    assert enclosing(text, "c", 1) == "b {\n  if {\n  }\n  c\n}"
    assert enclosing(text, "c", 2) == text.rstrip()
    with pytest.raises(TreadleError, match="fewer than 3 levels around 'c'"):
        enclosing(text, "c", 3)


def test_the_middle_is_left_out() -> None:
    assert shortened("a\n  b\n  c\n  d\ne\n", 1, 1) == "a\n  ...\ne"
    assert shortened("a\nb\nc\n", 1, 1) == "a\nb\nc"
