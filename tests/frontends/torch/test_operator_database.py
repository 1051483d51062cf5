"""PyTorch's own database of operators and sample inputs, through `torch.compile(backend="treadle")`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._pytree import tree_flatten, tree_unflatten  # noqa: E402

from tests.frontends.torch.contract import assert_same  # noqa: E402
from treadle.torch_backend import treadle as backend  # noqa: E402

PARTS = 24
SAMPLES = {torch.float32: 2, torch.int64: 1, torch.bool: 1}
"""Of each operator, by the type of its inputs."""
UNDEFINED = "its elements are whatever the memory held"
LEFT_OUT = {
    **dict.fromkeys(("empty", "empty_like", "empty_permuted", "empty_strided"), UNDEFINED),
    **dict.fromkeys(("new_empty", "new_empty_strided"), UNDEFINED),
    "topk": "which of equal elements it takes, and its samples of integers have some",
    "to_sparse": "a result without memory of its own",
    "hash_tensor": "unsigned integers, which PyTorch does not add",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "PyTorch computes other strides than it infers",
}

pytestmark = pytest.mark.slow


def samples(part: int) -> Iterator[tuple[str, Callable[..., Any], Sequence[Any]]]:
    """For every `PARTS`th operator functions of tensors alone, each with its inputs; what PyTorch itself refuses is
    left out."""
    database: Any = import_module("torch.testing._internal.common_methods_invocations")  # seconds, for slow tests only
    for operator in database.op_db[part::PARTS]:
        if operator.name in LEFT_OUT:
            continue
        for dtype, count in SAMPLES.items():
            if dtype not in operator.supported_dtypes("cpu"):
                continue
            found = list(operator.sample_inputs("cpu", dtype))
            for n in range(0, len(found), -(-len(found) // count)):
                function, inputs = function_of(operator.op, found[n])
                if runs(function, inputs):
                    yield f"{operator.formatted_name} {dtype} {n}", function, inputs


def function_of(operator: Callable[..., Any], sample: Any) -> tuple[Callable[..., Any], list[Any]]:
    leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: Any) -> Any:
        given = list(leaves)
        for n, tensor in zip(places, tensors, strict=True):
            given[n] = tensor
        first, rest, named = tree_unflatten(given, structure)
        torch.manual_seed(0)
        return operator(first, *rest, **named)

    return function, [leaves[n] for n in places]


def runs(function: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    try:
        function(*copy.deepcopy(list(inputs)))
    except Exception:  # whatever PyTorch refuses here
        return False
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_show_what_they_do_in_pytorch(part: int) -> None:
    pytest.importorskip("expecttest", reason="PyTorch's database imports it")
    wrong: list[str] = []
    compared = 0
    with torch.no_grad():
        for name, function, inputs in samples(part):
            torch._dynamo.reset()
            compared += 1
            try:
                assert_same(torch.compile(function, backend=backend), function, inputs, name)
            except Exception as error:  # the other operators of the part are compared, too
                wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert compared
    assert not wrong, "\n".join(wrong)
