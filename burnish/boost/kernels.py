"""Compilation options of the numba kernels: without what costs compile time and gives nothing; cached."""

from typing import Any

from burnish.jit import njit

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}

# No tests for division by zero; no second entry for callers of C.
kernel = njit(cache=True, light=True, **_OPTIONS)

# The same of a kernel that makes no array: nothing in it counts references, and no function that makes one is compiled.
lean = njit(cache=True, light=True, **_OPTIONS, _nrt=False)

# A part of other kernels, that Python never calls: it has no entry for it, and no file in the cache.
inlined = njit(**_OPTIONS, no_cpython_wrapper=True, _nrt=False)

# The same, where a call costs as much as its work (a few bytes of text): in machine code there is never one.
always_inlined = njit(**_OPTIONS, no_cpython_wrapper=True, _nrt=False, forceinline=True)
