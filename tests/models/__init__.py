"""Real models that the tests compile."""
