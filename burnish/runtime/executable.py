"""Executable: the compiled model as plain data, which a module runs and an artifact stores.

executable ::= Executable(inputs, outputs, steps, driver, code, params, arena_bytes, scratch_bytes, target, graph, info,
                          buffers, in_place, states, state, initial)
tensor     ::= TensorSpec(name, shape, dtype)
step       ::= native | Count(dim, source, node) | Host(operator, args, specs, results, attrs, node)
             | Collective(operation, reduce, source, target, spec, node, result, peer, tag) | Wait(step, node)
native     ::= Call(kernel, args, node) | Copy(source, target, node, nbytes, round)
             | Repeat(count, once, calls, odd, pointers, node)
             | Branch(condition, then, other, node) | While(limit, condition, round, before, body, node)
slot       ::= Slot(memory, index, offset, nbytes)

State (``states``) is memory that outlives a call: a call reads it and leaves new values in its place. ``state`` holds
the values to begin with, ``initial`` those of a reset.

The extents of a tensor are integers or sizes (``loops.sizes``): polynomials over dimensions, whose values follow from
the shapes of a call's inputs, or are counted by a step of the call: memory is then planned for the greatest, and
outputs are the beginnings of larger ones. A slot of the memory "size" hands the value of a dimension to the kernel.
Where sizes of values in the arena depend on dimensions, their places do: then ``buffers`` holds their lifetimes, by
which they are planned when a module first sees the sizes of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from burnish.loops.sizes import Dim
from burnish.memory.lifetimes import Interval
from burnish.runtime.buffers import ALIGNMENT, round_up
from burnish.runtime.image import Image
from burnish.runtime.steps import Branch as Branch
from burnish.runtime.steps import Collective as Collective
from burnish.runtime.steps import CopyStep as CopyStep
from burnish.runtime.steps import Count as Count
from burnish.runtime.steps import Host as Host
from burnish.runtime.steps import KernelCall as KernelCall
from burnish.runtime.steps import Pointer as Pointer
from burnish.runtime.steps import Repeat as Repeat
from burnish.runtime.steps import Slot as Slot
from burnish.runtime.steps import Step as Step
from burnish.runtime.steps import TensorSpec as TensorSpec
from burnish.runtime.steps import Wait as Wait
from burnish.runtime.steps import While as While
from burnish.runtime.steps import calls_of
from burnish.runtime.verify import verify


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
    steps: tuple[Step, ...]
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
    states: tuple[TensorSpec, ...] = ()
    state: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))
    initial: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __post_init__(self) -> None:
        verify(self)

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The kernel calls: steps, and those that steps hold, each once."""
        return tuple(calls_of(self.steps))

    @cached_property
    def state_offsets(self) -> tuple[int, ...]:
        """Byte offset of each state in the memory of all; last, where that ends."""
        ends = accumulate(round_up(spec.nbytes, ALIGNMENT) for spec in self.states)
        return (0, *ends)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions in the shapes of inputs, and those that steps count, in order of their names."""
        found = frozenset[Dim](self.counted).union(*(spec.dims for spec in self.inputs))
        return tuple(sorted(found, key=lambda d: d.name))

    @cached_property
    def counted(self) -> tuple[Dim, ...]:
        """The dimensions that steps count, in the order of these."""
        return tuple(step.dim for step in self.steps if isinstance(step, Count))
