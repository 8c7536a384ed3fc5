"""Arrays of a task as kernels find them, and what they must make of them: for kernels here and on boards."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from burnish.kernels.task import KernelTask
from burnish.loops.layout import layout
from burnish.measure.accuracy import scaled_error
from burnish.runtime.buffers import numpy_dtype
from burnish.tune.evaluate.reference import packed


class WrongAnswer(Exception):  # noqa: N818 - an outcome
    """Wrong result: a kernel computed something other than its task defines."""


class Faulty(Exception):  # noqa: N818 - an outcome
    """A kernel that its device stopped: an address that it may not touch, a launch that it refuses."""


class Expected:
    """An output as a kernel should leave it: ``shape``, ``dtype`` and ``nbytes`` are those of its memory."""

    def __init__(self, task: KernelTask, number: int, right: np.ndarray) -> None:
        """``right``: what the reference says of output ``number``, in the order of its axes."""
        t = task.outputs[number]
        arrangement = task.layouts.get(t.name)
        physical = arrangement.pack(right) if arrangement else np.ascontiguousarray(right)
        self.dtype, self.shape = numpy_dtype(t.dtype), physical.shape
        self.nbytes = physical.size * self.dtype.itemsize
        self._counts: np.ndarray | None = None  # which elements do; None: all
        if arrangement and physical.size != right.size:
            self._counts = arrangement.pack(np.ones(right.shape, bool)).astype(bool)
        self._scale = float(np.abs(physical[np.isfinite(physical)]).max(initial=0.0)) or 1.0
        wide = np.float32 if t.dtype in ("float32", "float16", "bfloat16") else np.float64
        self._right = physical.astype(wide)
        self._difference = np.empty_like(self._right)  # making it anew would take longer than computing it

    def check(self, found: np.ndarray, name: str, allowed: float) -> None:
        """Raises WrongAnswer, naming the output, what was found and what is allowed."""
        error = self.error(found)
        if not error <= allowed:
            raise WrongAnswer(f"'{name}' is wrong by {error:.3g} of its scale, allowed: {allowed:.3g}")

    def error(self, found: np.ndarray) -> float:
        """As ``scaled_error``, but fast where all values are finite."""
        with np.errstate(all="ignore"):
            np.subtract(found, self._right, out=self._difference)
            np.abs(self._difference, out=self._difference)
            if self._counts is not None:
                self._difference[~self._counts] = 0
            error = float(self._difference.max(initial=0.0)) / self._scale
        if math.isfinite(error):
            return error
        kept = slice(None) if self._counts is None else self._counts
        return scaled_error([found[kept]], [self._right[kept]])


def varying(task: KernelTask, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs that are given at each call, as kernels find them."""
    return {t.name: packed(feeds[t.name], task.layouts.get(t.name)) for t in task.inputs if t.name not in task.packing}


def constant(array: np.ndarray, tag: str) -> np.ndarray:
    """An input that was packed before, in the layout of a kernel (\"\": as it is)."""
    return np.ascontiguousarray(layout(tag).pack(array) if tag else array)
