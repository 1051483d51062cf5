"""Plug-ins: what entry points of installed packages add, and what is said of those that do not work."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Generator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import treadle
from tests.frontends.onnx.models import model, node
from tests.helpers.environment import environment_with
from treadle import ir
from treadle.dialects.registry import ADDED_DIALECTS
from treadle.environment import load_environment
from treadle.errors import TreadleError, TreadleWarning
from treadle.frontends.onnx import functions
from treadle.passes.registry import ADDED_PASSES
from treadle.plugins import load_plugins, loader
from treadle.schedules.rules.tiling import OWN_RULES
from treadle.schedules.templates import TEMPLATES
from treadle.support import extensions
from treadle.support.extensions import extensions_digest
from treadle.target import Target
from treadle.target.description import ADDED_TARGETS
from treadle.tools import treadle_opt
from treadle.tools.treadle_cli import main

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "plugin"
X = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
_CONVERTERS: Any = vars(functions)["_REGISTRY"]
REGISTRIES: tuple[MutableMapping[Any, Any], ...] = (
    ADDED_PASSES, TEMPLATES, OWN_RULES, ADDED_TARGETS, ADDED_DIALECTS, _CONVERTERS,
)  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Afterwards all registries, and the modules, are as before; what is installed here is not seen."""
    monkeypatch.setattr(loader, "_is_done", False)
    monkeypatch.setattr(loader, "_loaded", set[tuple[str, str]]())
    monkeypatch.setattr(extensions, "_added", dict(vars(extensions)["_added"]))
    monkeypatch.setenv("TREADLE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TREADLE_PLUGINS", "on")
    before, modules = [dict(registry) for registry in REGISTRIES], set(sys.modules)
    yield
    for registry, entries in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(entries)
    for name in set(sys.modules) - modules:
        if name.startswith(("treadle_example_plugin", "written_")):
            del sys.modules[name]


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, entries: Mapping[str, Mapping[str, str]]) -> None:
    """Puts a package's metadata, and modules beside it, where imports find them."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = ("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in own.items())]) for group, own in entries.items())
    (info / "entry_points.txt").write_text("\n\n".join(groups))
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package, as if it were installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path / "site", monkeypatch, project["name"], project["entry-points"])
    monkeypatch.syspath_prepend(str(EXAMPLE))


def squared(folder: Path, rows: int | str = 2) -> Path:
    """y = squared_relu(relu(relu(x))) by the operator of the example's domain."""
    nodes = [node("Relu", "x", "a"), node("Relu", "a", "b")]
    nodes.append(helper.make_node("SquaredRelu", ["b"], ["y"], domain="example.plugin"))
    proto = model(nodes, {"x": [rows, 8]})
    proto.opset_import.append(helper.make_opsetid("example.plugin", 1))
    path = folder / "squared.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_without_plugins_nothing_is_added() -> None:
    load_plugins()
    assert ADDED_PASSES == ADDED_TARGETS == OWN_RULES == {} and extensions_digest() == ""


def test_a_model_compiles_through_one_of_each(example: None, tmp_path: Path) -> None:
    path = squared(tmp_path)
    compiled = treadle.compile(path, "example_avx2", trace_dir=tmp_path / "trace")
    (y,) = compiled(X)
    np.testing.assert_allclose(y, np.maximum(X, 0) ** 2, rtol=1e-6)
    assert compiled.target == "example_avx2"
    assert '#schedule.use<"example_flat_cpu"' in "".join(p.read_text() for p in (tmp_path / "trace").glob("*.mlir"))
    steps = [each.name.partition("-")[2] for each in sorted((tmp_path / "trace").iterdir())]
    assert "example-drop-double-relu.mlir" in steps, "it changed the module"
    assert [name.rpartition(".")[2] for name in OWN_RULES] == ["whole_windows"]
    assert list(TEMPLATES).index("example_flat_cpu") + 1 == list(TEMPLATES).index("generic_cpu")
    assert extensions_digest() != ""


def test_the_tools_know_them(
    example: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = squared(tmp_path), tmp_path / "out"
    assert main(["check", str(path)]) == 0
    assert main(["compile", str(path), "--target", "example_avx2", "-o", str(folder)]) == 0
    assert main(["run", str(path), "--target", "example_avx2{cores=1}"]) == 0
    text = tmp_path / "m.mlir"
    assert treadle_opt.main([str(path), "--to", "import", "-o", str(text)]) == 0
    assert text.read_text().count('graph.unary "relu"') == 2
    assert "= example.squared_relu %" in text.read_text()
    assert treadle_opt.main([str(text), "-p", "example-drop-double-relu", "-o", str(text)]) == 0
    assert text.read_text().count('graph.unary "relu"') == 1
    module = ir.parse(text.read_text())
    ir.run_passes(module, "example-drop-double-relu")
    capsys.readouterr()
    loaded = treadle.load(folder)
    np.testing.assert_allclose(loaded(X)[0], np.maximum(X, 0) ** 2, rtol=1e-6)


def test_a_target_of_a_plugin_needs_no_table_to_be_read(example: None) -> None:
    load_plugins()
    target = Target.parse("example_avx2")
    assert (target.cores, target.l2_bytes) == (4, 1 << 20)
    other = Target.parse("example_avx2{cores=1}")
    assert (other.cores, other.l2_bytes) == (1, 1 << 20)
    assert [Target.parse(str(each)) for each in (target, other)] == [target, other]
    ADDED_TARGETS.clear()
    assert [Target.parse(str(each)) for each in (target, other)] == [target, other]
    with pytest.raises(TreadleError, match="unknown target 'example_avx2'"):
        Target.parse("example_avx2")


def test_plugins_can_be_left_out(example: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_PLUGINS", "off")
    with pytest.raises(TreadleError, match="unknown target 'example_avx2'"):
        treadle.compile(ir.parse("func.func @main() { func.return }"), "example_avx2")
    with pytest.raises(TreadleError, match="TREADLE_PLUGINS: 'none' is unknown; accepted: on, off"):
        load_environment({"TREADLE_PLUGINS": "none"})


def test_one_that_raises_is_named_and_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    entries = {
        "treadle.passes": {"broken": "written_broken:PASS", "mistaken": "written_mistaken:PASS"},
        "treadle.converters": {"plain": "written_mistaken:plain"},
        "treadle.templates": {"none": "written_mistaken:PASS"},
        "treadle.rules": {"number": "written_mistaken:PASS"},
        "treadle.targets": {"text": "written_mistaken:PASS", "gone": "written_nowhere:TARGET"},
    }
    install(site, monkeypatch, "example-broken", entries)
    (site / "written_broken.py").write_text("1 / 0\n")
    (site / "written_mistaken.py").write_text("PASS = 5\ndef plain(node, g):\n    return ()\n")
    with pytest.warns(TreadleWarning) as warned:
        load_plugins()
    said = sorted(str(each.message) for each in warned)
    assert said == [
        f"the plug-in '{name}' of treadle.{group}, from example-broken 1.0, is skipped: {reason}"
        for name, group, reason in (
            ("broken", "passes", "ZeroDivisionError: division by zero"),
            ("gone", "targets", "ModuleNotFoundError: No module named 'written_nowhere'"),
            ("mistaken", "passes", "it is a int; accepted: a treadle.plugins.PassPlugin"),
            ("none", "templates", "register_template: int is no template; accepted: a subclass of Template"),
            ("number", "rules", "register_rule: 5 is no rule; accepted: a function at the top of a module"),
            ("plain", "converters", "it is a function; accepted: a function under @treadle.plugins.converts"),
            ("text", "targets", "it is a int; accepted: a treadle.Target"),
        )
    ]
    load_plugins()  # says it once
    assert extensions_digest() == ""


def test_two_of_one_name_are_an_error(example: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "other", monkeypatch, "other", {"treadle.targets": {"example_avx2": "os:name"}})
    message = (
        r"treadle.targets: there are two plug-ins 'example_avx2': of other 1.0 and of treadle-example-plugin 1.0; ac"
    )
    for _ in range(2):
        with pytest.raises(TreadleError, match=message):
            load_plugins()
    assert ADDED_PASSES == {}, "nothing was loaded"


PASS = """
from dataclasses import dataclass
from xdsl.passes import ModulePass
from treadle.plugins import PassPlugin
@dataclass(frozen=True)
class Written(ModulePass):
    name = {name!r}
    {option}
    def apply(self, ctx, op):
        op.attributes.update()
PASS = PassPlugin(Written, {after!r}, {reason!r})
"""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "graph-fuse"}, "register_pass: there is a pass 'graph-fuse'; accepted: another name"),
        (
            {"after": "graph-nothing"},
            "pass 'written': 'graph-nothing' is no pass and no stage to run after; accepted: ",
        ),
        ({"reason": ""}, "pass 'written': it has no reason for its place; accepted: a sentence"),
        ({"option": "size: int"}, "pass 'written': its options size have no defaults; accepted: a default for each"),
    ],
)
def test_passes_that_are_not_accepted(
    change: Mapping[str, str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PASS.format(**({"name": "written", "after": "graph-fuse", "reason": "Why.", "option": ""} | dict(change)))
    install(tmp_path, monkeypatch, "written", {"treadle.passes": {"written": "written_pass:PASS"}})
    (tmp_path / "written_pass.py").write_text(text)
    with pytest.warns(TreadleWarning, match="is skipped") as warned:
        load_plugins()
    assert reason in str(warned[0].message)


def test_the_sources_of_a_pass_are_part_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests: set[str] = set()
    for number, text in enumerate(("x = 1", "x = 2", "x = 1")):
        site = tmp_path / str(number)
        with monkeypatch.context() as patched:
            install(site, patched, "written", {"treadle.passes": {"written": "written_pass:PASS"}})
            given = PASS.format(name="written", after="import", reason="Why.", option=text)
            (site / "written_pass.py").write_text(given)
            sys.modules.pop("written_pass", None)
            patched.setattr(loader, "_is_done", False)
            patched.setattr(loader, "_loaded", set[tuple[str, str]]())
            load_plugins()
            digests.add(extensions_digest())
            ADDED_PASSES.clear()
    assert len(digests) == 2


def test_places_of_passes() -> None:
    """Behind the last occurrence, at the end of a stage, and in the order of names where two have one place."""
    pipeline: Any = importlib.import_module("treadle.compiler.pipeline")
    kinds = importlib.import_module("treadle.plugins.kinds")
    space: dict[str, Any] = {"__name__": "written_places"}
    exec(PASS.format(name="first", after="graph-simplify", reason="Why.", option=""), space)
    first = space["PASS"]
    exec(PASS.format(name="second", after="graph-simplify", reason="Why.", option=""), space)
    second = space["PASS"]
    exec(PASS.format(name="third", after="import", reason="Why.", option=""), space)
    for added in (first, second, kinds.PassPlugin(space["PASS"].kind, "import", "Why.", ("cpu",))):
        pipeline.register_pass(added)
    target = Target.parse("avx2")
    names = [each.name for stage in pipeline.STAGES for each in pipeline.passes_of(stage, target)]
    last = len(names) - 1 - names[::-1].index("graph-simplify")
    assert names[last + 1 : last + 3] == ["first", "second"] and names[0] == "third"
    on_gpus = [each.name for s in pipeline.STAGES for each in pipeline.passes_of(s, Target.parse("sm_80"))]
    assert "third" not in on_gpus and "first" in on_gpus


@pytest.mark.slow
def test_the_example_is_installed_from_a_wheel(tmp_path: Path) -> None:
    """Into an environment of its own, which sees the packages of this one."""
    pytest.importorskip("setuptools")
    source, wheels, env = tmp_path / "source", tmp_path / "wheels", tmp_path / "env"
    shutil.copytree(EXAMPLE, source)
    pip = [sys.executable, "-m", "pip"]
    offline = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", str(source), "--wheel-dir", str(wheels), "--no-build-isolation", *offline]
    subprocess.run(build, check=True, cwd=tmp_path)
    venv.create(env)
    python = env / "bin" / "python"
    (site,) = env.glob("lib/python*/site-packages")
    (site / "others.pth").write_text("\n".join([str(ROOT), *(each for each in sys.path if "site-packages" in each)]))
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "--python", str(python), "install", str(wheel), *offline], check=True, cwd=tmp_path)
    path = squared(tmp_path)
    variables = environment_with({"TREADLE_PLUGINS": "on"})
    for command in (
        ["-m", "treadle", "run", str(path), "--target", "example_avx2", "--check"],
        ["-m", "treadle", "compile", str(path), "--target", "example_avx2", "--trace", "trace", "-o", "out"],
    ):
        done = subprocess.run(
            [str(python), *command], cwd=tmp_path, capture_output=True, text=True, check=False, env=variables
        )
        assert done.returncode == 0, done.stderr
        assert "skipped" not in done.stderr
    assert any("example-drop-double-relu" in each.name for each in (tmp_path / "trace").iterdir())
    assert any("example_flat_cpu" in each.read_text() for each in (tmp_path / "trace").iterdir())


# Dialects, which come as xDSL's universes.


def test_an_operator_of_a_dialect_is_what_its_definition_says(example: None) -> None:
    text = """
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %y = example.squared_relu %x : (tensor<2x8xf32>) -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}
"""
    module = ir.parse(text)
    assert ir.print_text(ir.parse(ir.print_text(module, generic=True))) == ir.print_text(module)
    (expected,) = ir.evaluate(module, [X])
    np.testing.assert_allclose(expected, np.maximum(X, 0) ** 2, rtol=1e-6)
    compiled = treadle.compile(module, "cpu")
    np.testing.assert_allclose(compiled(X)[0], expected, rtol=1e-6)
    ir.lower(module, "avx2", to="define")
    assert 'graph.compute "squared_relu"' in ir.print_text(module)
    ir.lower(cuda := ir.parse(text), "sm_80")
    assert "@squared_relu" in ir.print_text(cuda)
    with pytest.raises(TreadleError, match="elements of type f16, where f32 is accepted"):
        ir.parse(text.replace("f32", "f16"))


def test_an_operator_of_a_dialect_over_a_range(example: None, tmp_path: Path) -> None:
    with pytest.raises(TreadleError, match=r"example\.squared_relu takes no symbolic extents"):
        treadle.compile(squared(tmp_path, "rows"), "cpu", shapes={"x": (treadle.Dim("rows", 1, 4), 8)})


WRITTEN = """
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Dialect
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def
from xdsl.universe import Universe
@irdl_op_definition
class Kept(IRDLOperation):
    name = "written.kept"
    x = operand_def(TensorType)
    y = result_def(TensorType)
    assembly_format = "$x attr-dict `:` type($x) `->` type($y)"
WRITTEN = Dialect({name!r}, [Kept])
UNIVERSE = Universe(all_dialects={{{name!r}: lambda: WRITTEN}})
"""


def test_what_no_pass_lowers_is_refused_at_the_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "written", {"xdsl.universe": {"written": "written_dialect:UNIVERSE"}})
    (tmp_path / "written_dialect.py").write_text(WRITTEN.format(name="written"))
    module = ir.parse("""
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8xf32> {
  %y = written.kept %x : tensor<2x8xf32> -> tensor<2x8xf32>
  func.return %y : tensor<2x8xf32>
}
""")
    with pytest.raises(TreadleError, match=r"'written\.kept' may not remain after stage 'define'"):
        treadle.compile(module, "cpu")


def test_a_dialect_of_a_name_that_is_taken_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "written", {"xdsl.universe": {"written": "written_dialect:UNIVERSE"}})
    (tmp_path / "written_dialect.py").write_text(WRITTEN.format(name="scf"))
    with pytest.warns(TreadleWarning) as warned:
        load_plugins()
    assert [str(each.message) for each in warned] == [
        "the plug-in 'written' of xdsl.universe, from written 1.0, is skipped: "
        "written_dialect:UNIVERSE: there is a dialect 'scf'; accepted: another name"
    ]
    assert ADDED_DIALECTS == {}


def test_the_sources_of_a_dialect_are_part_of_keys_and_known_to_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[str] = []
    for number, ending in enumerate(("", "# changed\n", "")):
        site = tmp_path / str(number)
        with monkeypatch.context() as patched:
            install(site, patched, "written", {"xdsl.universe": {"written": "written_dialect:UNIVERSE"}})
            (site / "written_dialect.py").write_text(WRITTEN.format(name="written") + ending)
            sys.modules.pop("written_dialect", None)
            patched.setattr(loader, "_is_done", False)
            patched.setattr(loader, "_loaded", set[tuple[str, str]]())
            load_plugins()
            digests.append(extensions_digest())
            given = extensions.additions()
            ADDED_DIALECTS.clear()
            extensions.add(given)  # as a worker that has loaded none
            assert extensions_digest() == digests[-1] and list(ADDED_DIALECTS) == ["written"]
            ADDED_DIALECTS.clear()
    assert digests[0] == digests[2] != digests[1]
