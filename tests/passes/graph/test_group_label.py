"""Names of kernels."""

from __future__ import annotations

import pytest

from treadle.passes.graph.graph_fuse import LIMIT, group_label


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["matmul", "add", "relu"], "matmul_add_relu"),
        (["reshape", "matmul", "transpose"], "matmul"),
        (["reshape", "transpose"], "reshape_transpose"),
        (["exp"], "exp_kernel"),
        (["add", "add"], "add"),
        ([], "copy"),
        (["7up", "a-b"], "k7up_a_b"),
    ],
)
def test_labels(words: list[str], label: str):
    assert group_label(words) == label


def test_taken_labels_are_numbered():
    assert group_label(["matmul"], ["matmul", "matmul_2"]) == "matmul_3"


def test_long_labels_are_cut_between_words():
    words = [f"operator{n}" for n in range(20)]
    first = group_label(words)
    second = group_label(words, [first])
    assert len(first) <= LIMIT and len(second) <= LIMIT and second.endswith("_2") and second.isidentifier()
