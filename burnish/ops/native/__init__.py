"""Native kernels of opaque operators: loops in the part of Python that numba compiles; NumPy is the oracle."""
