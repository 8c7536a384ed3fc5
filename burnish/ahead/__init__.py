"""Compilation ahead of time: the numba kernels for baseline CPUs, in files beside the package that `burnish.jit` reads.

The build hook of a wheel or of an installation runs it, so that nobody's first model waits for a compiler.
"""
