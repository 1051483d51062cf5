"""loop-dense-arguments: inputs and outputs whose shapes change are read and written where a caller has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from treadle.dialects.loop import DispatchOp, KernelOp, type_of
from treadle.index.expr import Expr
from treadle.passes.graph.demand.facts import Extents, extents_of
from treadle.passes.loop.dense_access import AccessPlanner, Step
from treadle.passes.loop.dense_layout import Changing, Part, changing_inputs, changing_outputs, extent_variable
from treadle.passes.loop.dense_rewriting import DenseRewriting, Plan
from treadle.target import Target


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


__all__ = ["LoopDenseArgumentsPass"]
