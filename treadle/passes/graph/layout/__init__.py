"""How operators are written for images whose channels lie next to one another."""
