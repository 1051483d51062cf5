"""Compiled C under the sanitizers of GCC: `make test-sanitized`, and small programs in every run."""
