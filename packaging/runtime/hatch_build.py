"""The files of the wheel `treadle-runtime`: the modules that `treadle.runtime` imports, as a package of another name.

Which these are follows from their imports, so that no list has to be kept. `treadle.x` becomes `treadle_runtime.x`: a
package of its own neither overwrites files of an installed `treadle` nor is overwritten (docs/adr/0090).
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

REPOSITORY = Path(__file__).parents[2]
SOURCE, PACKAGE = "treadle", "treadle_runtime"
ENTRIES = ("treadle.runtime", "treadle.runtime.run")


class RuntimeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Writes the files into a temporary folder, from which they are taken."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds each file to what the wheel contains."""
        self._folder = Path(tempfile.mkdtemp(prefix="treadle-runtime-"))
        for name, text in runtime_files().items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            build_data["force_include"][str(path)] = name
        build_data["force_include"][str(REPOSITORY / "LICENSE")] = f"{PACKAGE}/LICENSE"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the folder."""
        shutil.rmtree(self._folder)


def runtime_files() -> dict[str, str]:
    """The texts of the wheel's modules, by their paths in it."""
    found: dict[str, Path] = {}
    waiting = list(ENTRIES)
    while waiting:
        module = waiting.pop()
        path = file_of(module)
        if path is None or module in found:
            continue
        found[module] = path
        waiting += imported_modules(ast.parse(path.read_text()))
        waiting += [module.rpartition(".")[0]] if module.count(".") > 1 else []
    texts = {str(path.relative_to(REPOSITORY)): renamed(path.read_text(), path) for path in found.values()}
    texts |= {f"{SOURCE}/__init__.py": texts[f"{SOURCE}/runtime/__init__.py"], f"{SOURCE}/py.typed": ""}
    return {name.replace(SOURCE, PACKAGE, 1): text for name, text in sorted(texts.items())}


def file_of(module: str) -> Path | None:
    """The file of a module; None for a name that is none, such as a function's."""
    path = REPOSITORY.joinpath(*module.split("."))
    return next((each for each in (path / "__init__.py", path.with_suffix(".py")) if each.is_file()), None)


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """What may be modules of Treadle among what is imported when a module runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from (name for each in node.orelse for name in imported_modules(each))
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == SOURCE:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))  # type: ignore[misc]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == SOURCE)
        yield from imported_modules(node)


def renamed(text: str, path: Path) -> str:
    """A module's text with the package's other name in its imports. ValueError for a module that is named by a string,
    as late imports are: such a one would be missing."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            named = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if any(isinstance(name, str) and name.startswith(f"{SOURCE}.") and file_of(name) for name in named):
                raise ValueError(f"{path}:{node.lineno}: a late import, {named}; accepted: an import at the top")
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any(name.partition(".")[0] == SOURCE for name in names):
            assert isinstance(node, ast.Import | ast.ImportFrom)
            lines[node.lineno - 1] = lines[node.lineno - 1].replace(SOURCE, PACKAGE, 1)
    return "".join(lines)
