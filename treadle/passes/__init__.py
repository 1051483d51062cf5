"""The passes, one a file; the file is named after the pass."""
