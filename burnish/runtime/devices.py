"""Devices by architecture: what runs the code of a machine that is not this CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from burnish.errors import ArtifactError
from burnish.machines.machine import Machine
from burnish.runtime.device import Absent
from burnish.runtime.gpu.cuda import CudaDevice
from burnish.runtime.host import check_host, machine_of

BY_ARCHITECTURE: Mapping[str, Callable[[], Any]] = {"nvptx64": CudaDevice}


def device_maker(machine: Machine) -> Callable[[], Any] | None:
    """What makes the device of a machine: its own, or that of its architecture; None where this CPU calls its code."""
    shipped = BY_ARCHITECTURE.get(machine.architectures[0]) if machine.dialect.grid is not None else None
    return machine.device or shipped


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


def device_of(target: str) -> Any | None:
    """The device that runs what was compiled for ``target``, a ``host.fingerprint``; None where CPUs do."""
    maker = BY_ARCHITECTURE.get(machine_of(target.partition("-")[0]))
    return None if maker is None else maker()
