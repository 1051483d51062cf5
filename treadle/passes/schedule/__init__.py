"""Passes that make scheduling decisions, and build kernels by them."""
