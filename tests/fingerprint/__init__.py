"""Hashes of what is printed for models that cover the compiler; see `__main__.py`."""
