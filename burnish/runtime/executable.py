"""Executable: the compiled model as plain data, which a module runs and an artifact stores.

executable ::= Executable(inputs, outputs, calls, driver, code, params, arena_bytes, scratch_bytes, target, graph, info,
                          buffers, in_place)
tensor     ::= TensorSpec(name, shape, dtype)
call       ::= Call(kernel, args, node)
slot       ::= Slot(space, index, offset, nbytes)

The extents of a tensor are integers or sizes (``loops.sizes``): polynomials over dimensions, whose values follow from
the shapes of a call's inputs. A slot of the space "size" hands the value of a dimension to the kernel. Where sizes of
values in the arena depend on dimensions, their places do: then ``buffers`` holds their lifetimes, by which they are
planned when a module first sees the sizes of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np

from burnish.loops.sizes import Dim, dims_of, is_size, valued
from burnish.memory.lifetimes import Interval
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.image import Image
from burnish.runtime.verify import verify

Space = Literal["input", "output", "param", "arena", "size"]


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: C-contiguous; ``dtype`` is NumPy's name or ``bfloat16``."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes; 0 if they depend on dimensions."""
        return 0 if self.dims else prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def dims(self) -> frozenset[Dim]:
        """The dimensions in its shape."""
        return dims_of(self.shape)

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape for these values of dimensions."""
        return tuple(valued(extent, sizes) for extent in self.shape)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape will do, as far as that does not depend on dimensions."""
        return len(shape) == len(self.shape) and all(
            is_size(own) or own == n for own, n in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Slot:
    """Where a kernel finds an argument: byte ``offset`` of input or output ``index``, of parameters or arena.

    ``nbytes``: those of the tensor there; 0 if they depend on dimensions. In an arena planned for each size, ``index``
    is that of a buffer. In the space ``size`` it is no place: the argument itself is the value of dimension ``index``.
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
    anything that JSON can hold. ``buffers``: lifetimes of what lies in an arena whose plan depends on dimensions (whose
    ``arena_bytes`` are those at the hints), ``in_place``: the pairs of them that may share memory; else both are empty.
    Raises VerificationError if parts do not fit together (``verify.py``).
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
    buffers: tuple[Interval, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        verify(self)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions in the shapes of inputs, in order of their names."""
        found = frozenset[Dim]().union(*(spec.dims for spec in self.inputs))
        return tuple(sorted(found, key=lambda d: d.name))
