"""Linking of a compiled model's objects and the driver: the last step of compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.memory.lifetimes import Interval
from burnish.runtime.buffers import packed_states
from burnish.runtime.device import archive
from burnish.runtime.elf import is_elf
from burnish.runtime.entry import driver_image
from burnish.runtime.executable import ConcurrentCalls, Executable, Step, TensorSpec
from burnish.runtime.host import machine_of
from burnish.runtime.image import Image
from burnish.runtime.link import link


def build(
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    steps: Sequence[Step],
    objects: Mapping[str, bytes],
    params: np.ndarray,
    arena_bytes: int,
    scratch_bytes: int,
    target: str,
    graph: str = "",
    info: Mapping[str, Any] | None = None,
    buffers: Sequence[Interval] = (),
    in_place: Sequence[tuple[str, str]] = (),
    states: Mapping[str, np.ndarray] | None = None,
    driven_by: str | None = None,
    concurrent: Sequence[ConcurrentCalls] = (),
) -> Executable:
    """The executable of ``objects`` (kernel symbol -> ELF object); the other arguments are those of ``Executable``.
    ``states``: the initial value of each, by name. ``driven_by``: objects are what a device runs, but for those that
    are ELF: of the CPU of this fingerprint, as ``target`` is one, which drives the device; "" where none does.

    Raises LinkError, TargetError for a machine without a driver, and VerificationError.
    """
    if driven_by is not None:
        code = archive(machine_of(target), objects)
        driven = any(is_elf(own) for own in objects.values())
        driver = driver_image(driven_by.partition("/")[0]) if driven else Image(code.machine, b"", {})
    else:
        driver = driver_image(target.partition("/")[0])
        code = link(objects) if objects else Image(driver.machine, b"", {})
    values = dict(states or {})
    specs = tuple(TensorSpec(name, value.shape, str(value.dtype)) for name, value in values.items())
    initial = packed_states(list(values.values()))
    return Executable(
        tuple(inputs), tuple(outputs), tuple(steps), driver, code, params, arena_bytes, scratch_bytes, target, graph,
        dict(info or {}), tuple(buffers), tuple(in_place), specs, initial, initial, tuple(concurrent),
    )  # fmt: skip
