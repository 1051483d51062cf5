"""The dialects, a package each, and what passes ask about the operations of all of them."""
