"""Passes on scheduled kernels."""
