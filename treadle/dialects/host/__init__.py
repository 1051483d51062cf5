"""The host dialect: the program that launches a module's kernels, in order, on planned memory.

It refers to buffers by kind and offset, and to kernels by their symbols; it does not depend on what a kernel computes.
"""

from xdsl.ir import Dialect

from treadle.dialects.host.program import BufferOp, DispatchOp, IfOp, LaunchOp, LoopOp, ReturnOp

HOST = Dialect("host", [BufferOp, DispatchOp, IfOp, LaunchOp, LoopOp, ReturnOp], [])

__all__ = ["HOST", "BufferOp", "DispatchOp", "IfOp", "LaunchOp", "LoopOp", "ReturnOp"]
