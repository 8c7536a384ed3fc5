"""CPU runner: executes a bound call as native calls, with steps in Python between them where the model has such."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish import ops
from burnish.comm.protocol import Comm
from burnish.errors import ArtifactError, ModelError, UnsupportedOperator
from burnish.ops.operator import Operator
from burnish.runtime.abi import SCRATCH_STRIDE, Runtime, SegmentPlan
from burnish.runtime.buffers import address_of, round_up
from burnish.runtime.collectives import Collectives
from burnish.runtime.executable import Count, Executable, Host
from burnish.runtime.image import LoadedImage
from burnish.runtime.pool import ThreadPool
from burnish.runtime.sized import Sized
from burnish.runtime.steps import array_at
from burnish.runtime.tables import NATIVE, StepTables

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class _Segment:
    """Neighbouring steps that are one native call: its plan, that which calls each step by itself, and the number of
    the first step.
    """

    plan: SegmentPlan
    each: SegmentPlan
    first: int


@dataclass(frozen=True)
class ExecutableInstance:
    """Executable with its parameters and state in memory, opaque operators by name, and the rank it takes part as."""

    executable: Executable
    params: np.ndarray
    state: np.ndarray
    externs: Mapping[str, Operator]
    comm: Comm | None = None

    def operators(self) -> dict[int, Callable[..., Any]]:
        """Functions of the steps in Python, by number. Raises ArtifactError for an operator that is not known."""
        steps = enumerate(self.executable.steps)
        return {i: find_extern(s, self.externs) for i, s in steps if isinstance(s, Host)}


@dataclass(frozen=True)
class CpuCode:
    """CPU code of an executable, in executable memory, and the threads that run it."""

    workers: ThreadPool
    image: LoadedImage

    def runner(self, instance: ExecutableInstance) -> CpuRunner:
        """Runner that executes the steps."""
        return CpuRunner(instance, self.workers, self.image)


class CpuRunner:
    """CPU runner: the steps of an executable as tables of native calls, and operators that are Python.

    ``places`` and ``extents`` say of each address that a call enters what it is (``tables.Tables``, ``sized.sized``).
    """

    def __init__(self, instance: ExecutableInstance, workers: ThreadPool, code: LoadedImage) -> None:
        """Raises ArtifactError, naming the step, for an operator that is not known here or is of other types, and for
        collectives without as many workers.
        """
        executable = self.executable = instance.executable
        self._workers, self._code = workers, code
        stride = round_up(executable.scratch_bytes, SCRATCH_STRIDE)
        self.runtime = Runtime(workers.parallel, workers.address, None, stride, workers.threads, None)
        self.reseed()
        tables = StepTables(executable)
        self._table = tables.bind(self._entry, address_of(instance.params), address_of(instance.state))
        self._begins, self.args = tables.begins, tables.args
        self.patches, self.places, self.extents = tables.patches, tables.places, tables.extents
        self._counts = tables.counts
        self._given = tables.zero  # how many addresses a call has
        self.io = (ctypes.c_void_p * (1 + self._given))()  # arena, inputs, outputs, values of dimensions; null
        self._operators = instance.operators()
        self._collectives = Collectives(executable.steps, instance.comm)
        self.joined = tables.joined
        self._parts = self._segments(tables)
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.native = run(workers.driver.address("burnish_run"))
        self._shared = (ctypes.addressof(self.io), ctypes.addressof(self.runtime))
        alone = len(self._parts) == 1  # all steps are one native call
        self._only = ctypes.addressof(self._parts[0].plan) if alone else None

    def _entry(self, name: str) -> int:
        """The address of a kernel, or of a function of the driver."""
        own = name in self.executable.code.symbols
        return self._code.address(name) if own else self._workers.driver.address(name)

    def _segments(self, tables: StepTables) -> list[Any]:
        """Native segments and the numbers of steps between them, in order; the first segment enters all addresses."""
        clock = ctypes.cast(_libc.clock_gettime, ctypes.c_void_p)
        runs: list[list[int] | int] = [[]]
        for number, step in enumerate(self.executable.steps):
            if not isinstance(step, (*NATIVE, Count)):
                runs += [number]
            elif isinstance(runs[-1], list):
                runs[-1].append(number)
            else:
                runs += [[number]]
        parts: list[Any] = []
        done = 0
        for run in runs:
            if isinstance(run, int):
                parts.append(run)
                continue
            patches = (address_of(self.patches), len(self.patches)) if not parts else (None, 0)
            joined = [at for at, n in enumerate(tables.joined, tables.joined_at) if run and run[0] <= n <= run[-1]]
            plan, each = (
                SegmentPlan(address_of(self._table) + 16 * begin, count, *patches, clock.value)
                for begin, count in ((joined[0] if joined else 0, len(joined)), (done, len(run)))
            )
            parts.append(_Segment(plan, each, run[0] if run else 0))
            done += len(run)
        return parts

    def reseed(self) -> None:
        """Gives draws without a seed other numbers than those of a process that this one was forked from."""
        self.runtime.entropy = int.from_bytes(os.urandom(8), "little")

    def place(self, offsets: np.ndarray) -> None:
        """Makes steps find their arguments where they are for the sizes of a call: ``Sized.offsets``."""
        if len(offsets):
            self.patches[:, 2] = offsets

    def run(self, addresses: list[int], now: Sized, profile: int | None = None) -> None:
        """Executes all steps on the inputs and outputs at ``addresses``. ``profile``: of a ``struct timespec`` before
        every step, and one after the last.
        """
        self.io[1 : self._given] = addresses  # type: ignore[assignment]
        self.runtime.profile = profile
        try:
            if self._only is not None and profile is None:
                self.native(self._only, *self._shared)
                return
            for part in self._parts:
                if isinstance(part, _Segment):
                    self.runtime.profile = profile + 16 * part.first if profile is not None else None
                    self.native(ctypes.addressof(part.plan if profile is None else part.each), *self._shared)
                    continue
                stamp(profile, part)
                self._step(part, now)
                stamp(profile, part + 1)
        finally:
            self.runtime.profile = None
            self._collectives.abandon()

    def counted(self) -> dict[str, int]:
        """The dimensions that the last call has counted."""
        return {d.name: int(self.args[at]) for d, at in self._counts.items()}

    def _step(self, number: int, now: Sized) -> None:
        step = self.executable.steps[number]
        sizes = {d.name: value for d, value in zip(self.executable.dims, now.values, strict=True)} | self.counted()
        begin = self._begins[number]
        addresses = self.args[begin : begin + len(step.slots)].tolist()
        if isinstance(step, Host):
            arrays = [array_at(a, spec, sizes) for a, spec in zip(addresses, step.specs, strict=True)]
            call_extern(step, self._operators[number], arrays)
        else:
            self._collectives.step(number, self.executable.steps, addresses, sizes)


def call_extern(step: Host, run: Callable[..., Any], arrays: list[np.ndarray]) -> None:
    """Calls an opaque operator on the first of ``arrays``, and writes its results to the others.

    Raises ModelError, naming the step, if these have other types than the operator said.
    """
    count = len(arrays) - step.results
    for array in arrays[:count]:
        array.flags.writeable = False
    found = run(*arrays[:count])
    results = found if isinstance(found, tuple) else (found,)
    wanted = [(array.shape, array.dtype) for array in arrays[count:]]
    if [(np.shape(r), np.asarray(r).dtype) for r in results] != wanted:
        raise ModelError(f"node '{step.node}': operator '{step.operator}' gave other types than its shape function")
    for target, result in zip(arrays[count:], results, strict=True):
        np.copyto(target, result)


def find_extern(step: Host, externs: Mapping[str, Operator]) -> Callable[..., Any]:
    """The implementation of a step's operator, with its attributes bound. Never from a file: by its name from Burnish's
    operators, or from ``externs``. Raises ArtifactError.
    """
    operator = ops.OPERATORS.get(step.operator) or externs.get(step.operator)
    if operator is None or operator.extern is None:
        raise ArtifactError(
            f"node '{step.node}' calls the opaque operator '{step.operator}', which is not one of Burnish's; allowed: "
            f"{', '.join(sorted(n for n, o in ops.OPERATORS.items() if o.extern))}, and those given as externs="
        )
    count = len(step.specs) - step.results
    try:
        attrs = operator.complete(step.attrs)
        found = operator.infer([(s.shape, s.dtype) for s in step.specs[:count]], step.attrs)
    except (ModelError, UnsupportedOperator) as error:
        raise ArtifactError(f"node '{step.node}': {error}") from error
    if found != [(s.shape, s.dtype) for s in step.specs[count:]]:
        raise ArtifactError(f"node '{step.node}': operator '{step.operator}' has results {found}; the file says others")
    implementation = operator.extern
    return lambda *arrays: implementation(*arrays, **attrs)


def stamp(profile: int | None, number: int) -> None:
    """Writes the time (CLOCK_MONOTONIC) as number ``number`` of an array of ``struct timespec``."""
    if profile is not None:
        stamp: Any = (ctypes.c_int64 * 2).from_address(profile + 16 * number)
        stamp[:] = divmod(time.clock_gettime_ns(time.CLOCK_MONOTONIC), 10**9)
