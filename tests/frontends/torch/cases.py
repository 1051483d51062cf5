"""Cases for every converter: functions of tensors, and inputs on which PyTorch itself is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

aten: Any = torch.ops.aten


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The function's result."""
        return self.function(*inputs)


@dataclass(frozen=True)
class Case:
    """A function and its inputs."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _integers(*shape: int, low: int = -9, high: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


X, Y, POSITIVE = _random(3, 4, 5), _random(4, 5, seed=1), _random(3, 4, 5).abs() + 0.1
UNIT = torch.tanh(X)
N, M = _integers(3, 4, 5), _integers(4, 5, low=1, seed=1)
B, C = _random(3, 4, 5, seed=2) > 0, _random(4, 5, seed=3) > 0
IMAGE, VOLUME, LINE = _random(2, 4, 7, 6), _random(1, 2, 5, 4, 6), _random(2, 3, 9)
MATRIX, SECOND = _random(6, 5), _random(5, 7, seed=1)
INDEX = torch.tensor([2, 0, -1, 1])
FIRST = torch.tensor([0])
BYTES = torch.arange(-640, 640, dtype=torch.int32).to(torch.int8).reshape(40, 32)
SMALL, SCALES = (_random(48, 32), _random(16, 32, seed=1)), (_random(48, 1).abs(), _random(1, 16).abs())
MANY = (torch.arange(5000) * 7919 % 5003).float()  # all different: 5003 is a prime

_OF_ANY = (
    "abs", "asinh", "atan", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1", "floor", "isinf", "isnan",
    "logical_not", "neg", "reciprocal", "relu", "round", "sigmoid", "sign", "sin", "sinh", "tan", "tanh", "trunc",
)  # fmt: skip
_UNARY: dict[str, torch.Tensor] = {
    **dict.fromkeys(_OF_ANY, X),
    **dict.fromkeys(("log", "log10", "log1p", "log2", "rsqrt", "sqrt"), POSITIVE),
    **dict.fromkeys(("acos", "asin", "atanh"), UNIT),
    "acosh": POSITIVE + 1,
    "bitwise_not": N,
}
_OF_INTEGERS = ("abs", "ceil", "exp", "logical_not", "neg", "relu", "sign", "sqrt", "trunc", "isnan")

_BINARY = (
    "add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "remainder", "fmod", "rsub",
)  # fmt: skip
_BETWEEN_TENSORS = ("maximum", "minimum", "logical_and", "logical_or", "logical_xor")
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")


def _unary() -> list[Case]:
    cases = [Case(name, getattr(aten, name).default, (x,)) for name, x in _UNARY.items()]
    return cases + [Case(f"{name} of integers", getattr(aten, name).default, (N.abs(),)) for name in _OF_INTEGERS]


def _binary() -> list[Case]:
    cases: list[Case] = []
    for name in _BINARY:
        operator = getattr(aten, name)
        cases.append(Case(name, operator.Tensor, (X, Y)))
        cases.append(Case(f"{name} of integers", operator.Tensor, (N, M)))
        cases.append(Case(f"{name} of both", operator.Tensor, (N, Y)))
        cases.append(Case(f"{name} with a number", lambda x, f=operator: f.Scalar(x, 1.5), (X,)))
    cases += [Case(name, getattr(aten, name).default, (X, Y)) for name in _BETWEEN_TENSORS]
    cases += [Case(name, getattr(aten, name).Tensor, (N, M)) for name in _BITS]
    cases += [Case(f"{name} with a number", lambda x, n=name: getattr(aten, n).Scalar(x, 6), (N,)) for name in _BITS]
    return cases + [Case(f"{name} of bools", getattr(aten, name).Tensor, (B, C)) for name in ("add", "mul", "lt", "eq")]


ELEMENTWISE = [
    *_unary(), *_binary(),
    Case("add with alpha", lambda x, y: torch.add(x, y, alpha=2), (X, Y)),
    Case("div floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), (X, Y)),
    Case("div trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (N, M)),
    Case("div mode of a number", lambda x: aten.div.Scalar_mode(x, 2, rounding_mode="floor"), (N,)),
    Case("floor_divide", lambda x, y: aten.floor_divide.default(x, y), (N, M)),
    Case("pow", torch.pow, (POSITIVE, Y)),
    Case("pow of integers", lambda x: x**3, (N,)),
    Case("square", lambda x: x**2, (X,)),
    Case("root", lambda x: x**0.5, (POSITIVE,)),
    Case("pow of a number", lambda x: 2**x, (X,)),
    Case("where", torch.where, (B, X, Y)),
    Case("masked_fill", lambda x, m: x.masked_fill(m, -2), (X, B)),
    Case("masked_fill of a tensor", lambda x, m, v: x.masked_fill(m, v), (X, B, torch.tensor(3.0))),
    Case("clamp", lambda x: x.clamp(-0.5, 0.75), (X,)),
    Case("clamp of tensors", lambda x, y: torch.clamp(x, min=y), (X, Y)),
    Case("clamp of integers", lambda x: x.clamp(max=2), (N,)),
    Case("hardtanh", F.hardtanh, (X,)),
    Case("hardswish", F.hardswish, (X,)),
    Case("leaky_relu", F.leaky_relu, (X,)),
    Case("elu", F.elu, (X,)),
    Case("selu", F.selu, (X,)),
    Case("silu", F.silu, (X,)),
    Case("mish", F.mish, (X,)),
    Case("softplus", F.softplus, (X,)),
    Case("gelu", F.gelu, (X,)),
    Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (X,)),
    Case("prelu", lambda x, w: F.prelu(x, w), (IMAGE, torch.tensor([0.1, 0.2, 0.3, 0.4]))),
    Case("to", lambda x: x.to(torch.int32), (X * 5,)),
    Case("to of bools", lambda x: x.to(torch.float32), (B,)),
    Case("as_strided", lambda x: torch.as_strided(x + 1, (2, 2, 3), (1, 2, 0), 1), (X,)),
    Case("as_strided, all", lambda x: torch.as_strided(x + 1, (1, x.numel()), (7, 1)), (X,)),
    Case("alias", lambda x: torch.ops.aten.alias.default(x) + 1, (X,)),
    Case("clone", lambda x: x.clone() + x.detach(), (X,)),
]  # fmt: skip

CREATION = [
    Case("full", lambda x: x + torch.full((5,), 2.5), (X,)),
    Case("full_like", lambda x: x + torch.full_like(x, 2), (X,)),
    Case("scalar_tensor", lambda x: x * aten.scalar_tensor.default(3.0), (X,)),
    Case("zeros", lambda x: x + torch.zeros_like(x) + torch.zeros(5) + x.new_zeros(5), (X,)),
    Case("ones", lambda x: x + torch.ones_like(x) + torch.ones(5) + x.new_ones(5), (X,)),
    Case("empty", lambda x: x + torch.empty_like(x).fill_(1), (X,)),
    Case("a tensor in the model", lambda x: x + torch.tensor([1.0, 2, 3, 4, 5]), (X,)),
    Case("arange", lambda x: x + torch.arange(0, 10, 2), (X,)),
    Case("tril", lambda x: torch.tril(x) + torch.triu(x, 1) * 2, (X,)),
]

MOVEMENT = [
    Case("view", lambda x: x.view(12, 5).reshape(5, -1).flatten(), (X,)),
    Case("squeeze", lambda x: x.unsqueeze(1).squeeze(1).unsqueeze(0).squeeze(), (X,)),
    Case("squeeze of two", lambda x: x[None, None].squeeze((0, 1)), (X,)),
    Case("permute", lambda x: x.permute(2, 0, 1), (X,)),
    Case("transpose", lambda x: x.transpose(0, -1), (X,)),
    Case("t", lambda x: x.t(), (MATRIX,)),
    Case("expand", lambda x: x.expand(2, -1, -1), (Y,)),
    Case("repeat", lambda x: x.repeat(2, 1, 3), (Y,)),
    Case("cat", lambda x, y: torch.cat([x, x.new_zeros(0), y], -1), (MATRIX, _random(6, 2))),
    Case("stack", lambda x, y: torch.stack([x, y], 1), (X, X + 1)),
    Case("split", lambda x: x.split(2, -1)[2] + x.chunk(2, -1)[1][..., :1], (X,)),
    Case("split with sizes", lambda x: x.split([1, 3, 1], -1)[1], (X,)),
    Case("unbind", lambda x: x.unbind(1)[2], (X,)),
    Case("slice", lambda x: x[:, 1:-1, ::2], (X,)),
    Case("slice beyond", lambda x: x[:, 2:99], (X,)),
    Case("select", lambda x: x[:, -1], (X,)),
    Case("select_scatter", lambda x, y: torch.select_scatter(x, y, 0, 1), (X, Y)),
    Case("slice_scatter", lambda x, y: torch.slice_scatter(x, y, 0, 1, 2), (X, Y[None])),
    Case("slice_scatter in steps", lambda x, y: torch.slice_scatter(x, y, 2, 1, 5, 2), (X, _random(3, 4, 2))),
    Case("assignment", lambda x: _assigned(x), (X,)),
    Case("flip", lambda x: x.flip(0, 2), (X,)),
    Case("roll", lambda x: torch.roll(x, (1, -2), (0, 2)) + torch.roll(x, 7), (X,)),
    Case("unfold", lambda x: x.unfold(2, 3, 2), (X,)),
    Case("unfold of a number", lambda x: x.unfold(0, 1, 1) + 1, (X[0, 0, 0],)),
    Case("unfold of a number to nothing", lambda x: x.unfold(0, 0, 1), (X[0, 0, 0],)),
    Case("im2col", lambda x: F.unfold(x, 3, padding=1), (IMAGE,)),
    Case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (IMAGE,)),
    Case("pixel_unshuffle", lambda x: F.pixel_unshuffle(x[..., :6, :], 2), (IMAGE,)),
    Case("pad", lambda x: F.pad(x, (1, -1, 2, 0), value=1.5), (IMAGE,)),
    Case("pad reflect", lambda x: F.pad(x, (1, 2, 0, 1), mode="reflect"), (IMAGE,)),
    Case("pad reflect of a line", lambda x: F.pad(x, (1, 2), mode="reflect"), (LINE,)),
    Case("pad replicate of a line", lambda x: F.pad(x, (1, 2), mode="replicate"), (LINE,)),
    Case("pad reflect of a volume", lambda x: F.pad(x, (1, 2, 1, 1, 0, 1), mode="reflect"), (VOLUME,)),
    Case("pad replicate of a volume", lambda x: F.pad(x, (1, 2, 1, 1, 0, 1), mode="replicate"), (VOLUME,)),
    Case("pad replicate", lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), (IMAGE,)),
    Case("pad circular", lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"), (IMAGE,)),
    Case("as a matrix", lambda x: aten.view.default(x, [3, 20]), (X,)),
    Case("repeat_interleave", lambda x: x.repeat_interleave(3, 1), (X,)),
]


def _assigned(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1] = 2.0
    y[..., 2:4] *= 3
    return y


def _product_of_small_floats(x: torch.Tensor, w: torch.Tensor, *scales: torch.Tensor, bias: bool = False) -> Any:
    """PyTorch has no such product of float64: the one of the same numbers."""
    a, b = x.float().to(torch.float8_e4m3fn), w.float().to(torch.float8_e4m3fn)
    added = (w[:, 0].bfloat16(),) if bias else ()
    if x.dtype == torch.float64:
        return (a.double() @ b.double().T) * scales[0] * scales[1] + sum(each.double() for each in added)
    result = aten._scaled_mm.default(a, b.T, *scales, *added, out_dtype=torch.bfloat16 if bias else torch.float32)
    return result.float()


def _product_of_bytes(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of 8 bits, a scale for each row of them; in float64 by its definition."""
    if x.dtype == torch.float64:
        return x @ w.double().T * scales
    return aten._weight_int8pack_mm.default(x, w, scales)


LINEAR = [
    Case("_int_mm", aten._int_mm.default, (BYTES[:17], BYTES[:16].T.contiguous())),
    Case("_weight_int8pack_mm", _product_of_bytes, (_random(3, 32), BYTES, _random(40).abs())),
    Case("_scaled_mm", _product_of_small_floats, (*SMALL, torch.tensor(0.5), torch.tensor(3.0))),
    Case("_scaled_mm by rows and columns", _product_of_small_floats, (*SMALL, *SCALES)),
    Case("_scaled_mm with a bias", lambda *x: _product_of_small_floats(*x, bias=True), (*SMALL, *SCALES)),
    Case("mm", torch.mm, (MATRIX, SECOND)),
    Case("bmm", torch.bmm, (X, X.transpose(1, 2).contiguous())),
    Case("mv", lambda a, b: torch.mv(a, b), (MATRIX, SECOND[:, 0])),
    Case("dot", lambda a, b: torch.dot(a, b), (MATRIX[0], SECOND[:, 0])),
    Case("matmul", torch.matmul, (X, SECOND)),
    Case("matmul of vectors", torch.matmul, (X, SECOND[:, 0])),
    Case("linear", F.linear, (X, SECOND.t().contiguous(), SECOND[0])),
    Case("addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (_random(7), MATRIX, SECOND)),
    Case("baddbmm", lambda c, a, b: torch.baddbmm(c, a, b), (torch.ones(4), X, X.transpose(1, 2).contiguous())),
    Case("einsum", lambda a, b: torch.einsum("bij,jk->bki", a, b), (X, SECOND)),
    Case("conv1d", lambda x, w: F.conv1d(x, w, stride=2, padding=1), (LINE, _random(4, 3, 3))),
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, (1, 2), (1, 0)), (IMAGE, _random(6, 4, 3, 2), _random(6))),
    Case("conv2d in groups", lambda x, w: F.conv2d(x, w, groups=2, dilation=2), (IMAGE, _random(6, 2, 3, 2))),
    Case("conv2d same", lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, _random(6, 4, 3, 2))),
    Case("conv2d of one", lambda x, w: F.conv2d(x, w), (IMAGE[0], _random(6, 4, 3, 2))),
    Case("conv3d", lambda x, w: F.conv3d(x, w, padding=1), (VOLUME, _random(3, 2, 3, 3, 3))),
    Case("conv_transpose2d", lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
         (IMAGE, _random(4, 3, 3, 3))),
]  # fmt: skip

NORMALIZATION = [
    Case("layer_norm", lambda x, w: F.layer_norm(x, (4, 5), w, w + 1), (X, Y)),
    Case("layer_norm without parameters", lambda x: F.layer_norm(x, (5,)), (X,)),
    Case("rms_norm", lambda x, w: F.rms_norm(x, (5,), w, 1e-6), (X, Y[0])),
    Case("batch_norm", lambda x, m, w: F.batch_norm(x, m, m.abs() + 0.5, w, w + 1), (IMAGE, Y[:, 0], Y[:, 1])),
    Case("batch_norm without parameters", lambda x, m: F.batch_norm(x, m, m.abs() + 0.5), (IMAGE, Y[:, 0])),
    Case("instance_norm", lambda x: F.instance_norm(x), (IMAGE,)),
    Case("group_norm", lambda x, w: F.group_norm(x, 2, w, w + 1), (IMAGE, Y[:, 0])),
    Case("softmax", lambda x: F.softmax(x, 1), (X,)),
    Case("log_softmax", lambda x: F.log_softmax(x, -1), (X,)),
    Case("normalize", lambda x: F.normalize(x, dim=1), (X,)),
]

POOL = [
    Case("max_pool1d", lambda x: F.max_pool1d(x, 3, 2), (LINE,)),
    Case("max_pool2d", lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    Case("max_pool2d ceil", lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True), (IMAGE,)),
    Case("max_pool2d of one", lambda x: F.max_pool2d(x, 2), (IMAGE[0],)),
    Case("max_pool3d", lambda x: F.max_pool3d(x, 2), (VOLUME,)),
    Case("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2, 1), (LINE,)),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    Case("avg_pool2d ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE,)),
    Case("avg_pool2d without pads", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGE,)),
    Case("avg_pool2d by 4", lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=4), (IMAGE,)),
    Case("avg_pool3d", lambda x: F.avg_pool3d(x, 2), (VOLUME,)),
    Case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 4), (LINE,)),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (IMAGE,)),
    Case("adaptive_avg_pool2d to 1", lambda x: F.adaptive_avg_pool2d(x, 1), (IMAGE,)),
    Case("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)), (VOLUME,)),
    Case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (3, 4)), (IMAGE,)),
    Case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)), (VOLUME,)),
]

REDUCTION = [
    *(Case(name, lambda x, n=name: getattr(torch, n)(x), (X,)) for name in ("sum", "mean", "prod", "max", "min")),
    *(Case(name, lambda x, n=name: getattr(torch, n)(x, (0, -1), keepdim=True), (X,)) for name in ("amax", "amin")),
    *(Case(name, lambda x, n=name: getattr(torch, n)(x), (B,)) for name in ("any", "all")),
    *(Case(f"{name} of one", lambda x, n=name: getattr(torch, n)(x, 1), (N,)) for name in ("any", "all", "prod")),
    *(Case(f"{name} of two", lambda x, n=name: getattr(torch, n)(x, (0, 1)), (B,)) for name in ("any", "all")),
    Case("amax of all", lambda x: torch.amax(x) - torch.amin(x), (X,)),
    Case("sum of bools", lambda x: x.sum((0, 1)), (B,)),
    Case("mean of one", lambda x: x.mean(1, keepdim=True), (X,)),
    Case("var", lambda x: x.var((0, 2)), (X,)),
    Case("std", lambda x: x.std(-1, correction=0, keepdim=True), (X,)),
    Case("logsumexp", lambda x: torch.logsumexp(x, 1), (X,)),
    Case("norm", lambda x: x.norm(dim=-1), (X,)),
    Case("norm of magnitudes", lambda x: x.norm(1, dim=0) + x.norm(float("inf"), dim=0), (X,)),
    Case("argmax", lambda x: x.argmax(1), (N,)),
    Case("argmin of all", lambda x: x.argmin(), (X,)),
    Case("max with positions", lambda x: x.max(1), (N,)),
    Case("min with positions", lambda x: x.min(-1, keepdim=True), (X,)),
    Case("cumsum", lambda x: x.cumsum(1), (X,)),
    Case("cumsum of integers", lambda x: x.to(torch.int32).cumsum(-1), (N,)),
    Case("cumprod", lambda x: x.cumprod(-1), (X,)),
    Case("topk", lambda x: x.topk(3, 1), (X,)),
    Case("sort", lambda x: x.sort(-1, descending=True), (X,)),
    Case("sort of more than is folded", torch.sort, (MANY,)),
    Case("sort stable", lambda x: torch.sort(x, dim=1, stable=True), (N,)),
]

_NEAREST = (("upsample_", ""), ("_upsample_", "_exact"))


def _resized(name: str, x: torch.Tensor, *size: int, flags: tuple[object, ...] = ()) -> Case:
    """An operator as AOTAutograd writes it."""
    text = "".join(f" {each}" for each in flags)
    return Case(f"{name}{text}", lambda x: getattr(aten, name).default(x, size, *flags), (x,))


RESIZE = [
    Case("nearest", lambda x: F.interpolate(x, scale_factor=2), (IMAGE,)),
    Case("nearest to a size", lambda x: F.interpolate(x, (10, 4)), (IMAGE,)),
    Case("nearest of a line", lambda x: F.interpolate(x, scale_factor=1.5), (LINE,)),
    Case("nearest of a volume", lambda x: F.interpolate(x, scale_factor=2), (VOLUME,)),
    Case("nearest exact", lambda x: F.interpolate(x, (10, 4), mode="nearest-exact"), (IMAGE,)),
    Case("nearest exact of a line", lambda x: F.interpolate(x, 5, mode="nearest-exact"), (LINE,)),
    Case("nearest exact of a volume", lambda x: F.interpolate(x, (3, 5, 4), mode="nearest-exact"), (VOLUME,)),
    Case("linear resize", lambda x: F.interpolate(x, 14, mode="linear"), (LINE,)),
    Case("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (IMAGE,)),
    Case("bilinear corners", lambda x: F.interpolate(x, (10, 9), mode="bilinear", align_corners=True), (IMAGE,)),
    Case("bilinear to a smaller size", lambda x: F.interpolate(x, (3, 4), mode="bilinear"), (IMAGE,)),
    Case("trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (VOLUME,)),
    Case("bicubic", lambda x: F.interpolate(x, (10, 9), mode="bicubic"), (IMAGE,)),
    Case("bilinear antialias", lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), (IMAGE,)),
    Case("bicubic antialias", lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True), (IMAGE,)),
    *(_resized(f"{kind}nearest{exact}1d", LINE, 13) for kind, exact in _NEAREST),
    *(_resized(f"{kind}nearest{exact}2d", IMAGE, 10, 4) for kind, exact in _NEAREST),
    *(_resized(f"{kind}nearest{exact}3d", VOLUME, 3, 5, 4) for kind, exact in _NEAREST),
    _resized("upsample_linear1d", LINE, 13, flags=(False,)),
    *(_resized(f"upsample_{kind}2d", IMAGE, 10, 9, flags=(True,)) for kind in ("bilinear", "bicubic")),
    *(_resized(f"_upsample_{kind}2d_aa", IMAGE, 3, 4, flags=(False,)) for kind in ("bilinear", "bicubic")),
    _resized("upsample_trilinear3d", VOLUME, 7, 8, 9, flags=(False,)),
    _resized("upsample_bilinear2d", IMAGE, 10, 9, flags=(False, 1.5, 1.5)),
]

INDEXING = [
    Case("embedding", lambda i, w: F.embedding(i, w), (torch.tensor([[0, 5], [2, 3]]), MATRIX)),
    Case("index_select of a number", lambda x, i: x.index_select(0, i), (X[0, 0, 0], FIRST)),
    Case("index_select", lambda x, i: x.index_select(1, i.abs()), (X, INDEX)),
    Case("gather", lambda x, i: x.gather(1, i), (X, _integers(3, 2, 5, low=0, high=4))),
    Case("index", lambda x, i: x[:, i], (X, INDEX)),
    Case("index by two", lambda x, i: x[:, i, i], (X, INDEX)),
    Case("index apart", lambda x, i: x[i[:3], :, i[:3]], (X, INDEX)),
    Case("index by a column and a row", lambda x, i: x[i[:3, None] % 3, i], (X, INDEX)),
    Case("index_put", lambda x, i, v: x.index_put((i[:3],), v), (X, INDEX, Y)),
    Case("index_copy of two", lambda x, i, y: x.index_copy(1, i[:2], y), (X, INDEX, _random(3, 2, 5))),
    Case("index_copy of a number", lambda x: x.index_copy(0, FIRST, x * 2), (torch.tensor(3.0),)),
    Case("index_put apart", lambda x, i, v: _put(x, i[:2], v), (X, INDEX, _random(2, 4))),
    Case("index_put inside", lambda x, i, v: _put_inside(x, i[:2], v), (X, INDEX, _random(3, 2, 5))),
    Case("index_put added", lambda x, i, v: x.index_put((i,), v, accumulate=True), (Y, INDEX % 2, _random(4, 5))),
    Case("masked assignment", lambda x, m: _masked(x, m), (X, B)),
    Case("index_copy", lambda x, y: x.index_copy(1, torch.tensor([2, 0]), y), (X, _random(3, 2, 5, seed=6))),
        Case("scatter", lambda x, i, s: x.scatter(1, i, s), (X, torch.tensor([[[3], [1]]]).expand(2, 2, 3), X + 1)),
    Case("scatter of a number", lambda x, i: x.scatter(2, i, 1.5), (X, _integers(3, 4, 1, low=0, high=5))),
    Case("scatter_add of conditions", lambda x, i, s: x.scatter_add(1, i, s),
         (B, _integers(3, 4, 5, low=0, high=4), B)),
    Case("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), (X, _integers(3, 4, 5, low=0, high=4), X)),
    Case("scatter_reduce", lambda x, i, s: x.scatter_reduce(1, i, s, "amax"),
         (X, _integers(3, 4, 5, low=0, high=4), X + 1)),
    Case("scatter with a product", lambda x, i, s: x.scatter_reduce(1, i, s, "prod"),
         (X, _integers(3, 2, 5, low=0, high=4), X)),
    Case("one_hot", lambda i: F.one_hot(i, 6), (INDEX.abs(),)),
]  # fmt: skip


def _put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[i, :, i] = v
    return y


def _put_inside(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, i] = v
    return y


def _masked(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[m] = -1.0
    return y


Q, K, V = _random(2, 4, 6, 8), _random(2, 4, 7, 8, seed=1), _random(2, 4, 7, 5, seed=2)
sdpa = F.scaled_dot_product_attention

ATTENTION = [
    Case("attention", sdpa, (Q, K, V)),
    Case("attention causal", lambda q: sdpa(q, q, q, is_causal=True), (Q,)),
    Case("attention causal of a longer key", lambda q, k, v: sdpa(q, k, v, is_causal=True), (Q, K, V)),
    Case("attention with a mask", lambda q, k, v, m: sdpa(q, k, v, m), (Q, K, V, _random(6, 7) > 0)),
    Case("attention with a sum", lambda q, k, v, m: sdpa(q, k, v, m, scale=0.5), (Q, K, V, _random(2, 1, 6, 7))),
    Case("attention in groups", lambda q, k, v: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True), (Q, K, V)),
    Case("attention of rank 3", lambda q, k, v: sdpa(q[0], k[0], v[0]), (Q, K, V)),
]


# Mixtures of experts, as transformers computes them: rows sorted by their expert, and up to which row each has its own.


def _grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    y, start = x.new_zeros(x.shape[0], w.shape[2]), 0
    for n, end in enumerate(ends.tolist()):
        y[start:end] = x[start:end] @ w[n]
        start = max(start, end)
    return y


if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
    schema = "(Tensor input, Tensor weight, Tensor offs) -> Tensor"
    library: Any = torch.library
    grouped = library.custom_op("transformers::grouped_mm_fallback", _grouped, mutates_args=(), schema=schema)
    grouped.register_fake(lambda x, w, ends: x.new_empty(x.shape[0], w.shape[2]))


def _experts(name: str, rows: int, *ends: int) -> Case:
    """Without `ends`, each second matrix has two rows, as long as there are some, and the others none."""
    count = len(ends) or 40
    offsets = torch.tensor(ends or [min(rows, n // 2 * 2) for n in range(count)], dtype=torch.int32)
    fallback: Any = torch.ops.transformers.grouped_mm_fallback
    return Case(name, fallback, (_random(rows, 8), _random(count, 8, 12, seed=1), offsets))


def _own_product(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """PyTorch's own is one of bf16 while exporting."""
    narrow, matrices = x.bfloat16(), w.bfloat16()
    if x.dtype == torch.float64:
        return _grouped(narrow.double(), matrices.double(), ends)
    return aten._grouped_mm(narrow, matrices, ends).float()


EXPERTS = [
    Case("histc", lambda x: torch.histc(x, 7, 0, 6), (_integers(40, low=-2, high=9).float(),)),
    Case("histc of fractions", lambda x: torch.histc(x, 5, -1.5, 1.0), (X,)),
    _experts("experts with all rows", 6, 2, 2, 5),
    _experts("experts of a row each", 7),
    _experts("experts in blocks", 200, *(5 * n for n in range(40)), 200),
    _experts("experts that leave rows out", 60, *([1] * 30), 50),
    Case("grouped product", _own_product, (_random(6, 8), _random(3, 8, 16, seed=1), torch.tensor([1, 4, 6]).int())),
]

_GRID = 1.3 * torch.tanh(_random(2, 5, 4, 2, seed=4))


def _sampled(mode: str, padding: str, corners: bool = False) -> Case:
    name = f"grid_sample {mode} {padding}{' corners' * corners}"
    return Case(name, lambda x, g: F.grid_sample(x, g, mode, padding, corners), (IMAGE, _GRID))


SAMPLING = [
    _sampled("bilinear", "zeros"),
    _sampled("bilinear", "border", corners=True),
    _sampled("nearest", "reflection"),
    _sampled("bicubic", "zeros"),
    Case("grid_sampler_2d", lambda x, g: aten.grid_sampler_2d(x, g, 0, 2, False), (IMAGE, _GRID)),
    Case("grid_sampler_3d", lambda x, g: aten.grid_sampler_3d(x, g, 0, 1, True),
         (VOLUME, torch.tanh(_random(1, 3, 2, 4, 3, seed=5)))),
]  # fmt: skip

CASES = [
    *ELEMENTWISE, *CREATION, *MOVEMENT, *LINEAR, *NORMALIZATION, *POOL, *REDUCTION, *RESIZE, *INDEXING, *ATTENTION,
    *EXPERTS, *SAMPLING,
]  # fmt: skip
