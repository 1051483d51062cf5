"""Lowering passes, each from one level of the IR to the next."""
