"""Compilation ahead of time: numba kernels for baseline CPUs, in files that `burnish.base.jit` reads.

The build hook of a wheel or of an installation runs it, so that nobody's first model waits for a compiler.
"""
