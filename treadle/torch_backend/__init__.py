"""`torch.compile(model, backend="treadle")`: graphs of PyTorch's compiler as compiled models.

AOTAutograd hands over graphs without side effects (`torch._dynamo.backends.common.aot_autograd`) and restores around
them what a caller sees of PyTorch: arguments that change, results that alias arguments or each other, gradients.
"""

from treadle.torch_backend.backend import treadle

__all__ = ["treadle"]
