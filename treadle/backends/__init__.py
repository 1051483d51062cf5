"""Printers, compilers and executors of lowered modules, a package for each target."""
