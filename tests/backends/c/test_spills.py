"""Inner loops of default schedules keep their vectors in registers, as gcc and clang translate them.

The kernels are those of layers of the papers' models, compiled with the flags that ship; what the compilers write is
read, and nothing runs. Where a loop stores vectors to the stack or reads them from there, its text is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.backends.c.layers import CHOSEN, Layer, every_layer
from tests.backends.c.toolchains import CLANG, COMMANDS, private_environment
from tests.helpers.assembly import assembly_of, inner_loops
from tests.helpers.program_batch import print_program
from treadle.backends.c.compiler import Unit
from treadle.target import TARGETS
from treadle.target.host import lacks

pytestmark = pytest.mark.skipif(bool(lacks("x86_64")), reason="registers of x86-64")
FOUND = {"gcc": COMMANDS.get("gcc"), "clang": CLANG}
COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(command is None, reason=f"no {name}"))
    for name, command in FOUND.items()
]


@cache
def units(target: str, *, every: bool = False) -> Mapping[str, Unit]:
    """The kernels of all layers by new names, which begin with their layers'."""
    layers: Mapping[str, Layer] = dict(every_layer()) if every else CHOSEN
    found: dict[str, Unit] = {}
    texts = set[str]()
    for title, layer in layers.items():
        module = layer.lowered(target)
        for unit in print_program(title, module, target, after="graph").kernels:
            name, text = re.sub(r"\W+", "_", f"{title} {unit.name}"), unit.decisive.replace(unit.name, "")
            if text not in texts:  # else compilers make one function of the two
                found[name] = replace(unit, name=name)
            texts.add(text)
    return found


def spilling(kernels: Mapping[str, Unit], compiler: str, target: str, folder: Path) -> list[str]:
    """The inner loops that have vectors on the stack, each with their places before its text."""
    text = assembly_of([*kernels.values()], private_environment(folder, FOUND[compiler]), TARGETS[target])
    loops = [loop for loop in inner_loops(text) if loop.computes]
    assert {loop.function for loop in loops} >= {name for name, unit in kernels.items() if "acc[" in unit.text}
    return [f"{', '.join(sorted(loop.spilled))} in {loop}" for loop in loops if loop.spilled]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_inner_loops_keep_their_vectors_in_registers(target: str, compiler: str, tmp_path: Path) -> None:
    found = spilling(units(target), compiler, target, tmp_path)
    assert not found, "\n\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("target", ["avx512", "avx2"])
def test_inner_loops_of_all_layers_keep_their_vectors_in_registers(target: str, compiler: str, tmp_path: Path) -> None:
    found = spilling(units(target, every=True), compiler, target, tmp_path)
    assert not found, "\n\n".join(found)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_tile_that_is_too_large_is_found(compiler: str, tmp_path: Path) -> None:
    """The tile of AVX-512, of a product without a known spill, with the 16 registers of AVX2."""
    wide = {name: unit for name, unit in units("avx512").items() if name.startswith("BERT_a_product")}
    kernels = {name: replace(unit, text=unit.text.replace("v16f", "v8f")) for name, unit in wide.items()}
    (found,) = spilling(kernels, compiler, "avx2", tmp_path)
    assert re.match(r"[-\d, (%rsp)]+ in BERT_a_product_unpack_matmul:\n", found)
    assert found.count("vfmadd") >= 24, "8 rows by 3 vectors"
