"""Devices by architecture: what runs the code of a machine that is not this CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from burnish.errors import ArtifactError, BurnishError, TargetError
from burnish.machines.machine import Machine
from burnish.runtime.device import Absent, DeviceBench, OwnKernels, TimedDevice
from burnish.runtime.gpu.cuda import CudaDevice
from burnish.runtime.host import check_host, machine_of
from burnish.runtime.pool import available_cores

if TYPE_CHECKING:
    from burnish.machines.target import Target

BY_ARCHITECTURE: Mapping[str, Callable[[], Any]] = {"nvptx64": CudaDevice}


def device_maker(machine: Machine) -> Callable[[], Any] | None:
    """Device factory of a machine: its own, or that of its architecture; None where this CPU calls its code."""
    shipped = BY_ARCHITECTURE.get(machine.architectures[0]) if machine.dialect.grid is not None else None
    return machine.device or shipped


def has_own_form(machine: Machine) -> bool:
    """Whether kernels for a machine are code of a form of its device's own, and not what CPUs run."""
    maker = device_maker(machine)
    return maker is not None and not isinstance(maker(), OwnKernels)


def device_for(machine: Machine, fingerprint: str) -> Any | None:
    """The device of what was compiled for ``fingerprint``, a machine's; None where this CPU calls its code, and one
    that refuses calls where it cannot.
    """
    maker = device_maker(machine)
    if maker is not None:
        return maker()
    try:
        check_host(fingerprint)
    except ArtifactError as error:
        return Absent(str(error))
    return None


def bench_for(target: Target) -> DeviceBench:
    """Measurement bench of a target, if not this CPU.

    Raises TargetError, naming the target, where its device cannot be had or has no clock.
    """
    maker = device_maker(target.machine)
    device = None if maker is None else maker()
    if not isinstance(device, TimedDevice):
        raise TargetError(f"target '{target.name}': found no device with a clock; allowed: NVIDIA GPUs")
    try:
        return device.bench(target.cpu)
    except BurnishError as error:
        raise TargetError(f"target '{target.name}': {error}") from None


def is_timed(machine: Machine) -> bool:
    """Whether kernels for a machine are measured on a device with a clock of its own."""
    maker = device_maker(machine)
    return maker is not None and isinstance(maker(), TimedDevice)


def usual_threads(target: Target) -> int:
    """Default threads of this process for a target's code: all cores, or one where another device runs it."""
    return available_cores() if device_maker(target.machine) is None else 1


def device_of(target: str) -> Any | None:
    """The device that runs what was compiled for ``target``, a ``host.fingerprint``; None where CPUs do."""
    maker = BY_ARCHITECTURE.get(machine_of(target.partition("-")[0]))
    return None if maker is None else maker()
