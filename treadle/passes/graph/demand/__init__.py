"""Which elements of a tensor its readers need: facts, under which a read matters, and what they say of its source."""
