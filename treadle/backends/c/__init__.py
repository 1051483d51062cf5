"""The cpu target: prints C, compiles it with the system's compiler, runs it through ctypes."""
