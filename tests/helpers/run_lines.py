"""Reading `// RUN:` lines: what an IR test asks to be run.

The language is the part of lit's that IR tests need: tools joined by `|`, `not` before a tool that must fail,
`2>&1`, a trailing backslash to continue on the next line, `%s` for the test file and `%S` for its folder.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_RUN = re.compile(r"//\s*RUN:\s*(?P<text>.*?)\s*$")
_UNSUPPORTED = frozenset({"&&", "||", ";", "&", ">", ">>", "<", ">&"})


class RunLineError(Exception):
    """A RUN line that cannot be read; the message names the file, the line and what would be accepted."""


@dataclass(frozen=True)
class Step:
    """One tool of a pipeline."""

    tool: str
    arguments: tuple[str, ...]
    must_fail: bool = False
    stderr_to_stdout: bool = False


@dataclass(frozen=True)
class RunLine:
    """One RUN line: the line in the file where it starts (from 1) and its steps in order."""

    line: int
    steps: tuple[Step, ...]


def _joined_lines(text: str) -> list[tuple[int, str]]:
    """The RUN lines of `text`, continuations joined, each with the number of its first line."""
    joined: list[tuple[int, str]] = []
    continues = False
    for number, line in enumerate(text.splitlines(), start=1):
        match = _RUN.match(line.strip())
        if match is None:
            continue
        part = match["text"]
        if continues:
            start, before = joined.pop()
            joined.append((start, before + part.removesuffix("\\")))
        else:
            joined.append((number, part.removesuffix("\\")))
        continues = part.endswith("\\")
    return joined


def _split_at_pipes(tokens: list[str]) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    for token in tokens:
        if token == "|":
            groups.append([])
        else:
            groups[-1].append(token)
    return groups


def _step(tokens: list[str], path: Path) -> Step:
    words = [token.replace("%S", str(path.parent)).replace("%s", str(path)) for token in tokens]
    must_fail = words[:1] == ["not"]
    if must_fail:
        words = words[1:]
    stderr_to_stdout = "2>&1" in words
    words = [word for word in words if word != "2>&1"]
    return Step(words[0], tuple(words[1:]), must_fail, stderr_to_stdout)


def read_run_lines(text: str, path: Path) -> tuple[RunLine, ...]:
    """The RUN lines of the test file `path` whose contents are `text`.

    Raises:
        RunLineError: there is none, or one uses shell syntax outside the supported part.
    """
    run_lines: list[RunLine] = []
    for number, command in _joined_lines(text):
        # shlex would split 2>&1 at its punctuation; hidden in quotes it stays one word.
        lexer = shlex.shlex(command.replace("2>&1", "'2>&1'"), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        tokens = list(lexer)
        groups = _split_at_pipes(tokens)
        unsupported = sorted(_UNSUPPORTED.intersection(tokens))
        if unsupported or not all(groups):
            raise RunLineError(
                f"{path}:{number}: cannot run `{command}` in-process"
                f"{': ' + ' '.join(unsupported) if unsupported else ': a step is empty'}; "
                "accepted: tools joined by |, `not`, 2>&1; the rest belongs in tests/filecheck, run by lit"
            )
        run_lines.append(RunLine(number, tuple(_step(group, path) for group in groups)))
    if not run_lines:
        raise RunLineError(
            f"{path}: no RUN line; accepted: `// RUN: treadle-opt %s -p PASS | filecheck %s`, "
            "or move a file that is only read by others into a folder called inputs"
        )
    return tuple(run_lines)
