"""Quick call: a model without state on arrays that kernels can read as they are, of known sizes, with few checks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from threading import get_ident
from typing import Any

import numpy as np

from burnish.runtime.buffers import ALIGNMENT, address_of, aligned_array, round_up
from burnish.runtime.runner import CpuRunner
from burnish.runtime.sized import Sized
from burnish.runtime.workspace import borrow, give_back

BLOCK = 4096  # bytes from which small outputs of successive calls are cut
SMALL = 512  # bytes of all outputs of a call that are small
_READABLE = 0x1 | 0x100  # NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED


class QuickCalls:
    """A :class:`QuickCall` for each of the sizes that a module with open ones remembers."""

    def __init__(self, module: Any) -> None:
        self._module, self._calls = module, dict[Any, QuickCall]()

    def __call__(self, args: Sequence[Any]) -> Any:
        """As of :class:`QuickCall`."""
        try:
            key = tuple([value.shape for value in args])
        except AttributeError:
            return None
        now = self._module._seen.get(key)
        if now is None:
            return None
        call = self._calls.get(key)
        if call is None or call.now is not now:
            if len(self._calls) > 4 * len(self._module._seen):
                self._calls.clear()
            call = self._calls[key] = QuickCall(self._module, now)
        return call(args)


class QuickCall:
    """The steps of a ``module.Module`` as one native call on the addresses of arrays; None instead of a result where a
    call takes more. Calls hold the module's lock. ``now``: what the sizes decide that it is for.
    """

    def __init__(self, module: Any, now: Sized) -> None:
        self._module, runner = module, module._runner
        assert isinstance(runner, CpuRunner)
        self.now = now
        self._inputs, self._outputs = now.inputs, now.outputs
        self._offsets, self._stride = [0], 0
        for shape, dtype in self._outputs:
            self._stride += round_up(max(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 1), ALIGNMENT)
            self._offsets.append(self._stride)
        self._ready: list[tuple[tuple[np.ndarray, ...], tuple[int, ...]]] = []  # results of next calls, addresses
        self._values = now.values
        count = len(self._inputs) + len(self._outputs) + len(now.values)
        self._enter = struct.Struct(f"{count}Q").pack_into
        self._io, self._native, self._pool = runner.io, runner.native, module._pool
        self._counted = runner.counted if module.executable.counted else None
        self._plan, (self._io_address, self._runtime) = runner._only, runner._shared

    @staticmethod
    def of(module: Any) -> QuickCall | QuickCalls | None:
        """The quick calls of a module; None where not all of its calls may be made so."""
        own, runner = module.executable, module._runner
        alone = len(module.inputs) == len(own.inputs) and not own.states and not own.info.get("structures")
        if not alone or not isinstance(runner, CpuRunner) or runner._only is None:
            return None
        return QuickCalls(module) if len(own.dims) > len(own.counted) else QuickCall(module, module._now)

    def __call__(self, args: Sequence[Any]) -> Any:
        """The output or the tuple of outputs."""
        addresses = []
        for value, (shape, dtype) in zip(args, self._inputs, strict=True):
            if type(value) is not np.ndarray or value.shape != shape or value.dtype is not dtype:
                return None
            if value.flags.num & _READABLE != _READABLE:
                return None
            addresses.append(address_of(value))
        module = self._module
        if module._integers:
            module.check_integers(args)
        with module._lock:
            if module._caller or not self._pool.running:  # in a signal handler or a finalizer; after a fork
                return None
            workspace = None
            try:
                module._caller = get_ident()
                if module._now is not self.now:
                    module._for(self.now)
                need = module._workspace_bytes
                results, places = self._new_results()
                workspace = borrow(need) if need else None
                if workspace is not None and workspace is not module._workspace:
                    module._work_in(workspace)
                self._enter(self._io, 8, *addresses, *places, *self._values)
                self._native(self._plan, self._io_address, self._runtime)
                if self._counted is not None:
                    results = tuple(module._beginnings(results, self._counted()))
            finally:
                module._caller = 0
                if workspace is not None:
                    give_back(workspace)
        return results[0] if len(results) == 1 else results

    def _new_results(self) -> tuple[tuple[np.ndarray, ...], tuple[int, ...]]:
        """New arrays for the outputs, and their addresses; small ones are cut from a block, for several calls."""
        if self._stride > SMALL:
            made = [aligned_array(shape, dtype) for shape, dtype in self._outputs]
            return tuple([array for array, _ in made]), tuple([address for _, address in made])
        if not self._ready:
            block, address = aligned_array((BLOCK,), np.dtype(np.uint8))
            calls = BLOCK // self._stride
            columns = [
                _rows(calls, shape, dtype, block, offset, self._stride)
                for (shape, dtype), offset in zip(self._outputs, self._offsets, strict=False)
            ]
            own = range(address, address + calls * self._stride, self._stride)
            places = [tuple([begin + offset for offset in self._offsets[:-1]]) for begin in own]
            self._ready = list(zip(zip(*columns, strict=True), places, strict=True))[::-1]
        return self._ready.pop()


def _rows(
    count: int, shape: tuple[int, ...], dtype: np.dtype, block: np.ndarray, offset: int, stride: int
) -> list[np.ndarray]:
    """Arrays of one shape in a block, ``stride`` bytes apart."""
    if not shape:
        return [np.ndarray(shape, dtype, block, offset + at * stride) for at in range(count)]
    one = np.ndarray(shape, dtype, block, offset)
    return list(np.ndarray((count, *shape), dtype, block, offset, (stride, *one.strides)))
