"""Scaled dot-product attention as one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseArrayBase, FloatAttr, IndexType, IntegerAttr, TensorType, f64, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    EqAttrConstraint,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.graph.definition import (
    DefinitionBuilder,
    Operator,
    Scalar,
    int_list,
    integer,
    require,
    shape_of,
    widened,
)
from treadle.dialects.graph.dtypes import is_float
from treadle.dialects.graph.elementwise import broadcast_shapes, convert
from treadle.dialects.graph.movement import extent

_SEGMENTS = AttrSizedOperandSegments.attribute_name


@irdl_op_definition
class AttentionOp(Operator):
    """`softmax(Q K^T * scale + mask) V` of queries `[batch..., heads, M, D]`, keys `[batch..., groups, N, D]` and
    values `[batch..., groups, N, E]`; the result is `[batch..., heads, M, E]`.

    ```mlir
    %y = graph.attention %q, %k, %v mask %m {scale = 1.250000e-01 : f64, causal = 0 : i64, guard = 0 : i64}
        : (tensor<1x12x128x64xf32>, tensor<1x12x128x64xf32>, tensor<1x12x128x64xf32>, tensor<1x1x1x128xf32>)
        -> tensor<1x12x128x64xf32>
    ```
    Query head `h` uses key and value head `h / (heads / groups)`: with fewer groups than heads this is grouped-query
    attention. The mask, of any float type, is added to the scaled scores and broadcasts to `[batch..., heads, M, N]`.
    With `causal`, row `i` sees the columns up to `i + N - M`, so that the last row sees all. A row without any finite
    score gives NaN, as softmax does; with `guard`, a row of NaN probabilities counts as a row of zeros. Scores and
    sums of f16 and bf16 are f32; probabilities are rounded to that type where they are multiplied, which a kernel may
    leave out. Source: Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.2.1.

    With a `length`, a number that is data, only the first `length` keys exist:
    ```mlir
    %y = graph.attention %q, %k, %v length %n {scale = 1.250000e-01 : f64, causal = 1 : i64, guard = 0 : i64}
        : (tensor<12x512x64xf32>, tensor<12x512x64xf32>, tensor<12x512x64xf32>) -> tensor<12x512x64xf32>
    ```
    The score of another is -inf and its probability 0, whatever its key, its value and its column of the mask hold:
    NaN there does not come through. `M` and `N` stay the bounds, so that a causal row of self-attention, where they are
    equal, sees what is not after it and below `length`. A length below 0 counts as 0, one beyond `N` as `N`; a row of 0
    keys gives 0.

    With an `offset`, data as well, a causal row `i` sees the columns up to `i + offset`: rows behind a past of so many
    keys. Offsets from `-M` to `N` are told apart.

    Rejected: ranks below 2 or that differ, integers, element types that differ, a head size, a number of keys or
    batch dimensions that do not fit, heads that are no multiple of the groups, a mask of integers or one that does
    not broadcast, a length or an offset that is no `tensor<i64>`, an offset of attention that is not causal.
    """

    name = "graph.attention"
    q = operand_def(TensorType)
    k = operand_def(TensorType)
    v = operand_def(TensorType)
    mask = opt_operand_def(TensorType)
    length = opt_operand_def(EqAttrConstraint(TensorType(i64, [])))
    offset = opt_operand_def(EqAttrConstraint(TensorType(i64, [])))
    scale = prop_def(FloatAttr)
    causal = prop_def(IntegerAttr)
    guard = prop_def(IntegerAttr)
    irdl_options = (ParsePropInAttrDict(), AttrSizedOperandSegments(as_property=True))
    traits = traits_def(Pure())
    assembly_format = (
        "$q `,` $k `,` $v (`mask` $mask^)? (`length` $length^)? (`offset` $offset^)? attr-dict `:` "
        "`(` type($q) `,` type($k) `,` type($v) (`,` type($mask)^)? `)` `->` type($result)"
    )

    def __init__(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        mask: SSAValue | None = None,
        length: SSAValue | None = None,
        offset: SSAValue | None = None,
        *,
        scale: float = 1.0,
        causal: bool = False,
        guard: bool = False,
    ):
        optional = [[] if operand is None else [operand] for operand in (mask, length, offset)]
        segments = DenseArrayBase.from_list(i32, [1, 1, 1, *map(len, optional)])
        operands = [q, k, v, *optional[0], *optional[1], *optional[2]]
        super().__init__(operands, scale=FloatAttr(scale, f64), **{_SEGMENTS: segments}, causal=causal, guard=guard)

    @classmethod
    def group(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute]
    ) -> Sequence[SSAValue | Sequence[SSAValue]]:
        grouped, end = list[SSAValue | Sequence[SSAValue]](operands[:3]), 3
        for count in int_list(properties, _SEGMENTS)[3:]:
            grouped.append(operands[end : end + count])
            end += count
        return grouped

    @classmethod
    def infer(cls, types: Sequence[TensorType], properties: Mapping[str, Attribute]) -> TensorType:
        q, k, v = (type.get_shape() for type in types[:3])
        element = types[0].get_element_type()
        require(is_float(element), f"attention of {types[0]}: floats are needed")
        require(all(t.get_element_type() == element for t in types[:3]), "element types differ")
        require(len(q) == len(k) == len(v) >= 2, f"ranks {len(q)}, {len(k)}, {len(v)}: equal ones from 2 on are needed")
        require(q[-1] == k[-1], f"queries of size {q[-1]} against keys of size {k[-1]}")
        require(k[-2] == v[-2], f"{k[-2]} keys against {v[-2]} values")
        require(k[:-2] == v[:-2] and q[:-3] == k[:-3], f"batches of {types[0]}, {types[1]} and {types[2]} differ")
        if len(q) > 2:
            require(k[-3] >= 1 and q[-3] % k[-3] == 0, f"{q[-3]} heads are not a multiple of {k[-3]} groups")
        scores = (*q[:-1], k[-2])
        masks = int_list(properties, _SEGMENTS)[3]
        if masks:
            _check_mask(types[3], scores)
        for type in types[3 + masks :]:
            require(type == TensorType(i64, []), f"a length or an offset {type}: expected tensor<i64>")
        if int_list(properties, _SEGMENTS)[-1]:
            require(bool(integer(properties, "causal")), "an offset of attention that is not causal", "causal = 1")
        return TensorType(element, [*q[:-1], v[-1]])

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """`[batch..., heads, M, N]`."""
        return (*self.shape[:-1], shape_of(self.k)[-2])

    @property
    def group_size(self) -> int:
        """How many query heads share a head of keys and values."""
        return self.shape[-3] // shape_of(self.k)[-3] if len(self.shape) > 2 else 1

    def element(self, b: DefinitionBuilder, index: Sequence[Scalar]) -> Scalar:
        *batch, i, j = index
        keys = self.scores_shape[-1]
        shared = [*batch[:-1], b.div(batch[-1], self.group_size)] if batch else []
        length = None if self.length is None else extent(b, b.at(self.length, []), keys)

        def score(inner: DefinitionBuilder, n: Scalar) -> Scalar:
            found = self._score(inner, batch, shared, i, n)
            if length is None:
                return found
            return inner.select(inner.binary("lt", n, length), found, inner.constant(-inf, found.type))

        largest = b.reduce("max", [keys], lambda inner, n: score(inner, n[0]))

        def weight(inner: DefinitionBuilder, n: Scalar) -> Scalar:
            return inner.math("exp", inner.binary("sub", score(inner, n), largest))

        total = b.reduce("add", [keys], lambda inner, n: weight(inner, n[0]))

        def product(inner: DefinitionBuilder, n: Sequence[Scalar]) -> Scalar:
            # An operand of a product has the operands' type: weights of 16 bits are rounded.
            exact = inner.binary("div", weight(inner, n[0]), total)
            share = widened(inner, convert(inner, exact, self.type.get_element_type()))
            position = [*shared, n[0], j]
            if length is None:
                return inner.mul(share, widened(inner, inner.at(self.v, position)))
            exists, nothing = inner.binary("lt", n[0], length), inner.constant(0.0, self.type.get_element_type())
            value = widened(inner, inner.at(self.v, position, exists, nothing))
            return inner.mul(inner.select(exists, share, inner.constant(0.0, share.type)), value)

        value = b.reduce("add", [keys], product)
        if self.guard.value.data:
            value = b.select(b.binary("ne", total, total), b.constant(0.0, value.type), value)
        return convert(b, value, self.type.get_element_type())

    def _score(
        self, b: DefinitionBuilder, batch: Sequence[Scalar], shared: Sequence[Scalar], i: Scalar, n: Scalar
    ) -> Scalar:
        """The scaled and masked product of query `i` and key `n`."""

        def product(inner: DefinitionBuilder, d: Sequence[Scalar]) -> Scalar:
            query, key = inner.at(self.q, [*batch, i, d[0]]), inner.at(self.k, [*shared, n, d[0]])
            return inner.mul(widened(inner, query), widened(inner, key))

        dot = b.reduce("add", [shape_of(self.q)[-1]], product)
        score = b.mul(dot, b.constant(self.scale.value.data, dot.type))
        if self.mask is not None:
            score = b.add(score, convert(b, b.broadcast_at(self.mask, [*batch, i, n]), score.type))
        if self.causal.value.data:
            rows, keys = self.scores_shape[-2:]
            offset = keys - rows if self.offset is None else offset_of(b, b.at(self.offset, []), rows, keys)
            visible = b.binary("le", n, b.binary("add", i, offset))
            score = b.select(visible, score, b.constant(-inf, score.type))
        return score


def offset_of(b: DefinitionBuilder, offset: Scalar, rows: int, keys: int) -> Scalar:
    """An offset that is data, as an index within what is told apart."""
    # A GPU's index may have 32 bits: the number is brought into range before it is truncated.
    given = b.binary("max", b.binary("min", offset, b.constant(keys, i64)), b.constant(-rows, i64))
    return b.insert(arith.IndexCastOp(given, IndexType()))


def _check_mask(mask: TensorType, scores: Sequence[int]) -> None:
    shape = mask.get_shape()
    require(is_float(mask.get_element_type()), f"a mask {mask}: floats are needed")
    try:
        fits = broadcast_shapes([shape, scores]) == tuple(scores)
    except VerifyException:
        fits = False
    require(fits, f"a mask {mask} does not broadcast to the scores {tuple(scores)}")
