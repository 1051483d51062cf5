"""The table of fingerprints; and, slow, that what is printed is what is recorded."""

import pytest

from tests.fingerprint.__main__ import Cell, differences, main, read_record, table
from tests.fingerprint.cases import TARGETS

FOUND: dict[Cell, str] = {
    ("minilm f16", "avx512"): "aa/bb/cc",
    ("minilm f16", "sm_90"): "dd/ee/ff",
    ("test_add", "neon"): "00/11/22",
}


def test_the_record_reads_back() -> None:
    assert read_record(table(FOUND)) == FOUND


def test_the_texts_that_differ_are_named() -> None:
    now: dict[Cell, str] = {("minilm f16", "sm_90"): "dd/e0/f0", ("test_add", "sse2"): "33/44/55"}
    assert list(differences(now, FOUND)) == ["minilm f16, sm_90: kernels, host", "test_add, sse2: not recorded"]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_printed_is_what_is_recorded(target: str) -> None:
    assert main(["--target", target]) == 0
