"""numba's ``njit`` with compiled functions in Burnish's own cache folder: nothing is written beside the source files.

numba would keep them in ``__pycache__`` of an installed package, which ``pip uninstall`` then leaves behind, and would
refuse to compile at all where it finds no place to write. Here they are entries of the object cache, and where that
cannot be written they last as long as the process.
"""

from __future__ import annotations

import inspect
import logging
import os
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

import burnish
from burnish.cache import ObjectCache, cache_key
from burnish.files import cache_folder, read_regular

_LOG = logging.getLogger("burnish")


def njit(
    *, cache: bool = False, light: bool = False, counted: bool = True, inner: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: ``numba.njit`` with these ``options``, where ``cache=True`` is Burnish's.

    ``light``: cached functions are loaded without numba's tables of types and operations, modules whose import takes
    longer than everything else in a first call; only a compilation needs them, and does import them. ``counted=False``:
    references to arrays are not counted, which takes most of the time of small functions that are handed many; they
    must not make arrays (numba refuses those that do). ``inner``: besides, only compiled functions call it, so nothing
    is compiled that would make arguments of Python's objects.
    """
    if inner:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    if inner or not counted:
        options["_nrt"] = False
    compiled = numba.njit(**options)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        if cache:
            dispatcher._cache = _Cache(function, light)
        return dispatcher

    return decorate


class _Cache(NullCache):
    """What a numba dispatcher asks for compiled functions, by their signatures."""

    def __init__(self, function: Callable[..., Any], light: bool) -> None:
        self._function = function
        self._light = light

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None where it is not cached or what is cached cannot be used."""
        if self._light:
            rtsys.initialize(target_context)  # what compiled code counts references with
        else:
            target_context.refresh()
        found = _store().get(self._key(sig, target_context.codegen()))
        if found is None:
            _announce()
            return None
        try:
            # numba's own format. The cache gives only what a process of this user, or whoever owns the cache folder,
            # has stored under this key: who may write there decides which machine code runs here, pickle or not.
            return CompileResult._rebuild(target_context, *pickle.loads(found))  # noqa: S301
        except Exception:  # of another build of numba, LLVM or Python: it is compiled again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Stores a compiled function, unless it holds addresses of this process."""
        if not any(not lifted.can_cache for lifted in data.lifted) and not data.library.has_dynamic_globals:
            _store().put(self._key(sig, data.codegen), dumps(data._reduce()))

    def _key(self, sig: Any, codegen: Any) -> str:
        code = self._function.__code__
        inner = dumps(tuple(cell.cell_contents for cell in self._function.__closure__ or ()))
        parts = (burnish.__version__, numba.__version__, repr(codegen.magic_tuple()), repr(sig))
        where = f"{self._function.__qualname__} {code.co_firstlineno}"
        sources = [_source(path) for path in sorted(_files(self._function))]
        return cache_key("numba", *parts, where, *sources, code.co_code, inner)


@cache
def _files(function: Callable[..., Any]) -> frozenset[str]:
    """The files of a function and of all that may be compiled into it: functions and intrinsics that it sees."""
    pending, known = [function], dict[int, str]()
    while pending:
        found = pending.pop()
        if id(found) in known:
            continue
        known[id(found)] = inspect.getfile(found)
        for value in list(found.__globals__.values()):
            called = getattr(value, "py_func", None) or getattr(value, "_defn", None)
            if inspect.isfunction(called):
                pending.append(called)
    return frozenset(known.values())


@cache
def _announce() -> None:
    """Says once, on standard error unless logging is set up otherwise, why the first call takes a while."""
    _LOG.warning("burnish: compiling kernels for this machine, some seconds the first time; they are kept in the cache")


@cache
def _store() -> ObjectCache:
    """Found when the first function is called, not when it is imported. numba's own variable is kept to."""
    return ObjectCache(os.environ.get("NUMBA_CACHE_DIR") or cache_folder())


@cache
def _source(path: str) -> bytes:
    """The file that a function comes from, whose constants and inlined functions are compiled into it."""
    try:
        return read_regular(path)
    except OSError:
        return b""
