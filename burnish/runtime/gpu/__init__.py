"""Devices that run kernels for a grid of threads: the CUDA driver, and coroutines on a CPU that check what they do."""
