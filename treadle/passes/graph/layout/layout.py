"""Layouts of tensors, and definitions under them: the index map of an operator is rewritten, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, prod
from typing import TypeVar

import numpy as np
from xdsl.dialects.builtin import IndexType, StringAttr, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import (
    AtOp,
    ComputeOp,
    ConvOp,
    Operator,
    PadOp,
    ReshapeOp,
    SliceOp,
    TransposeOp,
    definition,
)
from treadle.dialects.graph.definition import DefinitionBuilder, Scalar, compute_of
from treadle.dialects.graph.dtypes import numpy_dtype
from treadle.dialects.graph.linear import Windows, padded_at
from treadle.index.emitter import IndexEmitter
from treadle.index.expr import floordiv, mod, var
from treadle.index.reader import IndexReader
from treadle.passes.graph.definition_analysis import index_reader
from treadle.passes.graph.graph_define import operator_word
from treadle.passes.graph.rewriting import Array, constant_op, shape_of, tensor

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """Dimensions in another order, of which one may be cut into blocks of neighbours.

    order: the dimension of the tensor that each dimension of its form is, as in `graph.transpose`; one that stands
        there twice is cut: `C` is `ceil(C / lanes)` blocks at the first place and `lanes` at the second
    lanes: the elements of a block. Those beyond the last element of the last block hold anything, and are read by
        nothing but such lanes.
    """

    order: tuple[int, ...]
    lanes: int = 1

    @property
    def cut(self) -> int | None:
        """The dimension that is cut."""
        return next((d for d in self.order if self.order.count(d) > 1), None)

    def digits(self, values: Sequence[T], split: Callable[[T], tuple[T, T]]) -> list[T]:
        """What belongs to each dimension of the form, from what belongs to the tensor's; `split` gives a block's and a
        lane's."""
        cut = self.cut
        if cut is None:
            return [values[d] for d in self.order]
        block, lane = split(values[cut])
        first = self.order.index(cut)
        return [values[d] if d != cut else block if p == first else lane for p, d in enumerate(self.order)]

    def values(self, digits: Sequence[T], join: Callable[[T, T], T]) -> list[T]:
        """What belongs to each dimension of the tensor, from what belongs to the form's."""
        found = [digits[self.order.index(d)] for d in range(len(set(self.order)))]
        if (cut := self.cut) is not None:
            lane = max(p for p, d in enumerate(self.order) if d == cut)
            found[cut] = join(found[cut], digits[lane])
        return found

    def shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of the form of a tensor."""
        return self.digits(shape, lambda extent: (ceil(extent / self.lanes), self.lanes))

    def inside(self, dims: int) -> Layout:
        """The layout of tensors with so many dimensions before those of this one."""
        return Layout((*range(dims), *(dims + d for d in self.order)), self.lanes)

    def before(self, dims: int) -> Layout:
        """The layout of tensors with so many dimensions before those of this one, which stand behind them in a form."""
        return Layout((*(dims + d for d in self.order), *range(dims)), self.lanes)

    def enter(self, x: SSAValue) -> list[Operation]:
        """The operations of which the last gives the form of `x`; lanes beyond its elements are zeros."""
        cut, shape, ops = self.cut, list(shape_of(x)), list[Operation]()
        if cut is None:
            return [TransposeOp(x, self.order)]
        if missing := -shape[cut] % self.lanes:
            ops += zeros_after(x, cut, missing)
            x, shape[cut] = ops[-1].results[0], shape[cut] + missing
        apart = ReshapeOp(x, [*shape[:cut], shape[cut] // self.lanes, self.lanes, *shape[cut + 1 :]])
        return [*ops, apart, TransposeOp(apart.result, self._order_apart())]

    def array(self, array: Array) -> Array:
        """The form of an array; lanes beyond its elements are zeros."""
        order, cut = self._order_apart(), self.cut
        if cut is None:
            return np.ascontiguousarray(array.transpose(order))
        form = np.empty(self.shape(array.shape), array.dtype)
        apart = form.transpose([order.index(d) for d in range(len(order))])
        before, (blocks, rest) = (slice(None),) * cut, divmod(array.shape[cut], self.lanes)
        whole, end = np.split(array, [blocks * self.lanes], axis=cut)
        split = [*array.shape[:cut], blocks, self.lanes, *array.shape[cut + 1 :]]
        apart[(*before, slice(blocks))] = whole.reshape(split)
        if rest:
            apart[(*before, blocks, slice(rest))] = end
            apart[(*before, blocks, slice(rest, None))] = 0
        return form

    def leave(self, form: SSAValue, shape: Sequence[int]) -> list[Operation]:
        """The operations of which the last gives the tensor, of a shape, whose form this is."""
        order = self._order_apart()
        turned = TransposeOp(form, [order.index(d) for d in range(len(order))])
        cut = self.cut
        if cut is None:
            return [turned]
        whole = [ceil(extent / self.lanes) * self.lanes if d == cut else extent for d, extent in enumerate(shape)]
        together = ReshapeOp(turned.result, whole)
        if whole == list(shape):
            return [turned, together]
        return [turned, together, SliceOp(together.result, [0] * len(shape), shape, [1] * len(shape))]

    def _order_apart(self) -> list[int]:
        """The order of a tensor's dimensions in which a block's lanes are one by themselves, behind the blocks."""
        cut = len(self.order) if self.cut is None else self.cut
        return self.digits([d + (d > cut) for d in range(len(set(self.order)))], lambda d: (d, d + 1))


def zeros_after(x: SSAValue, dim: int, count: int) -> list[Operation]:
    """So many zeros after the end of a dimension."""
    zero = constant_op(np.zeros((), numpy_dtype(tensor(x).get_element_type())))
    after = [count if d == dim else 0 for d in range(len(shape_of(x)))]
    return [zero, PadOp("constant", x, zero.result, [*[0] * len(after), *after])]


Forms = Mapping[SSAValue, tuple[SSAValue, Layout]]
"""What stands for tensors in other layouts."""


def definition_in(op: Operator | ComputeOp, layout: Layout, forms: Forms) -> ComputeOp:
    """The detached definition of an operator whose result has a layout, and some of whose operands others."""
    compute = op.clone() if isinstance(op, ComputeOp) else definition(op)
    words = compute.operators if isinstance(op, ComputeOp) else StringAttr(operator_word(op))
    body, first = compute.body.block, compute.body.block.first_op
    assert first is not None
    old = tuple(body.args)
    new = [body.insert_arg(IndexType(), len(body.args)) for _ in layout.order]
    emitter = IndexEmitter(InsertPoint.before(first), location=op.location)
    indices = layout.values([var(arg, 0, None) for arg in new], lambda block, lane: block * layout.lanes + lane)
    for arg, position in zip(old, indices, strict=True):
        arg.replace_all_uses_with(emitter.emit(position))
    for arg in old:
        body.erase_arg(arg)
    type = TensorType(compute.type.get_element_type(), layout.shape(compute.shape))
    result = ComputeOp(compute.detach_region(0), type, None if words is None else words.data)
    compute.erase()
    _read_forms(result, forms)
    return result


def _read_forms(compute: ComputeOp, forms: Forms) -> None:
    """Replaces reads of tensors by those of their forms."""
    reader = index_reader()
    for at in compute.reads():
        if at.source not in forms:
            continue
        source, layout = forms[at.source]
        emitter = IndexEmitter(InsertPoint.before(at), location=at.location)
        split = partial(_split, reader, emitter, layout.lanes)
        read = AtOp(source, layout.digits(at.indices, split), at.predicate, at.otherwise)
        read.location = at.location
        Rewriter.insert_op(read, InsertPoint.before(at))
        Rewriter.replace_op(at, [], [read.result])


def _split(reader: IndexReader, emitter: IndexEmitter, lanes: int, index: SSAValue) -> tuple[SSAValue, SSAValue]:
    position = reader.read(index)
    return emitter.emit(floordiv(position, lanes)), emitter.emit(mod(position, lanes))


def advances_by_blocks(compute: ComputeOp, source: SSAValue, dim: int, lanes: int) -> bool:
    """Whether each read of a tensor is of the element's own index along a dimension, or of one whole blocks away."""
    reader, own = index_reader(), compute.body.block.args[dim]
    apart = [reader.read(at.indices[dim]) - reader.read(own) for at in compute.reads() if at.source is source]
    return all((distance := each.as_int()) is not None and distance % lanes == 0 for each in apart)


# Convolutions as products: rows are pixels of all images, columns output channels, terms the elements of a window.
#
# Source: Chetlur et al., "cuDNN: Efficient primitives for deep learning", 2014, section 3.


def windows(
    op: ConvOp, x: SSAValue, image: Layout, terms: Layout, channels: int, stored: bool = False, batch: bool = False
) -> ComputeOp:
    """The windows of a convolution's image as rows `[N * pixels, terms]`; of several groups `[groups, ...]`.

    x: the form of the image
    image, terms: the layouts of `[N, C, spatial...]` and of a window `[C, kernel...]` of a group
    channels: those of a group, of which the image may have more than the filters
    stored: the border of zeros is part of `x`
    batch: rows are `[N, pixels, terms]`, without N if it is 1
    """
    n, _, *spatial = op.shape
    groups, kernel, extents = op.groups.value.data, shape_of(op.w)[2:], shape_of(op.x)[2:]
    window = Windows.of(op.properties, kernel)
    if stored:
        before, after = window.pads[: len(kernel)], window.pads[len(kernel) :]
        extents = tuple(sum(each) for each in zip(before, extents, after, strict=True))
        window = replace(window, pads=[0] * len(window.pads))

    def element(b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        if batch:
            which, position = index[0] if n > 1 else b.constant(0), b.delinearize(index[-2], spatial)
        else:
            which, *position = b.delinearize(index[-2], [n, *spatial])
        digits = b.delinearize(index[-1], terms.shape([channels, *kernel]))
        channel, *offset = terms.values(digits, lambda block, lane: b.add(b.mul(block, terms.lanes), lane))
        where, conditions = window.indices(b, position, offset, extents, spatial)
        if groups > 1:
            channel = b.add(b.mul(index[0], channels), channel)
        return padded_at(b, op.x, [which, channel, *where], conditions)

    lead = [groups] if groups > 1 else [n] if batch and n > 1 else []
    rows = prod(spatial) if batch else n * prod(spatial)
    shape = [*lead, rows, prod(terms.shape([channels, *kernel]))]
    compute = compute_of(TensorType(tensor(op.x).get_element_type(), shape), element, "im2col")
    plain = Layout(tuple(range(len(shape))))
    found = definition_in(compute, plain, {op.x: (x, image)})
    compute.erase()
    return found


def filters(op: ConvOp, terms: Layout, channels: int) -> list[Operation]:
    """The operations of which the last gives the filters as `[terms, OC]`, of several groups `[groups, ...]`."""
    oc, ic, *kernel = shape_of(op.w)
    groups = op.groups.value.data
    ops = zeros_after(op.w, 1, channels - ic) if channels > ic else []
    w = ops[-1].results[0] if ops else op.w
    if groups > 1:
        ops.append(ReshapeOp(w, [groups, oc // groups, channels, *kernel]))
        turned = terms.before(1).inside(1).enter(ops[-1].results[0])
    else:
        turned = terms.before(1).enter(w)
    shape = [prod(terms.shape([channels, *kernel])), oc // groups]
    return [*ops, *turned, ReshapeOp(turned[-1].results[0], [groups, *shape] if groups > 1 else shape)]
