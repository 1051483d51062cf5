"""The CUDA backend: text to cubin without a driver, and the executor that runs cubins on a GPU."""
