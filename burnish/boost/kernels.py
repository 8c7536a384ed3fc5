"""How the kernels of the histogram method are compiled: without what would cost compile time and give nothing."""

from numba import njit

# No tests for division by zero; no second entry for callers of C.
kernel = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True)

# The same of a kernel that makes no array: nothing in it counts references.
lean = njit(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, _nrt=False)

# A part of other kernels, that Python never calls: it has no entry for it, and no file in the cache.
inlined = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, no_cpython_wrapper=True, _nrt=False)
