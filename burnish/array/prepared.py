"""Prepared call: runs a module on addresses, without the checks and the copies of a call by arrays."""

from __future__ import annotations

import copy
import ctypes
import struct
from collections.abc import Callable, Sequence

from burnish.errors import ParameterError
from burnish.runtime.module import Module
from burnish.runtime.runner import CpuRunner
from burnish.runtime.workspace import borrow, give_back

_SIGNATURE = (None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class PreparedModule:
    """A module without state and open dimensions, as a function of the addresses of its inputs and then its outputs.

    The memory at an address is C-contiguous, aligned to elements, of the type that the module has, and stays alive
    during the call; outputs lie apart from each other and from the inputs, but for the pairs of
    ``burnish.driver.assembly.replaceable_inputs``. Not to be called from two threads at the same time.
    """

    def __init__(self, module: Module) -> None:
        """Takes a copy of the module, whose code and parameters it shares. Raises ParameterError."""
        if module.executable.states or module.executable.dims:
            raise ParameterError("prepared call: found a module with states or open dimensions; allowed: one without")
        if len(module.inputs) < len(module.executable.inputs):
            found = "a module that re-orders the structure of a graph"
            raise ParameterError(f"prepared call: found {found}; allowed: one that runs on its inputs as they are")
        self._module = own = copy.copy(module)
        runner = own._runner
        if not isinstance(runner, CpuRunner):
            raise ParameterError("prepared call: found a module that runs on a device; allowed: one that runs here")
        self._runner, self._pool, self._now = runner, own._pool, own._now
        self._needs_memory = own._workspace_bytes
        count = len(module.inputs) + len(module.outputs)
        self._pack = struct.Struct(f"{count}Q").pack_into
        self._io, self._native = self._runner.io, self._runner.native
        self._arguments = (self._runner._only, *self._runner._shared)
        self._inside = False
        self._plain = self._runner._only is not None and not self._needs_memory
        self.short = self._short_call() if self._plain else self

    def __call__(self, addresses: Sequence[int]) -> None:
        """Runs. The interpreter is free for other threads while native code runs."""
        if self._inside:  # a signal handler or a finalizer that came in between
            PreparedModule(self._module)(addresses)
            return
        self._inside = True
        try:
            if not self._pool.running:
                self._pool.start()
            if self._plain:
                self._pack(self._io, 8, *addresses)
                self._native(*self._arguments)
            else:
                self._run_in_workspace(addresses)
        finally:
            self._inside = False

    def _short_call(self) -> Callable[[Sequence[int]], None]:
        """A call that keeps the interpreter: faster where it takes microseconds."""
        entry = ctypes.cast(self._native, ctypes.c_void_p).value
        assert entry is not None
        native, pack, io = ctypes.PYFUNCTYPE(*_SIGNATURE)(entry), self._pack, self._io
        plan, io_address, runtime = self._arguments
        inside = False

        def run(addresses: Sequence[int]) -> None:
            nonlocal inside
            if inside:
                PreparedModule(self._module)(addresses)
                return
            inside = True
            pack(io, 8, *addresses)
            native(plan, io_address, runtime)
            inside = False

        return run

    def _run_in_workspace(self, addresses: Sequence[int]) -> None:
        workspace = borrow(self._needs_memory) if self._needs_memory else None
        try:
            if workspace is not None and workspace is not self._module._workspace:
                self._module._work_in(workspace)
            self._runner.run(list(addresses), self._now)
        finally:
            if workspace is not None:
                give_back(workspace)
