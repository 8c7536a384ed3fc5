"""A module run between forbidden pages: inputs, outputs, parameters, arena and scratch each have pages of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from burnish.runtime.buffers import ALIGNMENT, round_up
from burnish.runtime.fenced import Fenced
from burnish.runtime.module import Module
from burnish.runtime.workspace import Workspace
from tools.fuzz.standard import is_float


class FencedModule(Module):
    """A module whose parameters, arena and scratch are fenced, on one side of their pages (``edge``)."""

    def __init__(self, module: Module, edge: str) -> None:
        made = module.executable
        params = Fenced(round_up(made.params.nbytes, ALIGNMENT), edge).fill()
        params.bytes[: made.params.nbytes] = made.params
        self._edge = edge
        self._arena = Fenced(round_up(made.arena_bytes, ALIGNMENT), edge).fill()
        self._fenced_params = params
        super().__init__(replace(made, params=params.bytes[: made.params.nbytes]), module.threads)
        self._scratch = Fenced(self._runner.runtime.scratch_stride * self.threads, edge).fill()

    def _work_in(self, workspace: Workspace) -> None:
        self._workspace = workspace
        nbytes = round_up(self._now.arena_bytes, ALIGNMENT)
        if nbytes != self._arena.bytes.nbytes:  # that of other sizes
            self._arena = Fenced(nbytes, self._edge).fill()
        self._runner.io[0] = self._arena.address
        if hasattr(self, "_scratch"):
            self._runner.runtime.scratch = self._scratch.address

    def run(self, inputs: Sequence[np.ndarray], edge: str) -> list[np.ndarray]:
        """Outputs for these inputs. Touching a byte next to a buffer kills the process, or raises AssertionError."""
        if self._workspace is not None:
            self._work_in(self._workspace)
        given = [fenced_copy(array, edge) for array in inputs]
        _, now = self._accept_all([array for _, array in given])
        taken = [Fenced(prod(shape) * dtype.itemsize, edge).fill() for shape, dtype in now.outputs]
        arrays = [fence.array(*spec) for fence, spec in zip(taken, now.outputs, strict=True)]
        self.run_into([array for _, array in given], arrays)
        fences = [fence for fence, _ in given] + taken + [self._arena, self._scratch, self._fenced_params]
        assert all(fence.untouched_around() for fence in fences), "bytes next to a buffer were written"
        assert all(np.array_equal(copy, own, equal_nan=is_float(copy)) for (_, copy), own in
                   zip(given, inputs, strict=True)), "an input was changed"  # fmt: skip
        return [array.copy() for array in arrays]


def fenced_copy(array: np.ndarray, edge: str) -> tuple[Fenced, np.ndarray]:
    """A copy of the array in fenced memory."""
    fence = Fenced(array.nbytes, edge).fill()
    copy = fence.array(array.shape, array.dtype)
    copy[...] = array
    return fence, copy


def run_fenced(module: Module, inputs: Sequence[np.ndarray], edge: str) -> list[np.ndarray]:
    """Outputs of the module, all of whose memory lies between forbidden pages."""
    return FencedModule(module, edge).run(inputs, edge)
