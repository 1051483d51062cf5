"""Mutants of kernels: what the emulator's checks find when a barrier, a wait or a predicate is taken away."""
