"""Kernels of any definition from a nest of levels, which a schedule program builds up."""
