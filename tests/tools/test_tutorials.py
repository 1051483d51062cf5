"""The tutorials do what they say: their files are written, their commands run, and what they show is printed."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.build.tutorials import FOLDER, Step, disagreement, play, read, rewritten
from examples import read_text
from tests.models.catalog import require_model
from treadle.errors import TreadleError

README = FOLDER.parents[1] / "README.md"
FAST = ("race-check-a-kernel",)
"""Those that `make test` has time for: the emulator is built once for all tests of a run."""
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
NEEDED = {"your-own-pass": "hatchling"}


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in PAGES])
def test_a_tutorial_shows_what_happens(name: str, tmp_path: Path) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the tutorials show kernels for x86-64")
    if name in NEEDED and find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]}, which builds the tutorial's package, is not installed")
    text = (FOLDER / f"{name}.md").read_text()
    for _, played in play(read(text, name), tmp_path):
        for step, printed in played:
            assert disagreement(step, printed) is None, f"$ {step.command}\n{disagreement(step, printed)}"


@pytest.mark.slow
def test_the_first_command_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make demo` runs what is called here."""
    require_model("ppocrv4_rec")
    text = README.read_text()
    (step,) = (step for block in read(text[: text.index("\n## ")]) for step in block.steps())
    assert step.command == "make demo"
    monkeypatch.chdir(tmp_path)
    assert read_text.main([]) == 0
    assert disagreement(step, capsys.readouterr().out) is None


def shows(shown: str, printed: str, numbers_vary: bool = False) -> bool:
    return disagreement(Step("", shown, numbers_vary), printed) is None


def test_numbers_are_compared_with_a_tolerance() -> None:
    assert shows("error 1.2345e-6 of 10", "error  1.2346e-06 of 10")
    assert not shows("error 1.2345e-6", "error 1.2445e-6")
    assert not shows("10 kernels", "11 kernels") and shows("10 kernels", "11 kernels", numbers_vary=True)
    assert shows("1,000.5 us 9.1%", "2.5 us 12%", numbers_vary=True)
    assert not shows("2.5 us", "no us", numbers_vary=True) and not shows("2.5 us", "2.5 ms", numbers_vary=True)
    assert not shows("float32[8, 10]", "float32[8, 11]") and not shows("v8f", "v16f")


def test_what_is_left_out_may_be_anything() -> None:
    assert shows("a\n...\nz", "a\nb\nc\nz") and shows("a\n...\nz", "a\nz") and shows("a\n...", "a\nb")
    assert shows("a ... 5 z", "a b c 5 z") and shows("1.5 ... z", "1.5 z") and not shows("a ... 5 z", "a b c 6 z")
    assert not shows("a\n...\nz", "a\nb") and not shows("a", "a\nb") and not shows("a\nb", "a") and not shows("b", "a")
    assert shows(" a   b\n\n ─── \n", "a b\n─────")


PAGE = """
# Page

Save this:

```python title="folder/m.py"
print("3 files")
```

<!-- numbers: any, exit: 3 -->
```console
$ export WHERE=folder
$ python \\
    $WHERE/m.py
2 files
$ python -c 'print("of the shell")'; (exit 3)
of a shell
```
"""


def test_a_page_is_played_and_rewritten(tmp_path: Path) -> None:
    (_, commands) = read(PAGE)
    assert [step.status for step in commands.steps()] == [0, 0, 3]
    ((_, played),) = play(read(PAGE), tmp_path)
    assert [printed for _, printed in played] == ["", "3 files\n", "of the shell\n"]
    assert rewritten(PAGE, tmp_path) == PAGE.replace("of a shell", "of the shell"), "what agrees is kept"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("\n```python\nx = 1\n```\n", "page: line 2: a block of python is neither a file nor commands; accepted: "),
        ("```console\n$ true\n", "page: a block does not begin or end at the beginning of a line; accepted: "),
        ("```console\n$ false\n```\n", "false: exit status 1, not 0"),
        ("```console\n$ kill $$\n```\n", "the shell ended"),
    ],
)
def test_pages_that_cannot_be_played(page: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match=message):
        list(play(read(page), tmp_path))
