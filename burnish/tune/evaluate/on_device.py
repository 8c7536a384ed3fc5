"""Test harness for one task's kernels on a device of this machine, such as a GPU: arrays and kernels stay there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.errors import BurnishError
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.device import DeviceBench, DeviceBuffer
from burnish.runtime.image import Image
from burnish.tune.evaluate.expected import Faulty, WrongAnswer
from burnish.tune.evaluate.remote import TaskArrays

_PACKED_BYTES = 1 << 30  # of constants kept in several layouts at once
UNWRITTEN = 0xFF  # every byte of an output before a check: NaN, or -1


@dataclass(frozen=True)
class HeldKernel:
    """A kernel on the device, and its parameters there."""

    loaded: Any
    arguments: Sequence[DeviceBuffer]


class DeviceHarness:
    """Test harness of one task, its parameters in a device's memory; see
    :class:`burnish.tune.evaluate.interleaved.Bench`.
    """

    def __init__(self, bench: DeviceBench, arrays: TaskArrays, cold: bool) -> None:
        self.cold = cold
        self._bench, self._arrays = bench, arrays
        self._inputs = {name: self._holding(data) for name, data in arrays.inputs.items()}
        self._constants: OrderedDict[tuple[str, str], tuple[DeviceBuffer, int]] = OrderedDict()
        self._outputs = [bench.buffer(expected.nbytes) for expected in arrays.outputs]

    def load(self, kernel: CompiledKernel, image: Image | None) -> HeldKernel:
        """A kernel with its arguments. Raises TargetError of the driver."""
        del image
        task = self._arrays.task
        inputs = [
            self._constant(t.name, kernel.packing.get(t.name, "")) if t.name in task.packing else self._inputs[t.name]
            for t in task.inputs
        ]
        return HeldKernel(self._bench.load(kernel.code), [*inputs, *self._outputs])

    def check(self, loaded: HeldKernel) -> float:
        """Runs the kernel once; the seconds. Raises WrongAnswer, and Faulty of a kernel that the device stops."""
        for buffer, expected in zip(self._outputs, self._arrays.outputs, strict=True):
            buffer.write(np.full(expected.nbytes, UNWRITTEN, np.uint8))
        took = self.seconds(loaded, 1, self.cold)
        for t, buffer, expected in zip(self._arrays.task.outputs, self._outputs, self._arrays.outputs, strict=True):
            found = buffer.read().view(expected.dtype).reshape(expected.shape)
            expected.check(found, t.name, self._arrays.allowed)
        if not self.untouched(loaded):
            raise WrongAnswer("bytes next to its memory were written")
        return took

    def seconds(self, loaded: HeldKernel, runs: int, cold: bool) -> float:
        """Seconds that ``runs`` runs take together, by the device's clock. Raises Faulty."""
        try:
            return self._bench.seconds(loaded.loaded, loaded.arguments, runs, cold)
        except BurnishError as error:
            raise Faulty(f"the device: {error}") from error

    def untouched(self, loaded: HeldKernel) -> bool:
        """Whether no byte next to any of its memory has changed."""
        return all(buffer.untouched() for buffer in loaded.arguments)

    def _constant(self, name: str, tag: str) -> DeviceBuffer:
        if (name, tag) not in self._constants:
            data = self._arrays.constant(name, tag)
            while sum(nbytes for _, nbytes in self._constants.values()) > _PACKED_BYTES:
                self._constants.popitem(last=False)
            self._constants[name, tag] = self._holding(data), len(data)
        return self._constants[name, tag][0]

    def _holding(self, data: bytes) -> DeviceBuffer:
        buffer = self._bench.buffer(len(data))
        buffer.write(np.frombuffer(data, np.uint8))
        return buffer
