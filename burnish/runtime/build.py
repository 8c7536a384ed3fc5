"""Links a compiled model's objects and the driver: the last step of compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.memory.lifetimes import Interval
from burnish.runtime.entry import driver_image
from burnish.runtime.executable import Call, Executable, TensorSpec
from burnish.runtime.image import Image
from burnish.runtime.link import link


def build(
    *,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    calls: Sequence[Call],
    objects: Mapping[str, bytes],
    params: np.ndarray,
    arena_bytes: int,
    scratch_bytes: int,
    target: str,
    graph: str = "",
    info: Mapping[str, Any] | None = None,
    buffers: Sequence[Interval] = (),
    in_place: Sequence[tuple[str, str]] = (),
) -> Executable:
    """The executable of ``objects`` (kernel symbol -> ELF object); the other arguments are those of ``Executable``.

    Raises LinkError, TargetError for a machine without a driver, and VerificationError.
    """
    driver = driver_image(target.partition("/")[0])
    code = link(objects) if objects else Image(driver.machine, b"", {})
    return Executable(
        tuple(inputs), tuple(outputs), tuple(calls), driver, code, params, arena_bytes, scratch_bytes, target, graph,
        dict(info or {}), tuple(buffers), tuple(in_place),
    )  # fmt: skip
