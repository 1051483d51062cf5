"""What runs a module: printers, compilers and executors, one package a target."""
