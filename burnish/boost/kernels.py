"""How kernels are compiled: without what would cost compile time and give nothing; and how they come from the cache."""

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _Cache(FunctionCache):
    """numba's cache, which loads a kernel without the tables of types and operations.

    They are modules whose import takes longer than everything else in a first call. Only a compilation needs them, and
    does import them.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function from its file, or None."""
        rtsys.initialize(target_context)  # what compiled code counts references with
        return self._load_overload(sig, target_context)


def _cached(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    compiled = njit(**_OPTIONS, **options)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate


# No tests for division by zero; no second entry for callers of C.
kernel = _cached()

# The same of a kernel that makes no array: nothing in it counts references, and no function that makes one is compiled.
lean = _cached(_nrt=False)

# A part of other kernels, that Python never calls: it has no entry for it, and no file in the cache.
inlined = njit(**_OPTIONS, no_cpython_wrapper=True, _nrt=False)
