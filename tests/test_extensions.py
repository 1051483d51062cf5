"""What a program adds to Treadle belongs to the keys of caches: another text of it is another model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import pytest

import treadle
from tests.helpers.onnx_models import single_node_model
from treadle.artifact.cache import kernel_fingerprint
from treadle.schedules.templates import TEMPLATES
from treadle.support import extensions
from treadle.support.extensions import extensions_digest

NAME = "a_template_of_somebody"
TEXT = """
from {helper} import RUN
from treadle.schedules.templates.generic_cpu import GenericCpu

class Mine(GenericCpu):
    def default(self, anchor, target):
        return {{"run": RUN, "rows": 1}}
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder from which modules are imported, none of which is left."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(extensions, "_added", {})
    yield folder
    for name in [name for name in sys.modules if name.startswith(NAME)]:
        del sys.modules[name]


def imported(folder: Path, run: int) -> ModuleType:
    """The template's module, anew, with another number in the module that it imports."""
    (folder / f"{NAME}_numbers.py").write_text(f"RUN = {run}\n")
    (folder / f"{NAME}.py").write_text(TEXT.format(helper=f"{NAME}_numbers"))
    for name in (NAME, f"{NAME}_numbers"):
        sys.modules.pop(name, None)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode  # two texts of one second have one bytecode
    try:
        importlib.invalidate_caches()
        return importlib.import_module(NAME)
    finally:
        sys.dont_write_bytecode = before


def kernels(model: Path) -> str:
    """The text of the kernels that a model is compiled to, or that the cache has."""
    with treadle.compile(model) as compiled:
        return "\n".join(path.read_text() for path in sorted(compiled.folder.rglob("*.c")))


def test_a_changed_template_is_not_taken_from_the_cache(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found = single_node_model(tmp_path / "m.onnx", "Relu"), {}
    for run in (4, 2, 4):
        monkeypatch.setitem(TEMPLATES, "generic_cpu", imported(written, run).Mine())
        found.setdefault(run, set()).add(kernels(model))
    assert [len(texts) for texts in found.values()] == [1, 1]
    assert found[2] != found[4]


def test_only_what_is_registered_counts(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = extensions_digest(), kernel_fingerprint()
    mine = imported(written, 4).Mine()
    assert (extensions_digest(), kernel_fingerprint()) == before == ("", kernel_fingerprint())
    with monkeypatch.context() as registered:
        registered.setitem(TEMPLATES, "mine", mine)
        added = extensions_digest()
        assert kernel_fingerprint() != before[1]
        mine.size = 8
        assert extensions_digest() not in ("", added)
    assert extensions_digest() == ""
    own = dict(TEMPLATES)
    try:
        del TEMPLATES["winograd_cpu"]
        assert extensions_digest() != ""
    finally:
        TEMPLATES.clear()
        TEMPLATES.update(own)
    assert extensions_digest() == ""


def test_what_is_edited_after_it_was_imported_is_not_what_runs(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEMPLATES, "mine", imported(written, 4).Mine())
    before = extensions_digest()
    (written / f"{NAME}.py").write_text("# something else\n")
    assert extensions_digest() == before


def test_code_without_a_file_is_known_to_its_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    digests: set[str] = set()
    for _ in range(2):
        space: dict[str, object] = {"__name__": f"{NAME}_typed"}
        exec(TEXT.format(helper="math").replace("import RUN", "import pi as RUN"), space)  # as a notebook does
        monkeypatch.setitem(TEMPLATES, "mine", space["Mine"]())  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
        digests |= {extensions_digest(), extensions_digest()}
    assert len(digests) == 2


def test_a_converter_from_outside_counts(written: Path) -> None:
    (written / f"{NAME}_converter.py").write_text("def convert(node, builder):\n    return ()\n")
    importlib.invalidate_caches()
    extensions.note_added("somebody.Op", importlib.import_module(f"{NAME}_converter").convert)
    assert extensions_digest() != ""
