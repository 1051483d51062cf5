"""What a compiled model is on disk, and the cache that keeps it."""
