"""One set of kernels for several shapes of an operator: which kernels, and which of them for which shape."""
