"""Steps of an executable, and the places and types of what they work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from burnish.loops.sizes import Dim, dims_of, is_size, valued
from burnish.runtime.buffers import numpy_dtype

OPERATIONS = ("all_reduce",)  # of collectives
Memory = Literal["input", "output", "param", "state", "arena", "size", "repeat"]


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
    """Where a step finds an argument: byte ``offset`` of input, output or state ``index``, of parameters or arena.

    ``nbytes``: those of the tensor there; 0 if they depend on dimensions. In an arena planned for each size, ``index``
    is that of a buffer. In the memory ``size`` it is no place: the argument itself is the value of dimension ``index``.
    In the memory ``repeat`` it is where pointer ``index`` of the :class:`Repeat` is, in whose calls it stands.
    """

    memory: Memory
    index: int = 0
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Call:
    """One kernel call. ``node`` names the graph nodes it computes, for people."""

    kernel: str
    args: tuple[Slot, ...]
    node: str

    @property
    def label(self) -> str:
        """What a profile calls the step."""
        return self.kernel

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Its arguments, in the order in which native code finds them."""
        return self.args


@dataclass(frozen=True)
class Copy:
    """Moves the bytes of ``source`` to ``target``, which has as many; both are static."""

    source: Slot
    target: Slot
    node: str = ""

    @property
    def label(self) -> str:
        """What a profile calls the step."""
        return "copy"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Where it writes, and where it reads."""
        return (self.target, self.source)


@dataclass(frozen=True)
class Host:
    """A call of an opaque operator in Python. ``specs``: what lies in the slots ``args``, of which the last ``results``
    are written. ``operator`` is found by its name when the executable is loaded: a file holds no Python code.
    """

    operator: str
    args: tuple[Slot, ...]
    specs: tuple[TensorSpec, ...]
    results: int
    attrs: Mapping[str, Any]
    node: str

    @property
    def label(self) -> str:
        """What a profile calls the step."""
        return f"{self.operator} (host)"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Its arguments, results last."""
        return self.args


@dataclass(frozen=True)
class Collective:
    """Combines the tensors ``source`` of all workers into ``target`` of each: ``all_reduce`` by sum, max or min.

    The result is there after the :class:`Wait` for it; until then no step may touch ``target``.
    """

    operation: str
    reduce: str
    source: Slot
    target: Slot
    spec: TensorSpec
    node: str

    @property
    def label(self) -> str:
        """What a profile calls the step."""
        return f"{self.operation} (collective)"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Where it reads, and where it writes."""
        return (self.source, self.target)


@dataclass(frozen=True)
class Wait:
    """Ends when the collective that is step ``step`` has its result."""

    step: int
    node: str = ""

    @property
    def label(self) -> str:
        """What a profile calls the step."""
        return "wait"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """None: it only waits."""
        return ()


@dataclass(frozen=True)
class Pointer:
    """Where an argument of repeated calls is, time after time.

    In round ``t`` of ``n`` it is ``n - 1 - t`` rounds before the last, and so in ``places[(n - 1 - t) % 2]``: two equal
    ones, or two in turn, the last round's first. There it is ``stride`` bytes (a number or a size) times ``t`` from the
    begin, or times ``n - 1 - t`` if ``backwards``. With ``before``, it is where it would be a round earlier, and in the
    first round ``before``: what the round before has written. ``nbytes``: of what it points to; 0 if they depend on
    dimensions.
    """

    places: tuple[Slot, Slot]
    stride: int = 0
    backwards: bool = False
    before: Slot | None = None
    nbytes: int = 0

    @property
    def slots(self) -> tuple[Slot, Slot, Slot]:
        """The place of the first round, if it is another than that of the others; those of the others."""
        return (self.before or self.places[0], *self.places)


@dataclass(frozen=True)
class Repeat:
    """Calls that are made ``count`` times, a number or a size of 1 or more; those of ``once`` in the first round only,
    before it. Every other round, from the second on, is ``odd`` in place of ``calls`` if there are any.

    Their arguments in the memory ``repeat`` are ``pointers``.
    """

    count: int
    once: tuple[Call, ...]
    calls: tuple[Call, ...]
    odd: tuple[Call, ...]
    pointers: tuple[Pointer, ...]
    node: str

    @property
    def all_calls(self) -> tuple[Call, ...]:
        """All calls, each once, in this order."""
        return (*self.once, *self.calls, *self.odd)

    @property
    def label(self) -> str:
        """What a profile calls the step."""
        return " + ".join(dict.fromkeys(call.kernel for call in (*self.calls, *self.odd))) + " (repeated)"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """What it reads and writes: arguments that stay, and those that its pointers come from."""
        own = (slot for call in self.all_calls for slot in call.args if slot.memory != "repeat")
        return (*own, *(slot for pointer in self.pointers for slot in pointer.slots))


Step = Call | Copy | Host | Collective | Wait | Repeat
