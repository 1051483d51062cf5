"""Examples that serve compiled models."""
