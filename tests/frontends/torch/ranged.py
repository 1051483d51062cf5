"""Functions of PyTorch over ranges of shapes, against PyTorch in eager mode, by the definition of what was imported.

Before each call one of the largest shape leaves its values in all buffers, half of which are NaN where they are floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import CO_VARARGS
from itertools import islice, product
from typing import Any, cast

import numpy as np
import torch
from torch.utils._sympy.value_ranges import ValueRanges
from xdsl.dialects.builtin import ModuleOp

from tests.helpers.ranged_model import binding_of
from treadle.backends.reference.run_module import evaluate_module, find_function
from treadle.frontends.torch import exported, import_exported
from treadle.shapes.dim import parse_dim

Extents = Mapping[Any, int]


@dataclass
class Ranged:
    """A module exported with all extents open that it leaves open, each up to `most`."""

    module: torch.nn.Module
    examples: Sequence[torch.Tensor]
    most: int = 9
    least: int = 2
    """Below 2: as a range of the export's own would begin, where PyTorch takes 0 and 1 for cases of their own."""
    dims: Sequence[Sequence[int]] | None = None
    """Of each example those that are left open; None: all."""

    def __post_init__(self) -> None:
        auto = torch.export.Dim.AUTO
        open_dims = [range(x.dim()) for x in self.examples] if self.dims is None else self.dims
        each = tuple(dict.fromkeys(dims, auto) for dims in open_dims)
        variadic = bool(type(self.module).forward.__code__.co_flags & CO_VARARGS)
        dynamic = (each,) if variadic else each
        self.program: Any = exported(self.module.eval(), self.examples, dynamic)
        for symbol, known in self.program.range_constraints.items():
            least = min(self.least, int(known.lower)) if self.least < 2 else max(self.least, int(known.lower))
            self.program.range_constraints[symbol] = ValueRanges(least, min(self.most, known.upper))
        user = set(self.program.graph_signature.user_inputs)
        self.shapes = [
            n.meta["val"].shape for n in self.program.graph.nodes if n.op == "placeholder" and n.name in user
        ]
        self.symbols = sorted({s for shape in self.shapes for e in shape for s in _free(e)}, key=str)

    def imported(self) -> ModuleOp:
        """What the importer gives. Raises what it raises."""
        return import_exported(self.program)

    def calls(self, count: int) -> Iterable[Extents]:
        """The largest, the least, and some values of the symbols in between."""
        ranges = [self.program.range_constraints[s] for s in self.symbols]
        ends = [[int(r.upper), int(r.lower), min(int(r.lower) + 1, int(r.upper))] for r in ranges]
        return islice((dict(zip(self.symbols, each, strict=True)) for each in product(*ends)), count)

    def inputs(self, extents: Extents, poisoned: bool = False) -> list[torch.Tensor]:
        """The examples, repeated and cut off."""
        found: list[torch.Tensor] = []
        for x, shape in zip(self.examples, self.shapes, strict=True):
            for d, extent in enumerate(shape):
                wanted = int(extent.node.expr.subs(extents)) if _free(extent) else int(extent)
                if wanted != x.shape[d]:
                    x = torch.cat([x] * (wanted // x.shape[d] + 1), d).narrow(d, 0, wanted)
            if poisoned and x.is_floating_point():
                x = torch.where(torch.rand(x.shape) < 0.5, torch.nan, x)
            found.append(x.contiguous())
        return found

    def check(self, count: int = 6, limit: float = 1e-5) -> None:
        """Compares calls by the definition of what was imported."""
        module = self.imported()
        main = find_function(module, "main")
        dims = [parse_dim(text.data) for text in main.attributes["symbols"]]  # pyright: ignore
        binding = binding_of(main, dims)
        poison = [x.numpy() for x in self.inputs(next(iter(self.calls(1))), poisoned=True)]
        for call in self.calls(count):
            binding.arguments(poison, binding.bind(poison))
            given = self.inputs(call)
            arrays = [x.numpy() for x in given]
            bound = binding.bind(arrays)
            with np.errstate(all="ignore"):
                got = binding.results(evaluate_module(module, binding.arguments(arrays, bound)), bound)
            with torch.no_grad():
                expected = self.module(*given)
            compare(got, expected, limit, str(call))


def compare(got: Sequence[np.ndarray], expected: Any, limit: float, name: str) -> None:
    """AssertionError unless results are PyTorch's."""
    wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for mine, other in zip(got, wanted, strict=True):
        right = other.detach().numpy()
        assert (mine.shape, mine.dtype) == (right.shape, right.dtype), name
        if right.dtype.kind == "f":
            np.testing.assert_allclose(mine, right, rtol=limit, atol=limit, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, right, name)


def _free(extent: object) -> set[Any]:
    return set(cast("Any", extent).node.expr.free_symbols) if isinstance(extent, torch.SymInt) else set()


__all__ = ["Extents", "Ranged", "compare"]
