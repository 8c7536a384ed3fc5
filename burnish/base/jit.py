"""numba's ``njit`` with compiled functions in Burnish's own cache folder: nothing is written among the source files.

numba would keep them in ``__pycache__`` of an installed package, which ``pip uninstall`` then leaves behind, and would
refuse to compile at all where it finds no place to write. Here they are entries of the object cache, and where that
cannot be written they last as long as the process. What an installation compiled ahead for baseline CPUs
(`burnish.ahead`) is used before anything is compiled.
"""

from __future__ import annotations

import inspect
import logging
import os
import pickle
from collections.abc import Callable, Iterable
from functools import cache, partial
from sys import implementation
from typing import Any

import llvmlite
import numba
from numba._dynfunc import make_function
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompilerBase, CompileResult
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.core.typed_passes import NativeLowering
from numba.core.types import BooleanLiteral, IntegerLiteral
from numba.core.types.misc import unliteral

import burnish
from burnish.base.baselines import BASELINES, archive_path
from burnish.base.cache import Archive, ObjectCache, cache_key
from burnish.base.files import cache_folder, read_regular

_LOG = logging.getLogger("burnish")
_NUMBERS = (IntegerLiteral, BooleanLiteral)


def njit(
    *, cache: bool = False, counted: bool = True, inner: bool = False, wide: bool = False, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: ``numba.njit`` with these ``options``, where ``cache=True`` is Burnish's.

    Cached functions are loaded without numba's tables of types and operations, modules whose import takes longer than
    everything else in a first call; only a compilation needs them, and does import them. ``counted=False``: references
    to arrays are not counted, which takes most of the time of small functions that are handed many; they must not make
    arrays (numba refuses those that do). ``inner``: besides, only compiled functions call it, so nothing is compiled
    that would make arguments of Python's objects. ``wide``: it is faster with the widest vectors of the CPU, so that
    code which was compiled ahead for narrower ones is not used.
    """
    if inner:
        options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    if inner or not counted:
        options["_nrt"] = False
    if not cache and options.get("no_cpython_wrapper") and options.get("no_cfunc_wrapper"):
        options["pipeline_class"] = _linked(options.get("pipeline_class", Compiler))
    compiled = numba.njit(**options)

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = compiled(function)
        if cache:
            dispatcher._cache = Cache(function, wide)
        if not options.get("inline"):
            dispatcher.get_call_template = partial(_call_template, dispatcher.get_call_template)
        return dispatcher

    return decorate


def _call_template(found: Callable[..., Any], args: Any, kws: Any) -> Any:
    """A call from a compiled function, where a number is of its type whether or not it is a constant.

    numba would compile a function anew for every constant that it is handed, which inlining makes of it anyway.
    """
    plain = [unliteral(a) if isinstance(a, _NUMBERS) else a for a in args]
    return found(plain, {name: unliteral(a) if isinstance(a, _NUMBERS) else a for name, a in kws.items()})


class _LinkedLibrary(JITCodeLibrary):
    """Library of a function that only compiled ones call: code to link into theirs, but no machine code of its own."""

    def _optimize_final_module(self) -> None:
        """Nothing: it is optimized where it is called, and all of it at once."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LinkedLowering(NativeLowering):
    """Lowering to a `_LinkedLibrary`."""

    _name = "linked_lowering"

    def run_pass(self, state: Any) -> bool:
        """See numba's."""
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        done: bool = super().run_pass(state)
        description, library = state.cr.fndesc, state.library
        # What callers find it by: a function for Python, but of no code.
        entry = make_function(description.lookup_module(), description.qualname, "", 0, state.cr.env, (library,))
        state.targetctx.insert_user_function(entry, description, [library])
        state.cr = state.cr._replace(cfunc=entry)
        return done


@cache
def _linked(pipeline: type[CompilerBase]) -> type[CompilerBase]:
    """The compiler, less the machine code."""

    def define_pipelines(self: CompilerBase) -> list[PassManager]:
        pipelines: list[PassManager] = pipeline.define_pipelines(self)
        for each in pipelines:
            each.passes = [(_LinkedLowering if p is NativeLowering else p, text) for p, text in each.passes]
            each._finalized = False
            each.finalize()
        return pipelines

    return type(f"Linked{pipeline.__name__}", (pipeline,), {"define_pipelines": define_pipelines})


class Cache(NullCache):
    """Compiled functions by their signatures, as a numba dispatcher asks for them."""

    def __init__(self, function: Callable[..., Any], wide: bool, *files: str) -> None:
        """files: sources that are compiled into the function besides those of the functions that it sees."""
        self._function = function
        self.wide = wide
        self._files = files

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function, or None where it is not cached or what is cached cannot be used."""
        rtsys.initialize(target_context)  # what compiled code counts references with
        for found in self._entries(sig, target_context.codegen().magic_tuple()):
            try:
                # numba's own format. The cache gives only what a process of this user, or whoever owns its folder, has
                # stored under this key, an archive what is the package's own: who may write there decides which
                # machine code runs here, pickle or not.
                return CompileResult._rebuild(target_context, *pickle.loads(found))  # noqa: S301
            except Exception:  # of another build of numba, LLVM or Python: it is compiled again
                _LOG.debug("burnish: %s: what is cached cannot be used", self._function.__qualname__, exc_info=True)
        _announce()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Stores a compiled function, unless it holds addresses of this process."""
        if not any(not lifted.can_cache for lifted in data.lifted) and not data.library.has_dynamic_globals:
            _store().put(self._key(sig, *_machine(data.codegen.magic_tuple())), dumps(data._reduce()))

    def _entries(self, sig: Any, magic: tuple[str, str, str]) -> Iterable[bytes]:
        """The entries that may be this function: the user's own, then what was compiled ahead."""
        own = _machine(magic)
        if (found := _store().get(self._key(sig, *own))) is not None:
            yield found
        architecture, levels = _levels(magic)
        for level in levels[:1] if self.wide else levels:
            archive = _archive(level)
            if archive is not None and (found := archive.get(self._key(sig, architecture, level))) is not None:
                yield found

    def _key(self, sig: Any, *machine: str) -> str:
        code = self._function.__code__
        inner = dumps(tuple(cell.cell_contents for cell in self._function.__closure__ or ()))
        versions = burnish.__version__, numba.__version__, llvmlite.__version__, str(implementation.cache_tag)
        where = f"{self._function.__qualname__} {code.co_firstlineno}"
        sources = [_source(path) for path in sorted(_files(self._function) | {*self._files})]
        return cache_key("numba", *versions, *machine, repr(sig), where, *sources, code.co_code, inner)


@cache
def _levels(magic: tuple[str, str, str]) -> tuple[str, list[str]]:
    """The architecture, and its baselines that a CPU, numba's triple, name and features, has all features of."""
    triple, cpu, features = magic
    architecture = triple.split("-")[0]
    known = BASELINES.get(architecture, {}) if "linux" in triple else {}
    own = known[cpu] if cpu in known and not features else {f[1:] for f in features.split(",") if f.startswith("+")}
    return architecture, [level for level, needed in known.items() if needed <= own]


def _machine(magic: tuple[str, str, str]) -> tuple[str, ...]:
    """Names the CPU that code is compiled for: two words for a baseline, so that its code is found on all CPUs."""
    architecture, levels = _levels(magic)
    return (architecture, magic[1]) if magic[1] in levels and not magic[2] else magic


@cache
def _archive(level: str) -> Archive | None:
    """Archive compiled ahead for a baseline CPU; None where the variable BURNISH_AHEAD is 0."""
    return None if os.environ.get("BURNISH_AHEAD") == "0" else Archive(archive_path(level))


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
