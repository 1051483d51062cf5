"""Tests of the PyTorch frontend."""
