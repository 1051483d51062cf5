"""Kernels of the `cuda` dialect, and the coordinates of threads and blocks."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseArrayBase,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
    StringAttr,
    SymbolNameConstraint,
    i64,
)
from xdsl.ir import Attribute, Block, BlockArgument, Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from treadle.dialects.cuda.attributes import Dimension, DimensionAttr, Space, buffer_bytes, is_global, space_of
from treadle.dialects.cuda.memory import ALIGNMENT, AllocOp
from treadle.dialects.hopper import TensorMapOp
from treadle.dialects.hopper.cluster import check_cluster
from treadle.dialects.syntax import Body, Parameters
from treadle.index.expr import Range
from treadle.index.reader import HasIndexRanges
from treadle.target import GPUS

MAX_THREADS = max(target.max_threads_per_block for target in GPUS)
MAX_STATIC_SHARED = max(target.shared_per_block_static for target in GPUS)
MAX_SHARED = max(target.shared_per_block for target in GPUS)

# CUDA C++ Programming Guide, table of technical specifications: the same for every compute capability.
MAX_BLOCK: tuple[int, int, int] = (1024, 1024, 64)
MAX_GRID: tuple[int, int, int] = (2**31 - 1, 65535, 65535)


def placed(buffers: Sequence[AllocOp]) -> tuple[dict[AllocOp, int], int]:
    """Where buffers begin that lie one after the other, each at a multiple of its alignment; bytes of all of them."""
    starts: dict[AllocOp, int] = {}
    end = 0
    for op in buffers:
        starts[op] = -(-end // op.alignment) * op.alignment
        end = starts[op] + -(-(buffer_bytes(op.buffer_type) or 0) // ALIGNMENT) * ALIGNMENT
    return starts, end


_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCALARS = (IntegerType, IndexType, Float16Type, BFloat16Type, Float32Type, Float64Type)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """
    Ends a kernel.

    ```mlir
    cuda.return
    ```

    Rejected: outside of `cuda.kernel`.
    """

    name = "cuda.return"

    assembly_format = "attr-dict"

    traits = lazy_traits_def(lambda: (IsTerminator(), HasParent(KernelOp)))


@irdl_op_definition
class KernelOp(IRDLOperation):
    """
    One `__global__` function, with the grid and the block that it is launched with.

    Arguments are memrefs in global memory, or scalars. Blocks run independently of each other; the threads
    of a block share the buffers that `cuda.alloc` puts into shared memory, and meet at `cuda.barrier`.

    ```mlir
    cuda.kernel @scale(%a: memref<4096xf32>, %c: memref<4096xf32>) grid = [16, 1, 1] block = [256, 1, 1] {
      %t = cuda.thread_id x : index
      ...
      cuda.return
    }
    ```

    Discardable attributes follow `block` after the keyword `attributes`: `comment` is printed above the kernel,
    `min_blocks_per_sm = 2` limits the registers of a thread so that two blocks fit on a multiprocessor; with
    `cluster = 4` each 4 neighbours along x run at the same time and reach each other's shared memory.

    Rejected: a name that is no C identifier; a block of more than 1024 threads, or of more than [1024,
    1024, 64]; a grid of more than [2147483647, 65535, 65535], or one that clusters do not divide; an
    extent below one; a memref argument that is not in global memory; a body that does not end with
    `cuda.return`; shared buffers inside of nested regions; more than 48 KiB of static shared memory, and more
    shared memory altogether than a block of any GPU has (a GPU's own limit is checked where the GPU is known).
    """

    name = "cuda.kernel"

    sym_name = prop_def(SymbolNameConstraint())
    grid = prop_def(DenseArrayBase.constr(i64))
    block = prop_def(DenseArrayBase.constr(i64))
    body = region_def("single_block")

    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    custom_directives = (Body, Parameters)
    assembly_format = (
        "$sym_name custom<Parameters>(`parameters`, ref($body)) `grid` `=` $grid `block` `=` $block "
        "attr-dict-with-keyword custom<Body>($body)"
    )

    def __init__(
        self,
        name: str | StringAttr,
        grid: Sequence[int],
        block: Sequence[int],
        body: Region | Sequence[Attribute],
    ) -> None:
        """A kernel with the given region, or with an empty block that has arguments of the given types."""
        region = body if isinstance(body, Region) else Region(Block(arg_types=body))
        super().__init__(
            properties={
                "sym_name": StringAttr(name) if isinstance(name, str) else name,
                "grid": DenseArrayBase.from_list(i64, grid),
                "block": DenseArrayBase.from_list(i64, block),
            },
            regions=[region],
        )

    @property
    def parameters(self) -> Sequence[BlockArgument]:
        """The arguments of the function."""
        return self.body.block.args

    @property
    def grid_shape(self) -> tuple[int, ...]:
        """Blocks along x, y and z."""
        return tuple(self.grid.get_values())

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Threads along x, y and z."""
        return tuple(self.block.get_values())

    @property
    def threads(self) -> int:
        """Threads of one block."""
        return math.prod(self.block_shape)

    def shared_buffers(self, *, dynamic: bool) -> list[AllocOp]:
        """The buffers in shared memory that the kernel declares, or that share its launch's (`dynamic`)."""
        return [
            op
            for op in self.body.block.ops
            if isinstance(op, AllocOp)
            and space_of(op.buffer_type) is Space.SHARED
            and (op.dynamic is not None) == dynamic
        ]

    def shared_bytes(self, *, dynamic: bool) -> int:
        """Bytes of shared memory that the kernel declares, or that its launch must add (`dynamic`)."""
        return placed(self.shared_buffers(dynamic=dynamic))[1]

    @property
    def tensor_maps(self) -> list[TensorMapOp]:
        """The maps that a launch has to make, in the order of the kernel's arguments for them, behind the others."""
        return [op for op in self.body.block.ops if isinstance(op, TensorMapOp)]

    def verify_(self) -> None:
        if not _C_IDENTIFIER.fullmatch(self.sym_name.data):
            raise VerifyException(f"kernel name '{self.sym_name.data}' is not a C identifier")
        self._verify_shape("grid", self.grid_shape, MAX_GRID)
        self._verify_shape("block", self.block_shape, MAX_BLOCK)
        if self.threads > MAX_THREADS:
            raise VerifyException(
                f"block of {self.threads} threads is {self.threads - MAX_THREADS} over the limit of {MAX_THREADS}"
            )
        check_cluster(self.attributes.get("cluster"), self.grid_shape[0])
        self._verify_arguments()
        self._verify_shared()
        if not isinstance(self.body.block.last_op, ReturnOp):
            raise VerifyException("a kernel must end with cuda.return")

    @staticmethod
    def _verify_shape(what: str, shape: tuple[int, ...], limit: tuple[int, int, int]) -> None:
        if len(shape) != 3:
            raise VerifyException(f"{what} has {len(shape)} dimensions, expected 3")
        for axis, extent, most in zip("xyz", shape, limit, strict=True):
            if not 1 <= extent <= most:
                raise VerifyException(f"{what} extent {extent} along {axis} is not within 1 and {most}")

    def _verify_arguments(self) -> None:
        for index, argument in enumerate(self.body.block.args):
            if isinstance(argument.type, MemRefType):
                if not is_global(argument.type):
                    raise VerifyException(f"argument {index} of type {argument.type} is not in global memory")
            elif not isinstance(argument.type, _SCALARS):
                raise VerifyException(f"argument {index} of type {argument.type} is neither memref nor scalar")

    def _verify_shared(self) -> None:
        for op in self.body.walk():
            if isinstance(op, AllocOp) and space_of(op.buffer_type) is Space.SHARED and op.parent_op() is not self:
                raise VerifyException(
                    "a shared buffer must be allocated directly in the kernel, not in a nested region"
                )
        static, dynamic = self.shared_bytes(dynamic=False), self.shared_bytes(dynamic=True)
        if static > MAX_STATIC_SHARED:
            raise VerifyException(
                f"{static} bytes of static shared memory are {static - MAX_STATIC_SHARED} over the limit of "
                f"{MAX_STATIC_SHARED}; `cuda.alloc dynamic` may use up to {MAX_SHARED}"
            )
        if static + dynamic > MAX_SHARED:
            raise VerifyException(
                f"{static + dynamic} bytes of shared memory are {static + dynamic - MAX_SHARED} over the "
                f"limit of {MAX_SHARED}"
            )


class _IdOp(IRDLOperation, HasIndexRanges):
    """A coordinate along one axis."""

    dimension = prop_def(DimensionAttr)
    result = result_def(IndexType())

    assembly_format = "$dimension attr-dict `:` type($result)"

    traits = traits_def(Pure())

    def __init__(self, dimension: Dimension) -> None:
        super().__init__(properties={"dimension": DimensionAttr(dimension)}, result_types=[IndexType()])

    def index_range(self, value: SSAValue) -> Range | None:
        kernel = self.parent_op()
        while kernel is not None and not isinstance(kernel, KernelOp):
            kernel = kernel.parent_op()
        return None if kernel is None else (0, self.extents(kernel)[list(Dimension).index(self.dimension.data)] - 1)

    @staticmethod
    @abstractmethod
    def extents(kernel: KernelOp) -> tuple[int, ...]:
        """How many values the coordinate takes along x, y and z."""


@irdl_op_definition
class ThreadIdOp(_IdOp):
    """
    The coordinate of the executing thread within its block, from 0 to the block's extent, exclusive.

    ```mlir
    %t = cuda.thread_id x : index
    ```

    Rejected: an axis other than x, y and z.
    """

    name = "cuda.thread_id"

    @staticmethod
    def extents(kernel: KernelOp) -> tuple[int, ...]:
        return kernel.block_shape


@irdl_op_definition
class BlockIdOp(_IdOp):
    """
    The coordinate of the executing thread's block within the grid, from 0 to the grid's extent, exclusive.

    ```mlir
    %b = cuda.block_id y : index
    ```

    Rejected: an axis other than x, y and z.
    """

    name = "cuda.block_id"

    @staticmethod
    def extents(kernel: KernelOp) -> tuple[int, ...]:
        return kernel.grid_shape
