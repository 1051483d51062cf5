"""loop-dense-arguments: inputs and outputs whose shapes change are read and written where a caller has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from xdsl.context import Context
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    Float32Type,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from treadle.dialects.graph import RequiredAttr
from treadle.dialects.graph.append import states_of
from treadle.dialects.graph.extents import Extents, extents_of
from treadle.dialects.loop import DispatchOp, KernelOp, LoadOp, StoreOp, type_of
from treadle.dialects.scalar import number_op
from treadle.dialects.task import ForOp
from treadle.index.algebra import Comparison, depends_on, split_linear
from treadle.index.contiguity import LANE, in_lanes
from treadle.index.expr import Expr, const, floordiv, mod, var
from treadle.index.reader import Bounds, IndexReader, comparisons_around, comparisons_in
from treadle.passes.graph.definition_analysis import shape_of
from treadle.passes.loop.inline_body import KernelArguments
from treadle.passes.loop.kernels import constant_index
from treadle.passes.loop.required_levels import read_extent
from treadle.shapes.dim import parse_dim
from treadle.target import Target

# Accesses of arguments without gaps: what is proved to lie within the extents of a call, and what has to be tested.


@dataclass(frozen=True)
class Step:
    """What happens to a part of an access's index.

    is_tested: it may lie beyond the extent, where memory must not be touched
    is_clamped: beyond the extent the last one is taken; so is what lies within it where that would take a proof about
        products of extents; is_signed: what lies before 0 becomes 0, too
    """

    part: Part
    is_tested: bool
    is_clamped: bool
    is_signed: bool


class AccessPlanner:
    """The accesses of one kernel, for a target whose vectors have so many lanes.

    sizes: the extents of @main, by their numbers, as variables
    """

    def __init__(self, kernel: KernelOp, extents: Mapping[SSAValue, int], sizes: Mapping[int, Expr], lanes: int):
        self._count = lanes
        self._reader = IndexReader(_known(kernel, extents, sizes))
        self._functions = IndexReader(functions=True)
        self._bounds = Bounds(self._reader)

    def plan(self, op: Operation, buffer: SSAValue, parts: Sequence[Part]) -> Sequence[Step] | None:
        """How an access of a buffer is rewritten; None where it cannot be, or would be no vector any more."""
        if not isinstance(op, LoadOp | StoreOp) or op.buffer is not buffer or "unproved" in op.attributes:
            return None
        facts = list(comparisons_around(self._reader, op))
        if op.predicate is not None:
            facts += comparisons_in(self._reader, op.predicate)
        variable = _vector_variable(op)
        steps: list[Step] = []
        for part in parts:
            index = part.of(self._reader.read(op.indices[part.dimension]))
            moves = variable is not None and depends_on(self._moving(op, part), variable)
            is_within = part.extent is None or self._is_below(index, part.size, facts)
            low, high = index.range()
            is_signed = low is None or low < 0
            is_wide = part.is_strided and (is_signed or high is None or high >= part.bound)
            if moves and is_wide:
                return None
            is_tested = not is_within and (isinstance(op, StoreOp) or moves or part.least < 1)
            steps.append(Step(part, is_tested, is_wide or not (is_within or moves), is_signed))
        return steps if variable is None or self._keeps_vectors(op, steps, variable) else None

    def _moving(self, op: LoadOp | StoreOp, part: Part) -> Expr:
        """A part of an index, in which what is computed otherwise than by arithmetic is a function of its operands."""
        return part.of(self._functions.read(op.indices[part.dimension]))

    def _is_below(self, index: Expr, size: Expr, facts: Sequence[Comparison]) -> bool:
        least, _ = self._bounds.range(size - 1 - index, facts, (0, None))
        return least is not None and least >= 0

    def _keeps_vectors(self, op: LoadOp | StoreOp, steps: Sequence[Step], variable: SSAValue) -> bool:
        """Whether an access that moves by a constant stride from lane to lane does so without gaps, too."""
        lanes: dict[object, Expr] = {variable: self._lanes(variable)}
        before, after, tested = const(0), const(0), list[Expr]()
        stride, dense = 1, const(1)
        for step in reversed(steps):
            part = step.part
            index = self._moving(op, part).substitute(lanes)
            before, after = before + index * stride, after + index * dense
            stride, dense = stride * part.bound, dense * part.size
            tested += [index] if step.is_tested and depends_on(index, LANE) else []
        if _stride(before) is None:
            return True
        if _stride(after) is None or any(_stride(index) is None for index in tested):
            return False
        return not tested or isinstance(type_of(op.buffer).get_element_type(), Float32Type)

    def _lanes(self, variable: SSAValue) -> Expr:
        """The variable of a loop by vectors and lanes; all its values are lanes of one where it is not known how many
        there are: such a loop is left to the C compiler."""
        loop, trips = variable.owner.parent_op() if isinstance(variable.owner, Block) else None, None
        if isinstance(loop, ForOp):
            trips = loop.mapping.data.shape[-1]
        elif isinstance(loop, scf.ForOp) and constant_index(loop.lb) == 0:
            trips = constant_index(loop.ub)
        return var(LANE, 0, None) if trips is None else in_lanes(trips, self._count)


def _stride(e: Expr) -> int | None:
    """How far an expression moves from lane to lane."""
    split = split_linear(e, LANE)
    return None if split is None else split[0].as_int()


def _vector_variable(op: Operation) -> SSAValue | None:
    """The variable that becomes lanes."""
    loop = op.parent_op()
    while loop is not None and "loop.vector" not in loop.attributes:
        loop = loop.parent_op()
    if isinstance(loop, ForOp):
        return loop.body.block.args[-1]
    return loop.body.block.args[0] if isinstance(loop, scf.ForOp) else None


def _known(kernel: KernelOp, extents: Mapping[SSAValue, int], sizes: Mapping[int, Expr]) -> dict[SSAValue, Expr]:
    """The indices in a kernel that are extents, clamped where that changes nothing (`required_levels.py`)."""
    pairs = zip(kernel.input_buffers, kernel.inputs, strict=True)
    numbers: dict[SSAValue, int] = {buffer: extents[tensor] for buffer, tensor in pairs if tensor in extents}
    found: dict[SSAValue, Expr] = {}
    for cast in (op for op in kernel.body.walk() if isinstance(op, arith.IndexCastOp)):
        value, low, high = cast.input, None, None
        while isinstance(op := value.owner, arith.MinSIOp | arith.MaxSIOp):
            limit = constant_index(op.rhs)
            if limit is None:
                break
            low, high = (limit, high) if isinstance(op, arith.MaxSIOp) else (low, limit)
            value = op.lhs
        number = numbers.get(op.buffer) if isinstance(op := value.owner, LoadOp) and op.predicate is None else None
        size = None if number is None else sizes.get(number)
        least, most = (None, None) if size is None else size.range()
        if size is None or least is None or most is None:
            continue
        if (low is None or low <= least) and (high is None or high >= most):
            found[cast.result] = size
    return found


# Where the elements of a call lie in an argument of @main without gaps: strides are products of extents.


@dataclass(frozen=True)
class Part:
    """A dimension of a tensor, or a factor of one that merges several.

    dimension: its number; divisor: what the index is divided by; is_first: nothing is divided off before
    bound: the largest extent; extent: the number of the extent of @main that it has in a call, None where it is the
        bound in every call; least: the least that the extent may be
    is_strided: something behind it changes, and with that the stride
    """

    dimension: int
    divisor: int
    is_first: bool
    bound: int
    extent: int | None
    least: int
    is_strided: bool

    @property
    def size(self) -> Expr:
        """The extent as a variable of its number."""
        return const(self.bound) if self.extent is None else extent_variable(self.extent, self.least, self.bound)

    def of(self, index: Expr) -> Expr:
        """The part of an index along the dimension."""
        quotient = floordiv(index, self.divisor)
        return quotient if self.is_first else mod(quotient, self.bound)


def extent_variable(number: int, least: int, bound: int) -> Expr:
    """An extent of @main in index arithmetic."""
    return var(("extent", number), least, bound)


@dataclass(frozen=True)
class Changing:
    """A tensor of @main some of whose extents change, all of which are arguments of @main."""

    value: SSAValue
    parts: Sequence[Part]


def changing_inputs(main: FuncOp) -> dict[int, Changing]:
    """The inputs that change, by their positions, but for states, which stay in their largest shapes."""
    values = main.body.block.args[: len(main.body.block.args) - len(extents_of(main))]
    found, kept = parts_of(main, "input_extents", list(map(shape_of, values))), states_of(main)
    arguments = {state.argument.data for state in kept}
    return {n: Changing(values[n], parts) for n, parts in found.items() if n not in arguments}


def changing_outputs(main: FuncOp) -> dict[int, Changing]:
    """The outputs that change, by their positions, but for states."""
    end = main.body.block.last_op
    assert isinstance(end, ReturnOp)
    found = parts_of(main, "output_extents", list(map(shape_of, end.operands)))
    results = {state.result.data for state in states_of(main)}
    return {n: Changing(end.operands[n], parts) for n, parts in found.items() if n not in results}


def parts_of(main: FuncOp, name: str, shapes: Sequence[Sequence[int]]) -> dict[int, Sequence[Part]]:
    """The parts of tensors that change, by their numbers.

    name: of the attribute of @main that has their extents; shapes: the largest ones
    """
    given = main.attributes.get(name)
    if not isinstance(given, ArrayAttr):
        return {}
    numbers = {text: n for n, text in enumerate(_texts(main.attributes.get("extents")))}
    least: dict[str, int] = {}
    for dim in map(parse_dim, _texts(main.attributes.get("symbols"))):
        # As an expression, `rows` in steps of 16 is `16 * (rows // 16)`.
        text = dim.name if dim.multiple == 1 else f"{dim.multiple} * ({dim.name} // {dim.multiple})"
        least |= dict.fromkeys((dim.name, text), dim.least)
        numbers |= {dim.name: numbers[text]} if text in numbers else {}
    each = enumerate(zip(map(_texts, given.data), shapes, strict=False))
    found = {n: _parts(texts, shape, numbers, least) for n, (texts, shape) in each}
    return {n: parts for n, parts in found.items() if any(part.extent is not None for part in parts)}


def _parts(
    texts: Sequence[str], shape: Sequence[int], numbers: Mapping[str, int], least: Mapping[str, int]
) -> Sequence[Part]:
    """None at all where an extent is no argument of @main."""
    found: list[Part] = []
    is_strided = False
    for d, (text, whole) in reversed(list(enumerate(zip(texts, shape, strict=True)))):
        factors = list(_factors(text, whole))
        for n, (expression, bound) in reversed(list(enumerate(factors))):
            number = numbers.get(expression)
            if number is None and not expression.isdigit():
                return []
            divisor = prod(factor for _, factor in factors[n + 1 :])
            found.append(Part(d, divisor, n == 0, bound, number, least.get(expression, 0), is_strided))
            is_strided = is_strided or number is not None
    return found[::-1]


def _factors(text: str, whole: int) -> Iterator[tuple[str, int]]:
    """The factors of a dimension, each with its bound: `batch<=8, seq<=512`, or one of them alone."""
    for factor in text.split(","):
        expression, sign, bound = factor.partition("<=")
        yield expression.strip(), int(bound) if sign else whole


def _texts(attribute: Attribute | None) -> Sequence[str]:
    listed = attribute.data if isinstance(attribute, ArrayAttr) else ()
    return [text.data for text in listed if isinstance(text, StringAttr)]


# Kernels whose arguments become flat: accesses with the strides of a call.

Plan = Mapping[Operation, Sequence[Step]]
"""What happens to the accesses of a tensor."""
Put = Callable[[Operation], SSAValue]
"""Inserts an operation, and gives its result."""


class DenseRewriting:
    """A kernel while arguments of it become flat."""

    def __init__(self, kernel: KernelOp, extents: Extents, sizes: Mapping[int, Expr]):
        self._kernel = kernel
        self._arguments = KernelArguments(kernel)
        self._tensors = {number: tensor for tensor, number in extents.items()}
        self._sizes = sizes
        first = kernel.body.block.first_op
        assert first is not None
        self._start = InsertPoint.before(first)
        self._values: dict[object, SSAValue] = {}

    def rewrite(self, buffers: Sequence[tuple[SSAValue, SSAValue]], plans: Mapping[SSAValue, Plan]) -> None:
        """Rewrites all accesses of some buffers, whose tensors have plans."""
        for tensor, buffer in buffers:
            type = type_of(buffer)
            flat = MemRefType(type.get_element_type(), (prod(type.get_shape()),))
            if flat != type:
                buffer = Rewriter.replace_value_with_new_type(buffer, flat)
            for access in [use.operation for use in buffer.uses]:
                assert isinstance(access, LoadOp | StoreOp)
                self._access(access, plans[tensor][access])
        if self._kernel.required_regions is None:
            self._kernel.required_regions = ArrayAttr([RequiredAttr.of([]) for _ in self._kernel.outputs])
        self._arguments.rebuild()

    def _access(self, access: LoadOp | StoreOp, steps: Sequence[Step]) -> None:
        point, location = InsertPoint.before(access), access.location

        def put(op: Operation) -> SSAValue:
            op.location = location
            Rewriter.insert_op(op, point)
            return op.results[0]

        predicate, total = access.predicate, None
        for n, step in enumerate(steps):
            index = self._part(access.indices[step.part.dimension], step.part, put)
            if step.is_tested:
                inside = put(arith.CmpiOp(index, self._size(step.part), "slt"))
                predicate = inside if predicate is None else put(arith.AndIOp(predicate, inside))
            if step.is_clamped:
                index = self._clamped(index, step, put)
            term = self._scaled(index, [each.part for each in steps[n + 1 :]], put)
            total = term if total is None else put(arith.AddiOp(total, term))
        assert total is not None
        if isinstance(access, StoreOp):
            new: LoadOp | StoreOp = StoreOp(access.value, access.buffer, [total], predicate)
        else:
            otherwise = access.otherwise
            if predicate is not None and otherwise is None:
                otherwise = put(number_op(0, access.result.type))
            new = LoadOp(access.buffer, [total], predicate, otherwise)
            new.result.name_hint = access.result.name_hint
        new.location = location
        new.attributes |= access.attributes
        Rewriter.replace_op(access, new)

    def _part(self, index: SSAValue, part: Part, put: Put) -> SSAValue:
        if part.divisor > 1:
            index = put(arith.DivUIOp(index, self._constant(part.divisor)))
        return index if part.is_first else put(arith.RemUIOp(index, self._constant(part.bound)))

    def _clamped(self, index: SSAValue, step: Step, put: Put) -> SSAValue:
        """The nearest index within the extent, in place of that within the bound."""
        if isinstance(op := index.owner, arith.MinSIOp) and (constant_index(op.rhs) or 0) >= step.part.bound - 1:
            index = op.lhs
        if step.is_signed:
            index = put(arith.MaxSIOp(index, self._constant(0)))
        return put(arith.MinSIOp(index, self._last(step.part)))

    def _scaled(self, index: SSAValue, behind: Sequence[Part], put: Put) -> SSAValue:
        """An index times the number of elements behind it."""
        factor = prod(part.bound for part in behind if part.extent is None)
        changing = [part for part in behind if part.extent is not None]
        if changing:
            return put(arith.MuliOp(index, self._product(factor, changing)))
        return index if factor == 1 else put(arith.MuliOp(index, self._constant(factor)))

    # What follows is computed once, at the beginning of the kernel.

    def _constant(self, value: int) -> SSAValue:
        return self._once(value, lambda: [arith.ConstantOp(IntegerAttr(value, IndexType()))])

    def _size(self, part: Part) -> SSAValue:
        if part.extent is None:
            return self._constant(part.bound)
        number = part.extent
        least, bound = self._sizes[number].range()
        assert bound is not None
        buffer = self._arguments.buffer_of(self._tensors[number])
        return self._once(("extent", number), lambda: read_extent(buffer, bound, least or 0)[1])

    def _last(self, part: Part) -> SSAValue:
        if part.extent is None:
            return self._constant(part.bound - 1)
        size, zero, one = self._size(part), self._constant(0), self._constant(1)
        last = arith.SubiOp(size, one)
        # Without elements nothing is accessed, but by addresses that are proved all the same.
        operations = [last] if part.least > 0 else [last, arith.MaxSIOp(last.result, zero)]
        return self._once(("last", part.extent), lambda: operations)

    def _product(self, factor: int, parts: Sequence[Part]) -> SSAValue:
        first, *others = parts
        key = ("product", factor, *(part.extent for part in parts))
        if others or factor != 1:
            rest = self._product(factor, others) if others else self._constant(factor)
            size = self._size(first)
            return self._once(key, lambda: [arith.MuliOp(size, rest)])
        return self._size(first)

    def _once(self, key: object, make: Callable[[], Sequence[Operation]]) -> SSAValue:
        if key not in self._values:
            operations = make()
            for op in operations:
                op.location = self._kernel.location
                Rewriter.insert_op(op, self._start)
            self._values[key] = operations[-1].results[0]
        return self._values[key]


@dataclass(frozen=True)
class LoopDenseArgumentsPass(ModulePass):
    """Gives elements of inputs and outputs that change the places that they have in a call's own arrays, without gaps.

    ```mlir
    func.func @main(%x: tensor<8x512xf32>, %s: tensor<i64>) -> ... attributes {
        input_extents = [["8", "seq"]], extents = ["seq"], ...} {
      %y = loop.kernel @k ins(%A = %x : tensor<8x512xf32>) ... {
        ... loop.load %A[%i, %j] : memref<8x512xf32> ...
    ```
    becomes
    ```mlir
    ... attributes {dense_inputs = array<i64: 0>, ...} {
      %y = loop.kernel @k ins(%A = %x : tensor<8x512xf32> flat, %s_1 = %s : tensor<i64>) ... {
        %seq = ...                                          // %s_1[], clamped to its range
        ... loop.load %A[%i * %seq + %j] : memref<4096xf32> ...
    ```
    so that the runtime need not copy what it is given into the largest shape, nor cut out what it returns. Beyond an
    extent memory belongs to other elements, or to nobody: an index that is not proved to lie below it is clamped for
    a load (of what nobody needs), and is a predicate of a store, and of a load whose lanes it tells apart. A tensor
    stays in its largest shape if it is used otherwise than by loads and stores, if an extent is no argument of @main,
    and where an access would be no vector any more: its lanes would cross rows whose length changes.
    """

    name = "loop-dense-arguments"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lanes = Target.parse(self.target).lanes
        for main in [f for f in op.body.block.ops if isinstance(f, FuncOp) and f.body.blocks]:
            extents = extents_of(main)
            if extents and isinstance(main.body.block.last_op, ReturnOp):
                _rewrite(main, extents, lanes)


def _rewrite(main: FuncOp, extents: Extents, lanes: int) -> None:
    inputs, outputs = changing_inputs(main), changing_outputs(main)
    sizes = _sizes(each for tensor in (*inputs.values(), *outputs.values()) for each in tensor.parts)
    kernels = [op for op in main.walk() if isinstance(op, KernelOp)]
    planners = {kernel: AccessPlanner(kernel, extents, sizes, lanes) for kernel in kernels}
    plans: dict[SSAValue, Plan] = {}
    dense: dict[str, list[int]] = {"dense_inputs": [], "dense_outputs": []}
    for name, tensors in zip(dense, (inputs, outputs), strict=True):
        for number, tensor in tensors.items():
            plan = _plan(main, tensor, kernels, planners)
            if plan is not None:
                plans[tensor.value] = plan
                dense[name].append(number)
    # Before any kernel is rewritten, which gives its results, that others read, anew.
    pairs = {kernel: [pair for pair in _buffers(kernel) if pair[0] in plans] for kernel in kernels}
    for kernel, own in pairs.items():
        if own:
            DenseRewriting(kernel, extents, sizes).rewrite(own, plans)
    main.attributes |= {name: DenseArrayBase.from_list(i64, numbers) for name, numbers in dense.items() if numbers}


def _sizes(parts: Iterator[Part]) -> dict[int, Expr]:
    """The extents of @main as variables; all parts of one extent have its range."""
    ranges: dict[int, tuple[int, int]] = {}
    for part in parts:
        if part.extent is not None:
            ranges.setdefault(part.extent, (part.least, part.bound))
    return {number: extent_variable(number, *both) for number, both in ranges.items()}


def _buffers(kernel: KernelOp) -> Iterator[tuple[SSAValue, SSAValue]]:
    """The tensors of @main that a kernel reads and gives, each with its buffer."""
    yield from zip(kernel.inputs, kernel.input_buffers, strict=True)
    dispatch = kernel.parent_op()
    results = dispatch.outputs if isinstance(dispatch, DispatchOp) else kernel.outputs
    yield from zip(results, kernel.output_buffers, strict=True)


def _plan(
    main: FuncOp, tensor: Changing, kernels: Sequence[KernelOp], planners: Mapping[KernelOp, AccessPlanner]
) -> dict[Operation, Sequence[Step]] | None:
    """What happens to all accesses of a tensor; None where it stays in its largest shape."""
    value, plan = tensor.value, dict[Operation, Sequence[Step]]()
    readers = [use.operation for use in value.uses if main.is_ancestor(use.operation)]
    is_result = isinstance(value.owner, KernelOp | DispatchOp)
    ends = [op for op in readers if isinstance(op, ReturnOp)]
    if len(ends) != is_result or not all(isinstance(op, KernelOp | ReturnOp) for op in readers):
        return None
    for kernel in kernels:
        for buffer in [buffer for each, buffer in _buffers(kernel) if each is value]:
            if kernel.joins is not None or type_of(buffer).get_num_dims() < 1:
                return None
            for use in buffer.uses:
                steps = planners[kernel].plan(use.operation, buffer, tensor.parts)
                if steps is None:
                    return None
                plan[use.operation] = steps
    return plan
