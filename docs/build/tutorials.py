"""`make docs`: runs the tutorials, and writes what their commands print now where it is something else.

A tutorial is Markdown. Its fenced blocks are what a reader types and sees, in the order of the page, in one folder:

    ```python title="make_model.py"      a file of this name, of any language
    ```console                           commands after `$ `, each followed by what it prints, errors included

One shell runs all commands of a page, so that `cd` and `export` last. A comment in front of a block says what is
special of it: `<!-- numbers: any -->`, they are times, or depend on the machine; `<!-- exit: 1 -->`, so its last
command fails; `<!-- numbers: any, exit: 1 -->`.

What is shown agrees with what is printed if words and marks are equal, and numbers, where they stand by themselves, are
equal as integers, and to `TOLERANCE` of their size as fractions. A run of blanks, or of a table's border, counts as
one. `...` stands for any text within a line, and, alone on a line, for any number of lines.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from docs.build.architecture import ROOT
from treadle.environment import with_english_messages
from treadle.errors import TreadleError
from treadle.tools.reporting import run_reporting

FOLDER = ROOT / "docs" / "tutorials"
TOLERANCE = 1e-3
"""Relative, of numbers with a fraction or an exponent."""

_FENCE = re.compile(
    r"^(?:<!-- (?P<options>[a-z]+: [^>]*?) -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)")
_DIGITS = "([-+0-9.,e]+)"
_MARK = "treadle-tutorial-end"


@dataclass(frozen=True)
class Step:
    """A command, and what the page shows of its output; status: what it ends with."""

    command: str
    shown: str
    numbers_vary: bool = False
    status: int = 0


@dataclass(frozen=True)
class Block:
    """A fenced block, from `start` to `end` of the page's characters: a file of the name `title`, or commands."""

    title: str | None
    body: str
    start: int
    end: int
    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def steps(self) -> Sequence[Step]:
        """The commands of the block, each with what is shown behind it."""
        parts = re.split(r"^\$ ", self.body, flags=re.MULTILINE)[1:]
        steps: list[Step] = []
        for number, part in enumerate(parts, start=1):
            command = re.match(r"(?:.*\\\n)*.*\n?", part)
            assert command is not None
            status = int(self.options.get("exit", 0)) if number == len(parts) else 0
            shown = part[command.end() :]
            steps.append(Step(command[0].rstrip("\n"), shown, self.options.get("numbers") == "any", status))
        return steps


def read(text: str, where: str = "page") -> Sequence[Block]:
    """The blocks of a page; TreadleError for one that is neither a file nor commands."""
    blocks: list[Block] = []
    for match in _FENCE.finditer(text):
        if match["title"] is None and match["language"] != "console":
            line = text.count("\n", 0, match.start("body"))
            message = f"line {line}: a block of {match['language']} is neither a file nor commands"
            raise TreadleError(message, where, '```console, or a title="NAME"')
        given = (each.split(": ") for each in (match["options"] or "").split(", ") if each)
        options = {name: value for name, value in given}
        blocks.append(Block(match["title"], match["body"], match.start("body"), match.end("body"), options))
    if len(re.findall(r"^```", text, re.MULTILINE)) != 2 * len(blocks):
        raise TreadleError("a block does not begin or end at the beginning of a line", where, "``` in pairs")
    return blocks


class Shell:
    """A shell in a folder; variables, and the folder that a command changes to, last."""

    def __init__(self, folder: Path) -> None:
        """Starts it with this Python's programs in front, and the checkout's modules."""
        path = f"{Path(sys.executable).parent}{os.pathsep}"
        variables = {"COLUMNS": "140", "TERM": "dumb", "PS1": "", "TREADLE": str(ROOT)}
        here = with_english_messages()
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), here.get("PYTHONPATH")]))
        here |= variables
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder, env=here | {"PATH": path + here.get("PATH", "")}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> tuple[str, int]:
        """What it prints, and its exit status; TreadleError where the shell itself ends."""
        source, sink = self._process.stdin, self._process.stdout
        assert source is not None and sink is not None
        source.write(f"{{ {command}\n}} </dev/null; printf '%s %d\\n' {_MARK} $?\n")
        source.flush()
        lines: list[str] = []
        for line in sink:
            text, mark, status = line.partition(_MARK)
            lines.append(text if mark else line)
            if mark:
                return "".join(lines), int(status)
        raise TreadleError(f"the shell ended: {''.join(lines)}", command, "a command that ends")

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Shell:
        """The shell."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


def play(blocks: Sequence[Block], folder: Path) -> Iterator[tuple[Block, Sequence[tuple[Step, str]]]]:
    """Writes the files and runs the commands in a folder: each block of commands, with what they print."""
    with Shell(folder) as shell:
        for block in blocks:
            if block.title is not None:
                path = folder / block.title
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.body)
                continue
            yield block, [(step, _printed(shell, step)) for step in block.steps()]


def _printed(shell: Shell, step: Step) -> str:
    printed, status = shell.run(step.command)
    if status != step.status:
        raise TreadleError(
            f"exit status {status}, not {step.status}:\n{printed}", step.command, "see the page's comment"
        )
    return printed


def disagreement(step: Step, printed: str) -> str | None:
    """The first line that is shown and not printed so, or the other way round; None where both agree."""
    shown, actual = _lines(step.shown), _lines(printed)
    place, skipping = 0, False
    for line in shown:
        if line == "...":
            skipping = True
            continue
        end = len(actual) if skipping else min(place + 1, len(actual))
        found = next((at for at in range(place, end) if _alike(line, actual[at], step)), None)
        if found is None:
            return f"shown: {line}\nprinted: {actual[place] if place < len(actual) else 'nothing more'}"
        place, skipping = found + 1, False
    if place < len(actual) and not skipping:
        return f"shown: nothing more\nprinted: {actual[place]}"
    return None


def _lines(text: str) -> list[str]:
    """The lines that have more than blanks; a run of blanks, or of a table's border, counts as one."""
    return [re.sub("─+", "─", " ".join(line.split())) for line in text.splitlines() if line.strip()]


def _alike(shown: str, printed: str, step: Step) -> bool:
    """Whether a line is another but for its numbers, and these are near."""
    parts = [part.strip() for part in shown.split("...")]
    pattern = ".*?".join(_DIGITS.join(re.escape(words) for words in _NUMBER.split(part)) for part in parts)
    match = re.fullmatch(pattern, printed)
    if match is None:
        return False
    numbers = [text for part in parts for text in _NUMBER.findall(part)]
    return all(_near(a, b, step.numbers_vary) for a, b in zip(numbers, match.groups(), strict=True))


def _near(shown: str, printed: str, any_value: bool) -> bool:
    if _NUMBER.fullmatch(printed) is None:
        return False
    a, b = (float(each.replace(",", "")) for each in (shown, printed))
    fraction = any(mark in shown for mark in ".e")
    return any_value or (math.isclose(a, b, rel_tol=TOLERANCE) if fraction else a == b)


def rewritten(text: str, folder: Path, where: str = "page") -> str:
    """The page with what its commands print now, where that does not agree with what it shows."""
    changes: list[tuple[Block, str]] = []
    for block, played in play(read(text, where), folder):
        body = block.body[: block.body.find("$ ")] if "$ " in block.body else block.body
        for step, printed in played:
            kept = step.shown if disagreement(step, printed) is None else _shortened(printed)
            body += f"$ {step.command}\n{kept}"
        changes.append((block, body))
    for block, body in reversed(changes):
        text = text[: block.start] + body + text[block.end :]
    return text


def _shortened(printed: str) -> str:
    """Lines without blanks at their ends, and without empty ones at both ends."""
    lines = [line.rstrip() for line in printed.splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def main() -> int:
    """Plays the tutorials whose names are given, or all; prints which changed."""
    return run_reporting("render_tutorials", lambda: _rewrite(sys.argv[1:]))


def _rewrite(names: Sequence[str]) -> int:
    for path in sorted(FOLDER.glob("*.md")):
        if path.stem == "README" or (names and path.stem not in names):
            continue
        before = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            after = rewritten(before, Path(folder), path.name)
        path.write_text(after)
        print(f"docs/tutorials/{path.name}: {'unchanged' if before == after else 'rewritten'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
