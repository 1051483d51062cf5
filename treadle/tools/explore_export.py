"""An explored compile as a folder that needs no server: the page, its scripts, and a file for each document.

Most lines of a text are in other texts, too, but for the numbers of their values, and most values hold the same after
several stages. So that a model of ten thousand nodes is a few megabytes, such strings stand once in a table, in files
of `CHUNK` strings; texts and values have their numbers. Every file is compressed. The page reads those that it shows
(`explore_packed.js`).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from treadle.compiler.pipeline import STAGES
from treadle.tools.explore_page import DATA, INDEX, SCRIPTS, document, page
from treadle.tools.explore_record import Interned, Json, json_of
from treadle.tools.explore_session import Session

_NAMES = {script.name for script in SCRIPTS}
_CALL = "treadleDocument"
CHUNK = 4096
"""Strings of the table in a file; explore_packed.js has the same number."""
_PLACE = "\x01"
"""Where a value stands in a line of the table: printable text has none."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|%[\w.$-]+', re.ASCII)
"""As explore_text.js finds values in a line."""
_COLUMNS = ("type", "op", "function", "nodes")


def exported_names(session: Session) -> Iterator[str]:
    """The documents of the static form: all but what may be chosen, and values at the end of each stage alone."""
    version = session.current
    passes = version.recorder.passes
    yield from ("state", f"version-{version.number}", f"code-{version.number}")
    yield from (f"diff-{each.before}-{each.after}" for each in passes if each.before != each.after)
    texts = dict.fromkeys([version.recorder.first, *(each.after for each in passes)])
    yield from (f"text-{number}" for number in texts)
    yield from (f"values-{number}" for number in texts)
    yield from (f"text-{each.text}" for each in version.code)
    ends = dict.fromkeys([version.recorder.first, *(version.recorder.last_of(stage.name) for stage in STAGES)])
    yield from (f"numbers-{number}" for number in ends)


def write_export(session: Session, folder: Path) -> None:
    """Writes the page, its scripts and its documents, each as a script of its own: pages from a disk may read no other
    files."""
    (folder / INDEX).write_text(page(session.path.name, live=False))
    for script in SCRIPTS:
        (folder / script.name).write_text(script.read_text())
    data = folder / DATA
    data.mkdir()
    packing = Packing()
    for name in dict.fromkeys(exported_names(session)):
        session.progress(f"writing {name}", 1.0)
        content = json.loads(json_of(document(session, name)))
        values = f"values-{name.removeprefix('text-')}"
        known = session.documents.get(values) if name.startswith("text-") and _has(session, values) else None
        _write(data, name, packing.packed(name, content, known))
    for number, strings in enumerate(packing.chunks()):
        _write(data, f"strings-{number}", strings)


def _has(session: Session, name: str) -> bool:
    return name in session.documents.content


def _write(data: Path, name: str, content: object) -> None:
    """A document as a script that hands it to the page: its JSON, compressed, in letters."""
    packed = zlib.compress(json.dumps(content, separators=(",", ":")).encode(), 9)
    (data / f"{name}.js").write_text(f"{_CALL}({json.dumps(name)}, {json.dumps(base64.b64encode(packed).decode())});\n")


def is_export(folder: Path) -> bool:
    """Whether a folder holds an earlier export and nothing else."""
    return {path.name for path in folder.iterdir()} <= {INDEX, DATA, *_NAMES} and (folder / DATA).is_dir()


@dataclass
class Packing:
    """Documents in the form in which they are exported, and the table of the strings that they share.

    | document | its packed form |
    |---|---|
    | `text-N` of IR | the differences of the numbers of its lines, in which `\\x01` stands for each value |
    | `values-N` | differences of the numbers of names and of other strings, and of columns; in a line, how many \
values ago each value was new, 0 for a new one; no `at` |
    | `numbers-N` | the differences of keys, and of the numbers of values as JSON |

    Others are as they were.
    """

    strings: Interned = field(default_factory=Interned)

    def packed(self, name: str, content: Json, values: Json | None = None) -> object:
        """A document by its name; values: of a text of IR, the document with its values."""
        kind = name.partition("-")[0]
        if kind == "text" and values is not None:
            return self._text(content, values)
        if kind == "values":
            return self._values(content)
        if kind == "numbers":
            return self._numbers(content)
        return content

    def chunks(self) -> Iterator[list[str]]:
        """The table, in parts of `CHUNK` strings."""
        listed = self.strings.listed()
        return (listed[at : at + CHUNK] for at in range(0, len(listed), CHUNK))

    def _text(self, content: Json, values: Json) -> Json:
        lines = str(content["text"]).split("\n")
        names, places = values["names"], values["lines"]
        templates: list[str] = []
        for number, line in enumerate(lines):
            shown = [token for token in _TOKENS.findall(line) if token[0] == "%"]
            if shown != [names[each] for each in (places[number] if number < len(places) else ())]:
                return content  # a text that the page could not put together again
            templates.append(_TOKENS.sub(_masked, line))
        return {"lines": _differences(map(self.strings, templates))}

    def _values(self, content: Json) -> Json:
        known, lines = 0, list[list[int]]()
        for line in content["lines"]:
            lines.append([])
            for value in line:
                lines[-1].append(known - value)
                known = max(known, value + 1)
        tables = {key: [self.strings(json.dumps(each)) for each in content[key.upper()]] for key in _COLUMNS}
        return {
            "lines": lines,
            "names": _differences(map(self.strings, content["names"])),
            **{key: _differences(content[key]) for key in _COLUMNS},
            **{key.upper(): _differences(table) for key, table in tables.items()},
        }

    def _numbers(self, content: Json) -> Json:
        values: Mapping[str, Any] = content["values"]
        held = _differences(self.strings(json.dumps(each)) for each in values.values())
        return {**content, "keys": _differences(map(int, values)), "values": held}


def _masked(found: re.Match[str]) -> str:
    return _PLACE if found[0][0] == "%" else found[0]


def _differences(numbers: Iterable[int]) -> Sequence[int]:
    """The first number, and how much more each one is than the one before it."""
    return [after - before for before, after in pairwise([0, *numbers])]


__all__ = ["CHUNK", "Packing", "exported_names", "is_export", "write_export"]
