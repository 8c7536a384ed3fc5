"""Kernels of opaque operators as loops, in the part of Python that numba compiles; NumPy beside them is the oracle."""
