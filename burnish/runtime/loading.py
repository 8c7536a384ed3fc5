"""Loading of saved executables, which need no compiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from burnish.comm.protocol import Comm
from burnish.ops.operator import Operator
from burnish.runtime import variants
from burnish.runtime.device import Device
from burnish.runtime.module import Module


def load(
    path: str | Path,
    threads: int | None = None,
    *,
    sha256: str | None = None,
    key: bytes | None = None,
    externs: Mapping[str, Operator] | None = None,
    comm: Comm | None = None,
    device: Device | None = None,
    variant: str | None = None,
) -> Module:
    """The module saved in ``path``, as :func:`burnish.load` says, but for files of other kinds: ArtifactError."""
    executable = variants.read(path, sha256, key, variant, device is not None)
    return Module(executable, threads, externs=externs, comm=comm, device=device)
