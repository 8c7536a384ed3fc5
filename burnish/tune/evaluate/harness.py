"""Test harness for one task's kernels: guarded memory, expected outputs, and a timer; a kernel may crash, hang or
lie.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from burnish.kernels.task import KernelTask
from burnish.machines.target import Target
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.abi import SCRATCH_STRIDE, Runtime
from burnish.runtime.buffers import ALIGNMENT, round_up
from burnish.runtime.entry import driver_image
from burnish.runtime.fenced import Fenced
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.pool import ThreadPool, pool
from burnish.tune.evaluate.expected import Expected, WrongAnswer, constant, varying
from burnish.tune.evaluate.reference import Examples, tolerance
from burnish.tune.evaluate.reference import examples as make_examples
from burnish.tune.evaluate.timer import Timer

_AROUND_OUTPUTS = 0xA5  # a byte
_PACKED_BYTES = 1 << 29  # of constants kept in several layouts at once


class LoadedKernel:
    """Loaded kernel in executable memory with its arguments: all that the stopwatch needs to call it."""

    def __init__(
        self,
        kernel: CompiledKernel,
        image: Image,
        arguments: Sequence[Fenced],
        constants: Sequence[Fenced],
        workers: ThreadPool,
    ) -> None:
        self._image = LoadedImage(image)
        self.address = self._image.address(kernel.symbol)
        stride = round_up(kernel.scratch_bytes, SCRATCH_STRIDE)
        self.scratch = _writable(stride * workers.threads)
        self._runtime = Runtime(workers.parallel, workers.address, self.scratch.address, stride, workers.threads, None)
        self._kept = arguments  # whose memory would go with them
        self._arguments = (ctypes.c_void_p * len(arguments))(*(each.address for each in arguments))
        self.pointers = ctypes.addressof(self._arguments)
        self.runtime = ctypes.addressof(self._runtime)
        self.constants = [(each.address, each.bytes.size) for each in constants]


@dataclass(frozen=True)
class _Output:
    """Memory of an output, that memory as an array, and what should be there."""

    memory: Fenced
    found: np.ndarray
    expected: Expected


class KernelHarness:
    """Test harness of one task: its parameters in fenced memory, and the outputs that its kernels must compute.

    ``cold``: constants come from memory in every timed run, as in a model that is larger than the caches; otherwise
    from wherever the previous run has left them.
    """

    def __init__(
        self, task: KernelTask, target: Target, threads: int, cold: bool = False,
        examples: Examples | None = None,
    ) -> None:  # fmt: skip
        """``examples``: inputs by name and the reference's outputs for them, if they are known."""
        self.task = task
        self.cold = cold
        self.feeds, self.expected = make_examples(task) if examples is None else examples
        self._allowed = tolerance(task)
        self._pool = pool(driver_image(target.triple), threads)
        self._pool.start()
        self._watch = Timer(target)
        self._inputs = {name: _holding(array) for name, array in varying(task, self.feeds).items()}
        self._constants: dict[tuple[str, str], Fenced] = {}
        self._outputs = [self._output(i) for i in range(len(task.outputs))]

    def _output(self, number: int) -> _Output:
        expected = Expected(self.task, number, self.expected[number])
        memory = _writable(expected.nbytes)
        return _Output(memory, memory.bytes.view(expected.dtype).reshape(expected.shape), expected)

    def load(self, kernel: CompiledKernel, image: Image | None) -> LoadedKernel:
        """Raises OSError or MemoryError for a kernel that cannot be loaded, ScheduleError for a layout."""
        assert image is not None, "code of a CPU is linked where it is built"
        constants = [
            self._constant(t.name, kernel.packing.get(t.name, ""))
            for t in self.task.inputs if t.name in self.task.packing
        ]  # fmt: skip
        found = iter(constants)
        inputs = [self._inputs[t.name] if t.name in self._inputs else next(found) for t in self.task.inputs]
        arguments = [*inputs, *(output.memory for output in self._outputs)]
        return LoadedKernel(kernel, image, arguments, constants, self._pool)

    def _constant(self, name: str, tag: str) -> Fenced:
        if (name, tag) not in self._constants:
            while sum(each.bytes.size for each in self._constants.values()) > _PACKED_BYTES:
                del self._constants[next(iter(self._constants))]
            self._constants[name, tag] = _holding(constant(self.feeds[name], tag))
        return self._constants[name, tag]

    def check(self, loaded: LoadedKernel) -> float:
        """Runs the kernel once; the seconds. Raises WrongAnswer, naming the output, what was found, what is allowed."""
        for output in self._outputs:
            output.memory.fill()
        loaded.scratch.fill()  # what reads it before it writes it gets NaN; and a run does not pay for fresh pages
        took = self.seconds(loaded, 1, self.cold)
        for t, output in zip(self.task.outputs, self._outputs, strict=True):
            if not output.memory.untouched_around():
                raise WrongAnswer(f"bytes next to '{t.name}' were written")
            output.expected.check(output.found, t.name, self._allowed)
        if not loaded.scratch.untouched_around():
            raise WrongAnswer("bytes next to scratch memory were written")
        return took

    def seconds(self, loaded: LoadedKernel, runs: int, cold: bool) -> float:
        """Seconds that ``runs`` runs take together."""
        flushed = loaded.constants if cold else None
        return self._watch.seconds(loaded.address, loaded.pointers, loaded.runtime, runs, flushed)

    def untouched(self, loaded: LoadedKernel) -> bool:
        """Whether no byte next to an output or to scratch memory has changed."""
        return loaded.scratch.untouched_around() and all(o.memory.untouched_around() for o in self._outputs)


def _writable(nbytes: int) -> Fenced:
    """Memory that kernels write: around it is what one that goes astray does not happen to write, as it might NaN."""
    return Fenced(nbytes, alignment=ALIGNMENT, around=_AROUND_OUTPUTS)


def _holding(array: np.ndarray) -> Fenced:
    """Memory that kernels may only read."""
    memory = Fenced(array.nbytes, alignment=ALIGNMENT)
    memory.bytes[:] = array.reshape(-1).view(np.uint8)
    memory.lock()
    return memory
