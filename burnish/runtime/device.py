"""Device runner: the steps of an executable whose kernels are code of another form, which a machine's device runs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from burnish.errors import ArtifactError
from burnish.loops.sizes import valued
from burnish.runtime.abi import SCRATCH_STRIDE, Runtime
from burnish.runtime.buffers import address_of, numpy_dtype, round_up
from burnish.runtime.collectives import Collectives
from burnish.runtime.elf import is_elf
from burnish.runtime.executable import CopyStep, Executable, Host, KernelCall, Pointer, Slot
from burnish.runtime.host import check_host
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.link import link
from burnish.runtime.pool import ThreadPool, asked_threads, pool
from burnish.runtime.runner import ExecutableInstance, call_extern, stamp
from burnish.runtime.sized import Sized
from burnish.runtime.steps import Repeat, array_at

NO_SIZES: Mapping[str, int] = {}


class Device(Protocol):
    """Device that runs a machine's code: a driver of a real device, or a simulator."""

    def run(self, code: bytes, memory: Sequence[np.ndarray | int]) -> None:
        """Runs one kernel. ``code``: what the machine's ``compile`` made; ``memory``: the bytes (uint8) of its
        parameters in order, of which it writes those that it has as outputs; a dimension's is its value.
        """


@runtime_checkable
class OwnRunner(Protocol):
    """A device that executes all steps of an executable itself, on memory of its own."""

    def runner(self, instance: ExecutableInstance, kernels: Mapping[str, bytes]) -> Any:
        """As :meth:`DeviceCode.runner`."""


class DeviceBuffer(Protocol):
    """Memory of a device that kernels are given, between bytes that none of them may touch."""

    def write(self, data: np.ndarray) -> None:
        """Fills it with the bytes of an array of as many."""

    def read(self) -> np.ndarray:
        """A copy of its bytes (uint8)."""

    def untouched(self) -> bool:
        """Whether no byte next to it has changed."""


class DeviceBench(Protocol):
    """Kernels and buffers that stay on a device from one run to the next, and the device's own clock."""

    def buffer(self, nbytes: int) -> DeviceBuffer:
        """New memory."""

    def load(self, code: bytes) -> Any:
        """A kernel, from what the machine's ``compile`` made."""

    def seconds(self, loaded: Any, memory: Sequence[DeviceBuffer], runs: int, flushed: bool) -> float:
        """Seconds that ``runs`` runs of a kernel on its parameters take together; ``flushed``: each is timed alone,
        after the device's caches were filled with something else. Raises what the device says of the kernel.
        """


@runtime_checkable
class TimedDevice(Protocol):
    """A device that kernels can be measured on."""

    def bench(self, cpu: str) -> DeviceBench:
        """Measurement bench for the target ``cpu``. Raises TargetError where there is no such device."""


@runtime_checkable
class OwnKernels(Protocol):
    """A device that runs the code of CPUs, which is one image and no :func:`archive`."""

    def kernels(self, image: Image) -> Mapping[str, bytes]:
        """Kernels by name, as ``run`` takes them."""


@dataclass(frozen=True)
class Absent:
    """Stand-in for a CPU that this machine is not: a module for it can be saved, and not called."""

    reason: str

    def kernels(self, image: Image) -> Mapping[str, bytes]:
        """As of :class:`OwnKernels`."""
        return dict.fromkeys(image.symbols, b"")

    def run(self, code: bytes, memory: Sequence[np.ndarray]) -> None:
        """Raises ArtifactError."""
        raise ArtifactError(f"{self.reason}, or save it and load it there")


def archive(machine: str, kernels: Mapping[str, bytes]) -> Image:
    """Kernels of a machine's own form as an image: one after the other, each under its name."""
    symbols, data = {}, b""
    for name, code in kernels.items():
        symbols[name] = len(data)
        data += code
    return Image(machine, data, symbols)


def unpacked(image: Image) -> dict[str, bytes]:
    """The kernels of an :func:`archive`."""
    begins = sorted(image.symbols.items(), key=lambda item: item[1])
    ends = [*(begin for _, begin in begins), len(image.data)][1:]  # none of a model of nothing but Python's operators
    return {name: image.data[begin:end] for (name, begin), end in zip(begins, ends, strict=True)}


def divided(image: Image) -> tuple[dict[str, bytes], Image | None]:
    """The kernels of an :func:`archive` that a device runs, and those of its driver linked; None where it has none."""
    kernels = unpacked(image)
    objects = {name: code for name, code in kernels.items() if is_elf(code)}
    own = {name: code for name, code in kernels.items() if name not in objects}
    return own, link(objects) if objects else None


class Alone:
    """The thread that calls, in the place of a :class:`~burnish.runtime.pool.ThreadPool`."""

    threads = 1
    running = True

    def start(self) -> None:
        """Creates no others."""


@dataclass(frozen=True)
class DeviceCode:
    """The code of an executable for a device, and the device. ``image``: kernels of the CPU that drives it, which run
    on its ``workers``.
    """

    device: Device
    kernels: Mapping[str, bytes]
    workers: Alone | ThreadPool = field(default_factory=Alone)
    image: LoadedImage | None = None

    def runner(self, instance: ExecutableInstance) -> Any:
        """Runner that executes the steps."""
        if isinstance(self.device, OwnRunner):
            return self.device.runner(instance, self.kernels)
        return DeviceRunner(instance, self)


class DeviceRunner:
    """Device runner: the steps of an executable, its kernels on a device; as
    :class:`~burnish.runtime.runner.CpuRunner`.
    """

    def __init__(self, instance: ExecutableInstance, code: DeviceCode) -> None:
        """Raises ArtifactError as CpuRunner."""
        executable = instance.executable
        self.executable, self._code = executable, code
        self._operators = instance.operators()
        self._collectives = Collectives(executable.steps, instance.comm)
        self._bases = {"param": address_of(instance.params), "state": address_of(instance.state)}
        self.io = [0]  # where the arena is
        self.runtime: Any = SimpleNamespace(scratch_stride=0, scratch=None)
        workers = code.workers
        if isinstance(workers, ThreadPool):
            stride = round_up(executable.scratch_bytes, SCRATCH_STRIDE)
            self.runtime = Runtime(workers.parallel, workers.address, None, stride, workers.threads, None)
        buffers = range(len(executable.buffers))  # each is one address that a call enters
        self.places = np.array([(number, 0) for number in buffers], np.int64).reshape(-1, 2)
        self.extents, self._begins = list[tuple[int, int]](), np.zeros(0, np.uint64)

    def place(self, offsets: np.ndarray) -> None:
        """Makes steps find their arguments where they are for the sizes of a call: ``Sized.offsets``."""
        self._begins = offsets

    def run(self, addresses: list[int], now: Sized, profile: int | None = None) -> None:
        """Executes all steps on the inputs and outputs at ``addresses``. ``profile``: as of CpuRunner."""
        sizes = {d.name: value for d, value in zip(self.executable.dims, now.values, strict=True)}
        try:
            stamp(profile, 0)
            for number, step in enumerate(self.executable.steps):
                self._step(number, step, addresses, sizes)
                stamp(profile, number + 1)
        finally:
            self._collectives.abandon()

    def _step(self, number: int, step: Any, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        if isinstance(step, Repeat):
            for call in unrolled(step, sizes):
                self._step(number, call, addresses, sizes)
            return
        places = [self._address(slot, addresses) for slot in step.slots]
        if isinstance(step, KernelCall) and step.kernel not in self._code.kernels:
            self._native(step.kernel, places)
        elif isinstance(step, KernelCall):
            memory = [
                at if slot.memory == "size" else bytes_at(at, self._bytes(slot, sizes))
                for at, slot in zip(places, step.slots, strict=True)
            ]
            self._code.device.run(self._code.kernels[step.kernel], memory)
        elif isinstance(step, CopyStep):
            target, source = (bytes_at(at, valued(step.amount, sizes)) for at in places[:2])
            target[:] = source
        elif isinstance(step, Host):
            arrays = [array_at(at, spec, sizes) for at, spec in zip(places, step.specs, strict=True)]
            call_extern(step, self._operators[number], arrays)
        else:
            self._collectives.step(number, self.executable.steps, places, sizes)

    def _bytes(self, slot: Slot, sizes: Mapping[str, int]) -> int:
        """Bytes of the tensor at a slot, for these values of dimensions."""
        if slot.nbytes or not sizes:
            return slot.nbytes
        if slot.memory in ("input", "output"):
            specs = self.executable.inputs if slot.memory == "input" else self.executable.outputs
            spec = specs[slot.index]
            return math.prod(spec.at(sizes)) * numpy_dtype(spec.dtype).itemsize - slot.offset
        return valued(self.executable.buffers[slot.index].nbytes, sizes) - slot.offset

    def _native(self, kernel: str, places: Sequence[int]) -> None:
        """Calls a kernel of the CPU."""
        assert self._code.image is not None
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self._code.image.address(kernel))
        arguments = (ctypes.c_void_p * len(places))(*places)
        call(ctypes.addressof(arguments), ctypes.addressof(self.runtime))

    def _address(self, slot: Slot, addresses: Sequence[int]) -> int:
        """Address of an argument in a call with inputs and outputs at ``addresses``."""
        if slot.memory == "size":
            return addresses[len(self.executable.inputs) + len(self.executable.outputs) + slot.index]
        if slot.memory == "arena":
            begin = int(self._begins[slot.index]) if self.executable.buffers else 0
            return self.io[0] + begin + slot.offset
        if slot.memory in ("input", "output"):
            first = 0 if slot.memory == "input" else len(self.executable.inputs)
            return addresses[first + slot.index] + slot.offset
        own = self.executable.state_offsets[slot.index] if slot.memory == "state" else 0
        return self._bases[slot.memory] + own + slot.offset


def unrolled(step: Repeat, sizes: Mapping[str, int] = NO_SIZES) -> list[KernelCall]:
    """The calls of all rounds, one after another, each with the places of its arguments, for values of dimensions."""
    pointers = tuple(replace(p, stride=valued(p.stride, sizes), nbytes=valued(p.nbytes, sizes)) for p in step.pointers)
    step = replace(step, count=valued(step.count, sizes), pointers=pointers)
    calls = [_in_round(step, call, 0) for call in step.once]
    for t in range(step.count):
        calls += [_in_round(step, call, t) for call in (step.odd if step.odd and t % 2 else step.calls)]
    return calls


def _in_round(step: Repeat, call: KernelCall, t: int) -> KernelCall:
    return replace(call, args=tuple(_placed(step, slot, t) for slot in call.args))


def _placed(step: Repeat, slot: Slot, t: int) -> Slot:
    """Slot of an argument in round ``t``: itself, or as far behind what its pointer points to as it says."""
    if slot.memory != "repeat":
        return slot
    place = _pointed(step, step.pointers[slot.index], t)
    return replace(place, offset=place.offset + slot.offset, nbytes=slot.nbytes or place.nbytes)


def _pointed(step: Repeat, pointer: Pointer, t: int) -> Slot:
    """Slot that a pointer points to in round ``t``; see :class:`~burnish.runtime.steps.Pointer`."""
    if pointer.before is not None:
        if t == 0:
            return replace(pointer.before, nbytes=pointer.nbytes)
        t -= 1
    left = step.count - 1 - t
    place = pointer.places[left % 2]
    moved = pointer.stride * (left if pointer.backwards else t)
    return replace(place, offset=place.offset + moved, nbytes=pointer.nbytes)


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Memory as an array of bytes: a view, valid as long as the memory is."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


def device_code(executable: Executable, device: Device, threads: int | None) -> DeviceCode:
    """Device kernels, and those that this machine runs for the device. Raises ArtifactError as ``module.Module``."""
    if isinstance(device, OwnKernels):
        return DeviceCode(device, device.kernels(executable.code))
    kernels, native = divided(executable.code)
    if native is None:
        return DeviceCode(device, kernels)
    check_host(str(executable.info.get("driven_by", "")))
    workers = pool(executable.driver, asked_threads(executable.info) if threads is None else threads)
    return DeviceCode(device, kernels, workers, LoadedImage(native))
