"""Executable: the compiled model as plain data, which a module runs and an artifact stores.

executable ::= Executable(inputs, outputs, calls, driver, code, params, arena_bytes, scratch_bytes, target, graph, info)
tensor     ::= TensorSpec(name, shape, dtype)
call       ::= Call(kernel, args, node)
slot       ::= Slot(space, index, offset, nbytes)

The first extent of a tensor may be ANY: it is the number of rows, known when the module is called. All such extents of
a module are equal, and a slot of the space "rows" hands their number, by value, to the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np

from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.image import Image
from burnish.runtime.verify import verify

Space = Literal["input", "output", "param", "arena", "rows"]
ANY = -1


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: C-contiguous; ``dtype`` is NumPy's name or ``bfloat16``."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes; 0 if the number of rows is not known."""
        return 0 if self.any_rows else prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def any_rows(self) -> bool:
        """Whether the first extent is ANY."""
        return self.shape[:1] == (ANY,)

    def with_rows(self, rows: int) -> tuple[int, ...]:
        """The shape, where ANY is so many rows."""
        return (rows, *self.shape[1:]) if self.any_rows else self.shape

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape will do."""
        return shape == self.shape or (self.any_rows and bool(shape) and shape[1:] == self.shape[1:])

    def __str__(self) -> str:
        extents = ("rows" if self.any_rows and axis == 0 else str(n) for axis, n in enumerate(self.shape))
        return f"{self.name}: {self.dtype}[{', '.join(extents)}]"


@dataclass(frozen=True)
class Slot:
    """Where a kernel finds an argument: byte ``offset`` of input or output ``index``, of parameters or arena.

    ``nbytes``: those of the tensor there; 0 with any number of rows. In the space ``rows`` it is no place: the argument
    itself is the number of rows.
    """

    space: Space
    index: int = 0
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Call:
    """One kernel call. ``node`` names the graph nodes it computes, for people."""

    kernel: str
    args: tuple[Slot, ...]
    node: str


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled model; ``build`` makes one from the compiler's objects.

    ``driver`` holds the thread pool and the call loop, ``code`` the kernels. ``params`` are bytes (uint8), the arena is
    ``arena_bytes``, the scratch ``scratch_bytes`` for each thread. ``target`` is a ``host.fingerprint``. ``info`` is
    anything that JSON can hold. Raises VerificationError if parts do not fit together (``verify.py``).
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    calls: tuple[Call, ...]
    driver: Image
    code: Image
    params: np.ndarray
    arena_bytes: int
    scratch_bytes: int
    target: str
    graph: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        verify(self)
