"""The reference backend: NumPy by definitions, the oracle that every pass and backend is compared with."""

from treadle.backends.reference.run_module import evaluate_module

__all__ = ["evaluate_module"]
