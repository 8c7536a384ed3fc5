"""Test harness for one task's kernels on a board: as the one here, but arrays and code are uploaded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.boards.job import BoardJob, Place
from burnish.errors import TargetError
from burnish.kernels.task import KernelTask
from burnish.machines.target import Target
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.entry import driver_image
from burnish.runtime.image import Image
from burnish.tune.evaluate import timer
from burnish.tune.evaluate.expected import Expected, WrongAnswer, constant, varying
from burnish.tune.evaluate.reference import Examples, tolerance

DRIVER, WATCH = "driver", "watch"  # code on a board that all kernels share
_PACKED_BYTES = 1 << 28  # of constants kept in several layouts at once


class TaskArrays:
    """One task's inputs as bytes, and its outputs: made once, for any number of boards."""

    def __init__(self, task: KernelTask, examples: Examples) -> None:
        self.task = task
        self._feeds, right = examples
        self.inputs = {name: array.tobytes() for name, array in varying(task, self._feeds).items()}
        self.outputs = [Expected(task, number, array) for number, array in enumerate(right)]
        self.allowed = tolerance(task)
        self._constants: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def constant(self, name: str, tag: str) -> bytes:
        """A constant in the layout of a kernel."""
        if (name, tag) not in self._constants:
            while sum(map(len, self._constants.values())) > _PACKED_BYTES:
                self._constants.popitem(last=False)
            self._constants[name, tag] = constant(self._feeds[name], tag).tobytes()
        return self._constants[name, tag]


@dataclass(frozen=True)
class RemoteKernel:
    """A kernel on a board. ``code``: its name there; arguments and constants are places there."""

    code: str
    kernel: CompiledKernel
    arguments: Sequence[Place]
    constants: Sequence[Place]


class RemoteHarness:
    """Test harness of one task, its parameters on a board, in a job; see
    :class:`burnish.tune.evaluate.interleaved.Bench`.

    ``name`` sets it apart from other tasks of the job. ``about``: what the board says of itself.
    """

    def __init__(
        self,
        job: BoardJob,
        arrays: TaskArrays,
        target: Target,
        threads: int,
        cold: bool,
        name: str,
        about: Mapping[str, Any],
    ) -> None:
        self.cold = cold
        self._job, self._arrays, self._name, self._threads = job, arrays, name, threads
        self._native = about.get("clock") == "seconds"
        self._loaded = 0
        self._held: set[str] = set()
        if cold and not (self._native and timer.can_flush(target)):
            raise TargetError("tuning: cold runs can be timed on x86-64 only")
        if self._native:
            job.code(DRIVER, driver_image(target.triple))
            job.code(WATCH, timer.image(target))
        for t, expected in zip(arrays.task.outputs, arrays.outputs, strict=True):
            job.buffer(self._called(t.name), expected.nbytes)

    def load(self, kernel: CompiledKernel, image: Image | None) -> RemoteKernel:
        """Uploads what the board does not have."""
        assert image is not None, "code of a CPU is linked where it is built"
        self._loaded += 1
        code = f"{self._name} {self._loaded}"
        self._job.code(code, image)
        task, arguments, constants = self._arrays.task, [], []
        for t in task.inputs:
            if t.name in task.packing:
                tag = kernel.packing.get(t.name, "")
                arguments.append(self._given(f"{t.name} as {tag}", self._arrays.constant(t.name, tag)))
                constants.append(arguments[-1])
            else:
                arguments.append(self._given(t.name, self._arrays.inputs[t.name]))
        for t, expected in zip(task.outputs, self._arrays.outputs, strict=True):
            arguments.append((self._called(t.name), 0, expected.nbytes))
        return RemoteKernel(code, kernel, arguments, constants)

    def check(self, loaded: RemoteKernel) -> float:
        """Runs the kernel once; the seconds. Raises WrongAnswer."""
        outputs = loaded.arguments[len(self._arrays.task.inputs) :]
        self._job.fill([name for name, _, _ in outputs])
        took = self.seconds(loaded, 1, self.cold)
        found = self._job.read(outputs)
        for t, expected, data in zip(self._arrays.task.outputs, self._arrays.outputs, found, strict=True):
            array = np.frombuffer(data, expected.dtype).reshape(expected.shape)
            expected.check(array, t.name, self._arrays.allowed)
        if not self.untouched(loaded):
            raise WrongAnswer("bytes next to its memory were written")
        return took

    def seconds(self, loaded: RemoteKernel, runs: int, cold: bool) -> float:
        """Seconds that ``runs`` runs take together."""
        step = (loaded.code, loaded.kernel.symbol, loaded.arguments)
        (each,) = self._job.call(
            [step], runs=runs, scratch=loaded.kernel.scratch_bytes, threads=self._threads,
            flushed=loaded.constants if cold else None, driver=DRIVER if self._native else None,
            watch=WATCH if self._native else None,
        )  # fmt: skip
        return each * runs

    def untouched(self, loaded: RemoteKernel) -> bool:
        """Whether no byte next to any memory of the job has changed."""
        del loaded
        return self._job.untouched()

    def _given(self, name: str, data: bytes) -> Place:
        """Memory that kernels only read, uploaded on first use."""
        called = self._called(name)
        if called not in self._held:
            self._job.buffer(called, len(data), data, writable=False)
            self._held.add(called)
        return called, 0, len(data)

    def _called(self, name: str) -> str:
        return f"{self._name}: {name}"
