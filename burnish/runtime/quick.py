"""Quick call: a model on arrays that kernels can read as they are, of known sizes, checked natively."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from threading import get_ident
from time import thread_time
from typing import Any

import numpy as np

from burnish.runtime.abi import ArgumentStruct, ArrayStruct, QuickStruct
from burnish.runtime.buffers import ALIGNMENT, aligned_array, round_up
from burnish.runtime.executable import CopyStep, KernelCall
from burnish.runtime.runner import CpuRunner
from burnish.runtime.sized import Sized
from burnish.runtime.workspace import borrow, give_back

BLOCK = 1 << 15  # bytes from which small outputs of successive calls are cut
SMALL = BLOCK // 8  # bytes of all outputs of a call that are small
MOST_PAIRS = 1024  # of arrays, of which no result may share memory with another
SYMBOL = "burnish_quick"
_READABLE, _WRITABLE = 0x1 | 0x100, 0x400  # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED; NPY_ARRAY_WRITEABLE
_SIGNATURE = (ctypes.c_int64, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_NATIVE = ctypes.CFUNCTYPE(*_SIGNATURE)
_BRIEF = ctypes.PYFUNCTYPE(*_SIGNATURE)  # keeps the interpreter's lock, which takes longer to get back than BRIEF
BRIEF = 20e-6  # seconds
TRIALS = 8  # calls that are timed


class QuickCalls:
    """A :class:`QuickCall` for each of the sizes that a module with open ones remembers."""

    def __init__(self, module: Any) -> None:
        self._module, self._calls = module, dict[Any, QuickCall]()
        self._last: QuickCall | None = None

    def __call__(self, args: Sequence[Any]) -> Any:
        """As of :class:`QuickCall`: first as if sizes were those of the last call."""
        if self._last is not None and (found := self._last(args)) is not None:
            return found
        call = self._of(args)
        return None if call is None else call(args)

    def into(self, args: Sequence[Any], results: Sequence[Any]) -> bool:
        """As of :class:`QuickCall`."""
        if self._last is not None and self._last.into(args, results):
            return True
        call = self._of(args)
        return call is not None and call.into(args, results)

    def of_sizes(self, now: Sized) -> QuickCall:
        """The quick call for sizes that the module remembers, or did."""
        key = tuple([shape for shape, _ in now.inputs])
        call = self._calls.get(key)
        if call is None or call.now is not now:
            if len(self._calls) > 4 * len(self._module._seen):
                self._calls.clear()
            call = self._calls[key] = QuickCall(self._module, now)
        return call

    def _of(self, args: Sequence[Any]) -> QuickCall | None:
        """The quick call for these sizes; None where the module does not remember them."""
        try:
            now = self._module._seen.get(tuple([value.shape for value in args]))
        except AttributeError:
            return None
        if now is None:
            return None
        call = self._last = self.of_sizes(now)
        return call


class QuickCall:
    """The steps of a ``module.Module`` as one native call, which checks arrays by what lies in their objects and enters
    their addresses; None instead of a result where a call takes more. A call holds the lock of its context. ``now``:
    what the sizes decide that it is for.
    """

    def __init__(self, module: Any, now: Sized) -> None:
        self._module, runner = module, module._runner
        assert isinstance(runner, CpuRunner)
        self.now = now
        self._inputs, self._outputs = now.inputs, now.outputs
        self._offsets, self._stride = [0], 0
        for shape, dtype in self._outputs:
            self._stride += round_up(max(_nbytes(shape, dtype), 1), ALIGNMENT)
            self._offsets.append(self._stride)
        self._ready: list[tuple[np.ndarray, ...]] = []  # results of next calls
        self._pool, self._counted = module._pool, runner.counted if module.executable.counted else None
        reads, writes = len(self._inputs), len(self._outputs)
        self._address = self._pool.driver.address(SYMBOL)
        self._native: Callable[..., int] = _NATIVE(self._address)
        if all(isinstance(step, (KernelCall, CopyStep)) for step in module.executable.steps):  # as long each time
            self._times: list[float] = []
            self._native = self._timed
        types, flags = (*self._inputs, *self._outputs), [_READABLE] * reads + [_READABLE | _WRITABLE] * writes
        self._shapes = [(ctypes.c_int64 * len(shape))(*shape) for shape, _ in types]
        self._specs = (ArgumentStruct * len(types))(*[
            ArgumentStruct(id(dtype), ctypes.addressof(own), len(shape), _nbytes(shape, dtype), flag)
            for (shape, dtype), own, flag in zip(types, self._shapes, flags, strict=True)
        ])  # fmt: skip
        self._values = (ctypes.c_int64 * len(now.values))(*now.values)
        io, runtime = runner._shared
        specs, values = ctypes.addressof(self._specs), ctypes.addressof(self._values)
        self._structs = [
            QuickStruct(runner._only, io, runtime, id(np.ndarray), reads, writes, specs, values, len(now.values), apart)
            for apart in (0, 1)
        ]
        self._calls = tuple(map(ctypes.addressof, self._structs))
        self._into = self._counted is None and writes * (reads + writes) <= MOST_PAIRS

    @staticmethod
    def of(module: Any) -> QuickCall | QuickCalls | None:
        """The quick calls of a module; None where not all of its calls may be made so."""
        own, runner = module.executable, module._runner
        alone = len(module.inputs) == len(own.inputs) and not own.info.get("structures")
        if not alone or not isinstance(runner, CpuRunner) or runner._only is None:
            return None
        if not _as_in_c() or SYMBOL not in module._pool.driver:
            return None
        return QuickCalls(module) if len(own.dims) > len(own.counted) else QuickCall(module, module._now)

    def of_sizes(self, now: Sized) -> QuickCall:
        """Itself: its sizes are fixed."""
        return self

    def __call__(self, args: Sequence[Any]) -> Any:
        """The output or the tuple of outputs; None where a call takes more."""
        try:
            results = self._ready.pop()
        except IndexError:
            results = self._new_results()
        found = self._run(args if type(args) is tuple else tuple(args), results, False)
        if found is None:
            self._ready.append(results)
            return None
        return found[0] if len(found) == 1 else found

    def into(self, args: Sequence[Any], results: Sequence[Any]) -> bool:
        """Whether the call was made, with ``results`` for outputs: else it takes more, or they do not fit."""
        if not self._into or len(args) != len(self._inputs) or len(results) != len(self._outputs):
            return False
        return self._run(tuple(args), tuple(results), True) is not None

    def _run(self, args: tuple[Any, ...], results: tuple[Any, ...], apart: bool) -> tuple[Any, ...] | None:
        """The results, as long as dimensions that the call counts say; None if it was not made. ``apart``: whether
        results must be checked to share no memory.
        """
        module = self._module
        if module._integers:
            if any(type(value) is not np.ndarray for value in args):
                return None
            module.check_integers(args)
        contexts = module._contexts
        if contexts.waiting or not module._lock.acquire(module._in_turn):
            module = contexts.take()
        try:
            own = self if module is self._module else module._quick.of_sizes(self.now)
            return own._run_here(args, results, apart)
        finally:
            module._lock.release()
            if contexts.waiting:
                contexts.released()

    def _run_here(self, args: tuple[Any, ...], results: tuple[Any, ...], apart: bool) -> tuple[Any, ...] | None:
        """As ``_run``, in this context, whose lock is held."""
        module = self._module
        if module._caller or not self._pool.running:  # in a signal handler or a finalizer; after a fork
            return None
        workspace = None
        try:
            module._caller = get_ident()
            if module._now is not self.now:
                module._for(self.now)
            if module._workspace_bytes:
                workspace = borrow(module._workspace_bytes)
                if workspace is not module._workspace:
                    module._work_in(workspace)
            if self._native(args, results, self._calls[apart]):
                return None
            return results if self._counted is None else tuple(module._beginnings(results, self._counted()))
        finally:
            module._caller = 0
            if workspace is not None:
                give_back(workspace)

    def _timed(self, args: tuple[Any, ...], results: tuple[Any, ...], call: int) -> int:
        """One of the first calls, of whose time it depends how further ones are made."""
        began = thread_time()
        found = _NATIVE(self._address)(args, results, call)
        self._times.append(thread_time() - began)
        if len(self._times) == TRIALS:
            self._native = (_BRIEF if min(self._times) < BRIEF else _NATIVE)(self._address)
        return found

    def _new_results(self) -> tuple[np.ndarray, ...]:
        """New arrays for the outputs; small ones are cut from a block, for several calls."""
        if not self._outputs:
            return ()
        if self._stride > SMALL:
            return tuple([aligned_array(shape, dtype)[0] for shape, dtype in self._outputs])
        block, _ = aligned_array((BLOCK,), np.dtype(np.uint8))
        calls = BLOCK // self._stride
        columns = [
            _rows(calls, shape, dtype, block, offset, self._stride)
            for (shape, dtype), offset in zip(self._outputs, self._offsets, strict=False)
        ]
        first, *self._ready = zip(*columns, strict=True)
        return first


def _nbytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return math.prod(shape) * dtype.itemsize


def _rows(
    count: int, shape: tuple[int, ...], dtype: np.dtype, block: np.ndarray, offset: int, stride: int
) -> list[np.ndarray]:
    """Arrays of one shape in a block, ``stride`` bytes apart."""
    if not shape:
        return [np.ndarray(shape, dtype, block, offset + at * stride) for at in range(count)]
    one = np.ndarray(shape, dtype, block, offset)
    return list(np.ndarray((count, *shape), dtype, block, offset, (stride, *one.strides)))


@cache
def _as_in_c() -> bool:
    """Whether arrays and tuples lie in memory as native code expects them: in CPython with a lock."""
    array = np.zeros((3, 2), np.float32)
    array.flags.writeable = False
    pair = (array, array)
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    items = (ctypes.c_void_p * 2).from_address(id(pair) + tuple.__basicsize__)
    found = ArrayStruct.from_address(id(array))
    return (
        [*items] == [id(array)] * 2
        and (found.type, found.data) == (id(np.ndarray), array.__array_interface__["data"][0])
        and (found.rank, found.dtype, found.flags) == (2, id(array.dtype), array.flags.num)
        and tuple(found.shape[:2]) == (3, 2)
    )
