"""Random PyTorch modules: `torch.compile(backend="treadle")` must show a caller what PyTorch does.

A module is a text: views, writes through views, results that alias each other, on inputs that may overlap. Values are
small whole numbers and halves, which every order of summation gives exactly. `python -m tests.fuzz.torch_modules SEED
...` prints and repeats modules.
"""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import nn

from tests.frontends.torch.contract import assert_same

DTYPES = (torch.float32,) * 5 + (torch.float64, torch.int64, torch.int32, torch.bool, torch.float16, torch.bfloat16)
LARGEST = 1 << 10
"""Of magnitudes: floats of 16 bits have every whole number up to there."""
STEPS = 8
MODES: Sequence[Callable[[], Any]] = (torch.no_grad, torch.no_grad, torch.inference_mode, torch.enable_grad)

VIEWS = (
    "{a}.view(-1)", "{a}.t()", "{a}.transpose(0, -1)", "{a}[{i}]", "{a}[..., {i}:]", "{a}[::2]",
    "{a}.unsqueeze({i})", "{a}.squeeze()", "{a}.flatten()", "{a}.detach()", "{a}.expand(2, *{a}.shape)",
    "{a}.movedim(0, -1)", "{a}.mT", "{a}.diagonal()", "{a}.unfold(0, 2, 1)", "{a}.chunk(2, -1)[{i}]",
    "{a}.unbind(0)[{i}]", "{a}.split(1)[-1]", "{a}.view_as({a})", "{a}.narrow(-1, {i}, 1)", "{a}.reshape(-1, 2)",
    "torch.as_strided({a}, (2, 2), (1, 2))", "torch.as_strided({a}, (3,), (1,), {i})", "{a}.contiguous()",
    "{a}.data", "{a}.permute(*range({a}.dim())[::-1])",
)  # fmt: skip
WRITES = (
    "{a}.add_({n})", "{a}.mul_(2)", "{a}.neg_()", "{a}.copy_({b})", "{a}.zero_()", "{a}.add_({b})",
    "{a}.clamp_(max={n})", "{a}[{i}] = {n}", "{a}[..., {i}] = {b}", "{a}.view(-1)[::2].mul_(2)", "{a}.t_()",
    "{a}.unsqueeze_(0)", "{a}.squeeze_()", "{a}[{a} > {n}] = {i}", "{a}.data.add_({n})", "{a}.fill_({n})",
    "{a}.transpose_(0, -1)", "{a}.masked_fill_({a} > 0, {n})", "torch.add({a}, {b}, out={a})", "{a}.logical_not_()",
    "self.buffer.add_({n})", "self.buffer.copy_({a})",
)  # fmt: skip
VALUES = (
    "{a} + {b}", "{a} * {n}", "{a} - {b}", "torch.relu({a})", "{a}.sum()", "{a}.sum(-1)",
    "{a}.sum(0, keepdim=True)", "{a} @ {b}", "torch.cat([{a}, {b}])", "torch.where({a} > {n}, {a}, {b})",
    "{a}.clone()", "{a}.to({d})", "{a}.cumsum(0)", "{a}.amax(-1)", "{a}.sort(-1)", "{a}.flip(0)", "{a}.roll(1)",
    "torch.stack([{a}, {b}], -1)", "{a}.new_ones(2, 3)", "torch.zeros_like({a})",
    "{a}.repeat(2, *[1] * ({a}.dim() - 1))", "-{a}", "{a}.abs() // 2", "{a} + self.weight", "{a} * self.buffer",
    "{a}.bool()", "{a}.topk(1)", "torch.nan_to_num({a})", "{a}.tril()", "{a} % 3", "{a}.max()",
    "torch.empty_like({a}).copy_({b})", "torch.tensor([1, 2]) + {a}", "{a}.float().softmax(-1).sum(-1).round()",
    "{a}.contiguous(memory_format=torch.channels_last)", "torch.nn.functional.pad({a}, (1, {i}))",
    "{a}.index_select(0, torch.tensor([{i}, 0]))", "{a}.gather(0, torch.zeros_like({a}, dtype=torch.int64))",
)  # fmt: skip
RESULTS = ("({r},)", "[{r}]", "({r}, None)", "({r}, {a}.shape[0] if {a}.dim() else 0)", "dict(zip('abcdef', ({r},)))")


@dataclass(frozen=True)
class TorchCase:
    """A drawn module, its inputs, and how it is called."""

    text: str
    inputs: Sequence[torch.Tensor]
    mode: Callable[[], Any]
    dynamic: bool | None

    def module(self) -> nn.Module:
        return _module(self.text)

    def described(self) -> str:
        """The module's text, its inputs and its mode, as a reader repeats them."""
        layouts = [f"{tuple(x.shape)} {x.stride()} +{x.storage_offset()} {x.dtype}" for x in self.inputs]
        return f"{self.text}# {'; '.join(layouts)}; {self.mode.__name__}, dynamic={self.dynamic}"


def case_of_seed(seed: int) -> TorchCase:
    """The module of a seed, which PyTorch runs without an error."""
    random = Random(seed)
    while True:
        mode, dynamic = random.choice(MODES), random.choice((None, None, True, False))
        inputs = _inputs(random)
        with mode():
            text = _text(random, inputs)
            if text is not None:
                return TorchCase(text, inputs, mode, dynamic)


def check_case(case: TorchCase) -> str | None:
    """What differs from PyTorch, None if nothing does; what AOTAutograd alone gets wrong is not ours."""
    error = _difference(case, "treadle")
    return error if error is None or _difference(case, "aot_eager") is None else None


def findings(seeds: Sequence[int]) -> Iterator[str]:
    """A text for each seed with a difference."""
    for seed in seeds:
        case = case_of_seed(seed)
        error = check_case(case)
        if error is not None:
            yield f"torch seed {seed}: {error}\n{case.described()}"


def _difference(case: TorchCase, backend: str) -> str | None:
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # it prints what AOTAutograd refuses
    logging.getLogger("treadle").setLevel(logging.ERROR)
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager = case.module()
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, backend=backend, dynamic=case.dynamic)
    try:
        with case.mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(compiled, eager, case.inputs, "first call")
            for module in (eager, other):
                module.get_parameter("weight").data.mul_(-1)
            assert_same(compiled, eager, case.inputs, "after a change of the parameter")
            longer = [torch.cat([x, x]) if x.dim() else x for x in case.inputs]
            if _runs(copy.deepcopy(eager), longer):
                assert_same(compiled, eager, longer, "twice as long")
        torch.testing.assert_close(other.state_dict(), eager.state_dict())
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:1500]}"
    return None


def _module(text: str) -> nn.Module:
    names: dict[str, Any] = {"torch": torch, "nn": nn}
    exec(compile(text, "<drawn module>", "exec"), names)
    return names["Drawn"]()


def _inputs(random: Random) -> list[torch.Tensor]:
    """One to three tensors; some are views of one memory."""
    inputs = [_input(random)]
    for _ in range(random.choice((0, 1, 1, 2))):
        kind, last = random.randrange(8), inputs[-1]
        if kind == 0:
            inputs.append(last)
        elif kind == 1 and last.dim():
            inputs.append(last[random.randrange(2) :])
        elif kind == 2:
            inputs.append(_layout(random, _filled(random, last.shape, last.dtype)))
        else:
            inputs.append(_input(random))
    return inputs


def _input(random: Random) -> torch.Tensor:
    shape = [random.choice((0, 1, 2, 2, 3, 3, 4, 4)) for _ in range(random.choice((0, 1, 2, 2, 2, 3, 3, 4)))]
    return _layout(random, _filled(random, shape, random.choice(DTYPES)))


def _filled(random: Random, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(random.randrange(1 << 30))
    whole = torch.randint(-4, 5, tuple(shape), generator=generator)
    return whole.to(dtype) / 2 if dtype.is_floating_point else whole.to(dtype)


def _layout(random: Random, x: torch.Tensor) -> torch.Tensor:
    kind = random.randrange(8)
    if kind == 0 and x.dim():
        return x.repeat_interleave(2, -1)[..., ::2]
    if kind == 1 and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 2 and x.dim() == 4:
        return x.to(memory_format=torch.channels_last)
    if kind == 3 and x.dim():
        return torch.cat([x[:1], x])[1 if len(x) else 0 :]
    if kind == 4 and x.dim() and len(x):
        return x[:1].expand_as(x)
    return x


def _text(random: Random, inputs: Sequence[torch.Tensor]) -> str | None:
    """The text of a module that PyTorch runs for these inputs, None if too many steps failed."""
    names, lines = [f"x{n}" for n in range(len(inputs))], list[str]()
    arguments = ", ".join(names)
    for _ in range(STEPS * 3):
        kinds = random.choice((VIEWS, VIEWS, WRITES, VALUES, VALUES))
        line = _filled_in(random, random.choice(kinds), names)
        name = f"y{len(lines)}"
        if kinds is not WRITES:
            line = f"{name} = {line}{'[0]' if '.sort(' in line or '.topk(' in line else ''}"
        seen = ", ".join([*names, name] if kinds is not WRITES else names)
        if _runs(_module(_source(arguments, [*lines, line], f"({seen},)")), inputs):
            lines.append(line)
            names += [name] if kinds is not WRITES else []
        if len(lines) == STEPS:
            break
    if len(lines) < STEPS // 2:
        return None
    chosen = random.sample(names, min(len(names), random.choice((1, 2, 3, 4))))
    result = random.choice(RESULTS).format(r=", ".join(chosen), a=chosen[0])
    text = _source(arguments, lines, result)
    return text if _runs(_module(text), inputs) else None


def _filled_in(random: Random, pattern: str, names: Sequence[str]) -> str:
    recent = names[-3:] if random.random() < 0.6 else names
    a, b = random.choice(recent), random.choice(names)
    return pattern.format(
        a=a, b=b, n=random.choice((-2, -1, 1, 2, 3)), i=random.choice((0, 0, 1)), d=random.choice(DTYPES)
    )


def _source(arguments: str, lines: Sequence[str], result: str) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"""class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.register_buffer("buffer", torch.tensor([3.0, 0.5]))

    def forward(self, {arguments}):
{body}        return {result}
"""


def _runs(module: nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether PyTorch runs it, with values that no type rounds."""
    given = copy.deepcopy(list(inputs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = module(*given)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return False
    leaves = list(result.values()) if isinstance(result, dict) else list(result)
    tensors = [x for x in (*given, *leaves, module.get_buffer("buffer")) if isinstance(x, torch.Tensor)]
    return all(_exact(x) for x in tensors)


def _exact(x: torch.Tensor) -> bool:
    return not x.numel() or bool((x.detach().double().abs() <= LARGEST).all())


def main(arguments: Sequence[str]) -> int:
    """The exit status."""
    seeds, count = [int(each) for each in arguments], 0
    for seed in seeds if len(seeds) < 5 else ():
        print(case_of_seed(seed).described())
    for text in findings(seeds):
        print(text, flush=True)
        count += 1
    print(f"{len(seeds)} modules, {count} with findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
