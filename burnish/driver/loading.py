"""Loading of what was saved: an executable, which needs no compiler, or a model of segments, which does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from burnish.base.optional import needed_for
from burnish.errors import ArtifactError
from burnish.runtime import variants
from burnish.runtime.artifact import NotExecutableError
from burnish.runtime.callable import CompiledModel
from burnish.runtime.module import Module

if TYPE_CHECKING:
    from burnish.comm.protocol import Comm
    from burnish.ops.operator import Operator
    from burnish.runtime.device import Device


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
) -> CompiledModel:
    """The module saved in ``path``, ready to run, without LLVM. It is copied into memory: the file may change or go.

    An artifact is a program that runs with all rights of this process. Its checksums find damage, not intent: load only
    what you trust. ``sha256`` (of the file, as ``sha256sum`` prints it) refuses any other file; ``key`` (bytes) refuses
    what was not saved with the same ``key``. ``externs``: opaque operators by name that are not Burnish's own; a file
    holds none of their code. ``comm``: the worker whose collectives the model takes part in. ``device``:
    what runs the code of a model that was compiled for a machine with a device of its own. ``variant``: the one to take
    of a file that holds code for several CPUs; by default the one that uses most of what this CPU and the system allow.
    A model that is compiled at its calls (``SegmentedModule``, ``ModuleBySize``) needs the compiler.
    Raises ArtifactError for a damaged, inconsistent or refused file and one that this machine cannot run; OSError if it
    cannot be read or is no regular file.

    >>> import tempfile
    >>> graph = bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bn.compile(graph, rewrite=False).save(f"{folder}/relu.bn")
    ...     model = bn.load(f"{folder}/relu.bn")
    >>> model(np.array([-1, 0, 2], "f4"))
    array([0., 0., 2.], dtype=float32)
    """
    try:
        executable = variants.read(path, sha256, key, variant, device is not None)
    except NotExecutableError as found:
        # The compiler, which takes a second to import, and LLVM are for such files alone.
        with needed_for("files of models that are compiled at their calls"):
            from burnish.driver import module_by_size, segmented

        if found.kind == module_by_size.KIND:
            return module_by_size.load_sizes(found.container, Path(path), threads, device)
        if found.kind != segmented.KIND:
            raise ArtifactError(f"{path} is of a kind that is not known: {found.kind!r}") from None
        return segmented.load_segments(found.container, threads, device)
    return Module(executable, threads, externs=externs, comm=comm, device=device)


def load_module(
    path: str | Path, threads: int | None = None, *, comm: Comm | None = None, device: Device | None = None
) -> Module:
    """Module of one executable, as of :func:`load`. Raises ArtifactError for a file of another kind."""
    return Module(variants.read(path, None, None, None, device is not None), threads, comm=comm, device=device)
