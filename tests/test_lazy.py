"""Late imports: each is the import that the type checker sees, and a cached model does not wait for the compiler."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from xdsl.ir import Dialect
from xdsl.passes import ModulePass

import treadle
from tests.helpers.environment import environment_with
from tests.helpers.onnx_models import linear_model
from treadle.dialects.registry import dialect_factories
from treadle.passes.registry import pass_factories
from treadle.support.lazy import lazy_module, resolve_class, resolve_value
from treadle.tools.universe import TREADLE_UNIVERSE

PACKAGE = Path(treadle.__file__).parent
ALLOWED = {"lazy.py"}
"""Files that may import by a string of their own package's."""


def lazy_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Variable and module of every `variable = lazy_module("module")`, also of several in one statement."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        targets, values = ([node.targets[0]], [node.value])
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            targets, values = node.targets[0].elts, node.value.elts
        if any(isinstance(element, ast.Starred) for element in (*targets, *values)):
            continue
        for target, value in zip(targets, values, strict=True):
            if isinstance(value, ast.Call) and called(value) == "lazy_module":
                (name,) = value.args
                assert isinstance(target, ast.Name) and isinstance(name, ast.Constant)
                yield target.id, str(name.value)


def exported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and value of every entry of a `lazy_exports`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) == "lazy_exports":
            for name, place in ast.literal_eval(node.args[0]).items():
                yield name, f"{place}.{name}"


def typed_names(tree: ast.Module) -> dict[str, str]:
    """What the names that are imported for the type checker mean."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
    }


@cache
def sources() -> dict[Path, ast.Module]:
    """The syntax tree of each file of the package, in the order of the paths."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py")) if path.name not in ALLOWED}


def called(node: ast.Call) -> str:
    """The last name of what is called; empty where it has none."""
    function = node.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def test_late_imports_are_the_ones_that_are_checked() -> None:
    found = 0
    for path, tree in sources().items():
        typed = typed_names(tree)
        for variable, module in lazy_names(tree):
            assert typed.get(variable) == module, f"{path}: {variable}"
            importlib.import_module(module)
            found += 1
        for name, value in exported_names(tree):
            assert typed.get(name) == value, f"{path}: {name}"
            found += 1
    assert found >= 12


def test_nothing_of_the_package_is_imported_by_a_bare_string() -> None:
    for path, tree in sources().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            by_name = called(node).endswith(("resolve_name", "import_module", "__import__"))
            assert not (by_name and "treadle" in ast.unparse(node)), f"{path}:{node.lineno}"


def test_the_tables_hold_what_they_say() -> None:
    assert all(isinstance(factory(), Dialect) for factory in dialect_factories().values())
    assert all(issubclass(factory(), ModulePass) for factory in pass_factories().values())
    assert {"c", "cuda"} <= TREADLE_UNIVERSE.all_targets.keys()
    assert all(factory() for factory in TREADLE_UNIVERSE.all_targets.values())


def test_an_entry_of_another_type_is_named() -> None:
    with pytest.raises(TypeError, match=r"treadle\.target\.options:PRECISIONS is a tuple, not a Dialect"):
        resolve_value("treadle.target.options:PRECISIONS", Dialect)
    with pytest.raises(TypeError, match=r"treadle\.target\.options:CompileOptions is no ModulePass"):
        resolve_class("treadle.target.options:CompileOptions", ModulePass)


def test_a_lazy_module_shows_the_module_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = lazy_module("treadle.target.options")
    monkeypatch.setattr("treadle.target.options.PRECISIONS", ("f8",))
    assert module.PRECISIONS == ("f8",)
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


LIGHT = {
    "treadle", "treadle.errors", "treadle.support", "treadle.support.commands", "treadle.support.lazy",
    "treadle.support.output", "treadle.support.version", "treadle.target", "treadle.target.description",
    "treadle.target.options", "treadle.target.text", "treadle.tools", "treadle.tools.reporting",
    "treadle.tools.treadle_cli",
}  # fmt: skip
"""What says the version, the help, and that an argument is wrong; beside Python's own library, nothing else."""

IMPORTED = """
import sys
before = set(sys.modules)
from treadle.tools.treadle_cli import main
try:
    main(sys.argv[1:])
finally:
    own = [name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names]
    print(*sorted(own), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], [], ["run", "--help"], ["run", "--thread"]])
def test_what_needs_no_compiler_imports_nothing_of_it(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=False, cwd=PACKAGE.parent
    )
    assert set(done.stderr.splitlines()[-1].split()) == LIGHT


def test_the_public_names_are_there() -> None:
    assert {name: getattr(treadle, name).__name__ for name in treadle.__all__ if name != "__version__"} == {
        name: name for name in treadle.__all__ if name != "__version__"
    }
    assert set(treadle.__all__) <= set(dir(treadle))
    accepted = (
        "CompiledModel, Conversation, DeviceArray, Dim, Sampling, Target, ThreadPool, compile, generate, load, tune"
    )
    with pytest.raises(AttributeError, match=f"no name 'comple'; accepted: {accepted}"):
        _ = treadle.comple  # pyright: ignore[reportAttributeAccessIssue]


CACHED = """
import sys
import treadle
model = treadle.compile(sys.argv[1])
assert [name for name in sys.modules if name.startswith(("xdsl", "onnx", "treadle.compiler", "treadle.passes"))] == []
"""


def test_a_cached_model_does_not_wait_for_the_compiler(tmp_path: Path) -> None:
    path = linear_model(tmp_path / "m.onnx")
    treadle.compile(path)
    done = subprocess.run([sys.executable, "-c", CACHED, str(path)], env=environment_with({}), check=False)
    assert done.returncode == 0


ABSENT = """
import sys
sys.modules[sys.argv[1]] = None
import treadle
from treadle.errors import TreadleError
try:
    treadle.load
except TreadleError as error:
    print(error)
from treadle.tools.treadle_cli import main
sys.exit(main([sys.argv[2], sys.argv[3]]))
"""


@pytest.mark.parametrize(("package", "command"), [("numpy", "run"), ("xdsl", "check")])
def test_a_package_that_is_not_installed_is_named(package: str, command: str, tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", ABSENT, package, command, str(tmp_path)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    said = f"the package '{package}' is not installed; accepted: pip install {package}\n"
    assert done.returncode == 2 and done.stderr.endswith(said) and done.stderr.count("\n") == 1
    assert package == "xdsl" or done.stdout.endswith(said)


def test_the_package_is_a_program() -> None:
    command = [sys.executable, "-m", "treadle", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"treadle {treadle.__version__}\n"
