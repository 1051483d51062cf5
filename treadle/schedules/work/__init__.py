"""What a kernel does, as cost models count it: a tree of loops and accesses, recorded from templates and nests."""
