"""Schedule search: what a candidate does (`Work`), its predicted time (cost models), its measured time (databases)."""
