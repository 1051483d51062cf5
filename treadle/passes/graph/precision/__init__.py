"""How graph-mixed-precision narrows operators."""
