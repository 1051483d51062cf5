"""What a caller says of shapes: ranges of extents, and which variant serves which shape."""
