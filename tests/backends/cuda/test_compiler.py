"""Compiling CUDA text: resources, diagnostics, the cache, and what is said when the wheels are absent."""

import importlib
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from treadle.artifact.store import Store
from treadle.backends.cuda import compiler
from treadle.backends.cuda.compiler import NVRTC_WHEELS, Unit, compile_cubin, compile_cubins
from treadle.errors import TreadleError
from treadle.target import TARGETS, Target

pytest.importorskip("cuda.bindings.nvrtc", reason="needs treadle[nvrtc]")

SM_80 = Target.parse("sm_80")
GPUS = [name for name, target in TARGETS.items() if target.is_cuda]


def unit(name: str = "scale", factor: int = 2) -> Unit:
    return Unit(
        name,
        '#include "treadle_cuda.h"\n'
        f'extern "C" __global__ void {name}(float *a) {{\n'
        f"  __shared__ float s[64];\n  s[threadIdx.x] = treadle_exp(a[threadIdx.x]) * {factor}.0f;\n"
        "  treadle_barrier();\n  a[threadIdx.x] = s[63 - threadIdx.x];\n}\n",
    )


@pytest.mark.parametrize("name", GPUS)
def test_every_target_is_an_architecture_that_nvrtc_knows(name: str) -> None:
    cubin = compile_cubin(unit(), Target.parse(name))
    assert cubin.image.startswith(b"\x7fELF")
    assert cubin.arch == name
    assert cubin.resources["scale"].registers > 0


def test_shared_memory_and_spills_are_reported() -> None:
    resources = compile_cubin(unit(), SM_80).resources["scale"]
    assert resources.shared_bytes == 256
    assert not resources.spills
    assert resources.stack_bytes == 0


def test_an_array_indexed_at_run_time_is_seen_as_stack() -> None:
    text = """extern "C" __global__ void k(float *a, int n) {
  float v[64];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) v[i * n % 64] = a[i];
#pragma unroll 1
  for (int i = 0; i < 64; ++i) a[i] = v[i];
}"""
    assert compile_cubin(Unit("k", text), SM_80).resources["k"].stack_bytes == 256


def test_a_limit_on_registers_makes_spills() -> None:
    loads = "".join(f"float x{i} = a[{i} * threadIdx.x];" for i in range(96))
    stores = "".join(f"a[{i} * threadIdx.x + 1] = x{(i * 37) % 96} * x{i};" for i in range(96))
    text = f'extern "C" __global__ void k(volatile float *a) {{ {loads} __syncthreads(); {stores} }}'
    cubin = compile_cubin(Unit("k", text), SM_80, options=["--maxrregcount=32"])
    assert cubin.resources["k"].spills


def test_a_wrong_line_is_named_and_quoted() -> None:
    text = 'extern "C" __global__ void k(float *a) {\n  a[0] = b;\n}\n'
    with pytest.raises(TreadleError) as caught:
        compile_cubin(Unit("matmul_3", text), SM_80)
    assert caught.value.where == "matmul_3.cu:2"
    assert caught.value.message == "identifier \"b\" is undefined in 'a[0] = b;'"


def test_a_message_without_a_line_is_passed_on() -> None:
    with pytest.raises(TreadleError, match="NVRTC failed with NVRTC_ERROR_INVALID_OPTION"):
        compile_cubin(unit(), SM_80, options=["--no-such-option"])


def test_a_cpu_is_no_target() -> None:
    with pytest.raises(TreadleError, match="target 'cpu' is no GPU"):
        compile_cubin(unit(), Target.parse("cpu"))


def test_units_compile_side_by_side_in_order() -> None:
    cubins = compile_cubins([unit(f"k{i}", i) for i in range(6)], SM_80, workers=2)
    assert [list(cubin.resources) for cubin in cubins] == [[f"k{i}"] for i in range(6)]


def test_the_same_text_compiles_to_the_same_bytes() -> None:
    assert compile_cubin(unit(), SM_80) == compile_cubin(unit(), SM_80)


def test_a_cached_unit_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Store(tmp_path, 1 << 30)
    first = compile_cubin(unit(), SM_80, cache=cache)

    def compile_again(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_compile", compile_again)
    assert compile_cubin(unit(), SM_80, cache=cache) == first


@pytest.mark.parametrize("change", ["text", "target", "options"])
def test_whatever_changes_the_result_changes_the_entry(tmp_path: Path, change: str) -> None:
    cache = Store(tmp_path, 1 << 30)
    compile_cubin(unit(), SM_80, cache=cache)
    compile_cubin(
        unit(factor=3 if change == "text" else 2),
        Target.parse("sm_86") if change == "target" else SM_80,
        options=["--fmad=false"] if change == "options" else [],
        cache=cache,
    )
    assert len(list(tmp_path.rglob("*.cubin"))) == 2


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 4096])
def test_a_damaged_entry_is_compiled_anew(tmp_path: Path, damage: bytes) -> None:
    cache = Store(tmp_path, 1 << 30)
    first = compile_cubin(unit(), SM_80, cache=cache)
    (entry,) = tmp_path.rglob("*.cubin")
    intact = entry.read_bytes()
    entry.write_bytes(damage)
    assert compile_cubin(unit(), SM_80, cache=cache) == first
    assert entry.read_bytes() == intact


@pytest.fixture
def fresh_binding() -> Iterator[None]:
    """Forgets the loaded binding, before the test and after it."""
    cached = (compiler._nvrtc, compiler.nvrtc_version)  # pyright: ignore[reportPrivateUsage]
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("fresh_binding")
def test_an_absent_binding_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(TreadleError) as caught:
        compile_cubin(unit(), SM_80)
    assert "is not installed (No module named 'cuda.bindings.nvrtc')" in caught.value.message
    assert caught.value.accepted == NVRTC_WHEELS


@pytest.mark.usefixtures("fresh_binding")
def test_an_absent_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found() -> None:
        raise RuntimeError('Failure finding "libnvrtc.so.13"')

    binding = SimpleNamespace(nvrtcVersion=not_found)
    monkeypatch.setattr(importlib, "import_module", lambda name: binding)
    with pytest.raises(TreadleError) as caught:
        compile_cubin(unit(), SM_80)
    assert 'is not installed (Failure finding "libnvrtc.so.13")' in caught.value.message
    assert caught.value.accepted == NVRTC_WHEELS


def test_the_hint_names_what_the_extra_requires() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]["nvrtc"]
    assert [word for word in shlex.split(NVRTC_WHEELS.partition("which is ")[2]) if word != "and"] == wanted
