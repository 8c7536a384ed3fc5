"""Prepared call: runs a module on addresses, without the checks and the copies of a call by arrays."""

from __future__ import annotations

import copy
import ctypes
import struct
from collections.abc import Sequence

from burnish.errors import ParameterError
from burnish.runtime.module import Module
from burnish.runtime.workspace import borrow, give_back

_SIGNATURE = (None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Prepared:
    """A module without state and open dimensions, as a function of the addresses of its inputs and then its outputs.

    The memory at an address is C-contiguous, aligned to elements, of the type that the module has, and stays alive
    during the call; outputs lie apart from each other and from the inputs, but for those pairs of which
    ``burnish.driver.compilation.in_place`` says that they need not. Not to be called from two threads at the same time.
    """

    def __init__(self, module: Module) -> None:
        """Takes a copy of the module, whose code and parameters it shares. Raises ParameterError."""
        if module.executable.states or module.executable.dims:
            raise ParameterError("prepared call: found a module with states or open dimensions; allowed: one without")
        self._module = own = copy.copy(module)
        self._runner, self._pool, self._now = own._runner, own._pool, own._now
        self._needs_memory = own._workspace_bytes
        count = len(module.inputs) + len(module.outputs)
        self._pack = struct.Struct(f"{count}Q").pack_into
        io = self._runner.io
        self._io, self._first = io, ctypes.sizeof(ctypes.c_void_p)
        entry = ctypes.cast(self._runner.native, ctypes.c_void_p).value
        assert entry is not None
        self._arguments = (self._runner._only, *self._runner._shared)
        self._keeping = ctypes.PYFUNCTYPE(*_SIGNATURE)(entry)
        self._inside = False
        self._plain = self._runner._only is not None and not self._needs_memory

    def __call__(self, addresses: Sequence[int], long: bool = True) -> None:
        """Runs. ``long`` lets go of the interpreter meanwhile, for other threads."""
        if self._inside:  # a signal handler or a finalizer that came in between
            Prepared(self._module)(addresses, long)
            return
        self._inside = True
        try:
            if not self._pool.running:
                self._pool.start()
            if not self._plain:
                self._run_in_workspace(addresses)
            elif long:
                self._pack(self._io, self._first, *addresses)
                self._runner.native(*self._arguments)
            else:
                self._pack(self._io, self._first, *addresses)
                self._keeping(*self._arguments)
        finally:
            self._inside = False

    def _run_in_workspace(self, addresses: Sequence[int]) -> None:
        workspace = borrow(self._needs_memory) if self._needs_memory else None
        try:
            if workspace is not None and workspace is not self._module._workspace:
                self._module._work_in(workspace)
            self._runner.run(list(addresses), self._now)
        finally:
            if workspace is not None:
                give_back(workspace)
