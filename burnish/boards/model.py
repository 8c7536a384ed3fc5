"""Whole models on a board: a cross-compiled module is uploaded once, called from here, and timed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np

from burnish.boards.job import BoardJob, Place, Step
from burnish.boards.lost import DeviceLost
from burnish.errors import TargetError
from burnish.runtime.device import bytes_at, unrolled
from burnish.runtime.executable import CopyStep, Executable, KernelCall, Repeat, Slot
from burnish.runtime.image import Image
from burnish.runtime.module import Module
from burnish.runtime.runner import ExecutableInstance
from burnish.runtime.sized import Sized
from burnish.workers import Failure

_AT_ONCE = 512  # steps of one question


class BoardDevice:
    """A board as what a :class:`~burnish.runtime.module.Module` runs on: parameters, arena and state are there.

    ``seconds``: what the last call took there, without its transfers. Calls raise TargetError where the board goes or
    the model fails.
    """

    def __init__(self, job: BoardJob, clock: str, threads: int = 1, name: str = "model") -> None:
        """``clock``: what the board says of its own; ``name`` sets models of the same job apart."""
        self.job, self.native, self.threads, self.name = job, clock == "seconds", threads, name
        self.seconds = 0.0
        self.image: Image | None = None

    def kernels(self, image: Image) -> Mapping[str, bytes]:
        """As of :class:`~burnish.runtime.device.OwnKernels`."""
        self.image = image
        return dict.fromkeys(image.symbols, b"")

    def runner(self, instance: ExecutableInstance, kernels: Mapping[str, bytes]) -> BoardRunner:
        """As of :class:`~burnish.runtime.device.OwnRunner`."""
        del kernels
        return BoardRunner(instance.executable, self, instance.params, instance.state)


class BoardRunner:
    """The steps of an executable on a board; as :class:`~burnish.runtime.runner.CpuRunner`."""

    def __init__(self, executable: Executable, device: BoardDevice, params: np.ndarray, state: np.ndarray) -> None:
        """Raises TargetError for steps that a board has not: opaque operators, collectives, open dimensions."""
        strange = [step.label for step in executable.steps if not isinstance(step, KernelCall | CopyStep | Repeat)]
        if strange or executable.dims:
            found = strange or [f"dimension '{d}'" for d in executable.dims]
            raise TargetError(f"device: found {', '.join(found)}; allowed on a board: kernels of static sizes")
        self.executable, self._device, self._state = executable, device, state
        self.io, self.runtime = [0], SimpleNamespace(scratch_stride=0, scratch=None)
        self.places, self.extents = np.zeros((0, 2), np.int64), list[tuple[int, int]]()
        self._counts: list[int] = []  # calls of each step
        self._steps: list[Step] = []
        for step in executable.steps:
            own = list(self._calls(step))
            self._counts.append(len(own))
            self._steps += own
        with _told():
            self._upload(params)

    def _upload(self, params: np.ndarray) -> None:
        job, executable, device = self._device.job, self.executable, self._device
        assert device.image is not None
        job.code(device.name, device.image)
        if device.native:
            job.code(self._called("driver"), executable.driver)
        job.buffer(self._called("param"), params.nbytes, params.tobytes(), writable=False)
        job.buffer(self._called("state"), self._state.nbytes, self._state.tobytes())
        job.buffer(self._called("arena"), executable.arena_bytes)
        for kind, specs in (("input", executable.inputs), ("output", executable.outputs)):
            for number, spec in enumerate(specs):
                job.buffer(self._called(f"{kind} {number}"), spec.nbytes)

    def place(self, offsets: np.ndarray) -> None:
        """Makes steps find their arguments where they are for the sizes of a call: all are static."""
        del offsets

    def run(self, addresses: list[int], now: Sized, profile: int | None = None) -> None:
        """Executes all steps on the inputs and outputs at ``addresses``. ``profile``: as of CpuRunner."""
        del now
        job, inputs, outputs = self._device.job, self.executable.inputs, self.executable.outputs
        with _told():
            for number, spec in enumerate(inputs):
                job.write(self._called(f"input {number}"), 0, bytes_at(addresses[number], spec.nbytes).tobytes())
            if self._state.nbytes:
                job.write(self._called("state"), 0, self._state.tobytes())
            times = list(self._call(profile is not None))
            places = [(self._called(f"output {n}"), 0, spec.nbytes) for n, spec in enumerate(outputs)]
            places.append((self._called("state"), 0, self._state.nbytes))
            *found, state = job.read(places)
        self._device.seconds = sum(times)
        for number, (spec, data) in enumerate(zip(outputs, found, strict=True)):
            bytes_at(addresses[len(inputs) + number], spec.nbytes)[:] = np.frombuffer(data, np.uint8)
        self._state[:] = np.frombuffer(state, np.uint8)
        if profile is not None:
            self._stamp(profile, times)

    def _call(self, profile: bool) -> Iterator[float]:
        """Seconds of calls, of each alone where a profile is wanted."""
        driver = self._called("driver") if self._device.native else None
        for first in range(0, len(self._steps), _AT_ONCE):
            yield from self._device.job.call(
                self._steps[first : first + _AT_ONCE], scratch=self.executable.scratch_bytes,
                threads=self._device.threads, driver=driver, profile=profile,
            )  # fmt: skip

    def _stamp(self, profile: int, times: Sequence[float]) -> None:
        """Writes when each step began and the last ended, as ``struct timespec``, from 0 on."""
        ends = [0.0, *accumulate(times)]
        begins = [0, *accumulate(self._counts)]
        stamps = bytes_at(profile, 16 * len(begins)).view(np.int64).reshape(-1, 2)
        stamps[:] = [divmod(round(ends[begin] * 1e9), 10**9) for begin in begins]

    def _calls(self, step: Any) -> Iterator[Step]:
        """A step as calls on the board."""
        for call in unrolled(step) if isinstance(step, Repeat) else [step]:
            if isinstance(call, CopyStep):
                yield "", "copy", [self._place(slot) for slot in call.slots]
                continue
            own = call.kernel in self.executable.code.symbols
            code = self._device.name if own else self._called("driver")
            yield code, call.kernel, [self._place(slot) for slot in call.args]

    def _place(self, slot: Slot) -> Place:
        if slot.memory in ("input", "output"):
            return self._called(f"{slot.memory} {slot.index}"), slot.offset, slot.nbytes
        own = self.executable.state_offsets[slot.index] if slot.memory == "state" else 0
        return self._called(slot.memory), own + slot.offset, slot.nbytes

    def _called(self, memory: str) -> str:
        return f"{self._device.name}: {memory}"


@contextmanager
def _told() -> Iterator[None]:
    """Tells of what becomes of a board as TargetError, which callers of a module know."""
    try:
        yield
    except DeviceLost as lost:
        raise TargetError(str(lost)) from lost
    except Failure as failure:
        raise TargetError(f"device: the model {failure.kind}: {failure.detail}") from failure


def module_on(
    job: BoardJob, about: Mapping[str, Any], executable: Executable, threads: int = 1, name: str = "model"
) -> tuple[Module, BoardDevice]:
    """A model on a board, in a job there, for as long as that lasts; and the board, which knows its times. ``about``:
    what the board says of itself.

    Raises TargetError where the board cannot run it.
    """
    device = BoardDevice(job, str(about.get("clock")), threads, name)
    runs: Any = device  # all steps, and no kernel alone
    return Module(executable, 1, device=runs), device
