"""Executing a swap plan between a budget of main memory and a file: tensors are read into buffers and written back.

Pages of a mapped file count in a process's resident peak; buffers filled by ``preadv`` are just what the plan counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from burnish.errors import InputError, ParameterError
from burnish.graph.graph import TensorType
from burnish.loops.numeric import numpy_dtype
from burnish.memory.swap.plan import SwapPlan
from burnish.memory.swap.problem import SwapProblem

PAGE = 4096  # bytes: tensors begin at multiples of this in the file
Compute = Callable[[int, Sequence[np.ndarray], Sequence[np.ndarray]], None]
Fill = Callable[[np.ndarray], object]


class Room(Protocol):
    """Memory for tensors, of one's own: such as parts of arrays that steps see as a whole."""

    def take(self, name: str) -> np.ndarray:
        """An array for a tensor that enters main memory."""

    def leave(self, name: str) -> None:
        """The tensor leaves main memory."""


class SwapFile:
    """The slow memory: a file with a place for every tensor of ``types``; use as a context manager.

    The file is created, readable by its owner alone, and removed at the end; it must not exist before. ``elsewhere``:
    functions that fill an array with those tensors that lie somewhere else, and are never written. ``nbytes``: of the
    file at most.
    """

    def __init__(
        self, path: str | Path, types: Mapping[str, TensorType], elsewhere: Mapping[str, Fill] | None = None
    ) -> None:
        self.path, self.types, self._elsewhere = Path(path), dict(types), dict(elsewhere or {})
        self._offset: dict[str, int] = {}
        self._written: set[str] = set()
        end = 0
        for name, type in self.types.items():
            if name in self._elsewhere:
                continue
            self._offset[name] = end
            end += -(-type.nbytes // PAGE) * PAGE
        self.nbytes = end
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"store: path: found '{path}' ({error.strerror}); allowed: a new file") from error

    def __enter__(self) -> SwapFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)
        self.path.unlink(missing_ok=True)

    def write(self, name: str, array: np.ndarray) -> None:
        """Writes a tensor. Raises InputError for an unknown name, or an array of another shape or dtype."""
        expected = self._type(name)
        if name in self._elsewhere:
            raise InputError(f"store: '{name}' lies elsewhere; allowed: reading it")
        if array.shape != expected.shape or array.dtype != numpy_dtype(expected.dtype):
            raise InputError(f"store: '{name}': found {array.dtype}{list(array.shape)}; allowed: {expected}")
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        at = self._offset[name]
        while left:
            done = os.pwrite(self._file, left, at)
            left, at = left[done:], at + done
        self._written.add(name)

    def read(self, name: str, out: np.ndarray | None = None) -> np.ndarray:
        """A tensor's values: in ``out``, of its type, or in a new array. Raises InputError for an unknown one, and for
        one that was never written.
        """
        kind = self._type(name)
        array = np.empty(kind.shape, numpy_dtype(kind.dtype)) if out is None else out
        if name in self._elsewhere:
            self._elsewhere[name](array)
            return array
        if name not in self._written:
            raise InputError(f"store: '{name}' was never written; there are: {', '.join(sorted(self._written))}")
        left, at = array.reshape(-1).view(np.uint8).data, self._offset[name]
        while left:
            done = os.preadv(self._file, [left], at)
            if not done:
                raise InputError(f"store: '{name}': the file '{self.path}' ends at byte {at}")
            left, at = left[done:], at + done
        return array

    def _type(self, name: str) -> TensorType:
        if name not in self.types:
            raise InputError(f"store: '{name}': found no such tensor; allowed: {', '.join(self.types)}")
        return self.types[name]


@dataclass(frozen=True)
class Executed:
    """Traffic of an execution, in bytes, and the most bytes of tensors that were in main memory at once."""

    loaded: int
    stored: int
    peak: int


def execute(
    problem: SwapProblem, plan: SwapPlan, store: SwapFile, compute: Compute, room: Room | None = None
) -> Executed:
    """Executes ``plan``: ``compute(step, inputs, outputs)`` fills the output arrays of a step from its inputs.

    Arrays are new ones, or those of ``room``. ``store`` holds what no step writes, before; and the problem's results,
    after. Raises ParameterError where a tensor's bytes in the store are not those of the problem, or main memory would
    exceed the plan's capacity; InputError for an input that the store lacks.
    """
    for name, nbytes in problem.nbytes.items():
        if name not in store.types or store.types[name].nbytes != nbytes:
            found = store.types[name].nbytes if name in store.types else "none"
            raise ParameterError(f"execute: '{name}': found {found} bytes in the store; allowed: {nbytes}")
    fast: dict[str, np.ndarray] = {}
    loaded = stored = used = peak = 0

    def taken(name: str) -> np.ndarray:
        kind = store.types[name]
        return np.empty(kind.shape, numpy_dtype(kind.dtype)) if room is None else room.take(name)

    def claim(names: Sequence[str]) -> None:
        nonlocal used, peak
        used += sum(problem.nbytes[name] for name in names)
        peak = max(peak, used)
        if used > plan.capacity:
            raise ParameterError(f"execute: found {used} bytes in main memory; allowed: {plan.capacity}")

    for kind, name, number in plan.actions:
        if kind == "run":
            step = problem.steps[number]
            new = [w for w in step.writes if w not in fast]
            claim(new)
            fast.update({w: taken(w) for w in new})
            compute(number, [fast[r] for r in step.reads], [fast[w] for w in step.writes])
        elif kind == "load":
            claim([name])
            fast[name] = store.read(name, taken(name))
            loaded += problem.nbytes[name]
        elif kind == "store":
            store.write(name, fast[name])
            stored += problem.nbytes[name]
        else:
            del fast[name]
            if room is not None:
                room.leave(name)
            used -= problem.nbytes[name]
    return Executed(loaded, stored, peak)
