"""Launch of workers by kind: threads and processes of this machine, torch.distributed (gloo), Ray."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from burnish.base.arguments import refusal
from burnish.comm.local import TIMEOUT, launch

KINDS = ("process", "thread", "torch", "ray")


def launcher(kind: str, timeout: float = TIMEOUT) -> Callable[..., list[Any]]:
    """Launcher of ``function(comm, *arguments[rank])``, on one worker of ``kind`` for each element of ``arguments``, as
    :func:`burnish.comm.launch`; it returns the results by rank.

    A worker waits ``timeout`` seconds for another. Raises ParameterError for another kind.
    """
    if kind not in KINDS:
        raise refusal("worker_kind", kind, ", ".join(KINDS))
    if kind == "torch":
        from burnish.comm.torch import launch_torch

        return partial(launch_torch, timeout=timeout)
    if kind == "ray":
        from burnish.comm.ray import launch_ray

        return partial(launch_ray, timeout=timeout)
    return partial(launch, kind=kind, timeout=timeout)
