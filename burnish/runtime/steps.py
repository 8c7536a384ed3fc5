"""Steps of an executable, and the places and types of what they work on."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np

from burnish.loops.sizes import Dim, dims_of, is_size, least, valued
from burnish.runtime.buffers import numpy_dtype

REDUCING = ("all_reduce", "reduce_scatter")  # collectives that combine what workers have, by sum, max or min
MESSAGES = ("send", "recv")  # between two workers
OPERATIONS = (*REDUCING, "all_gather", "all_to_all", "broadcast", *MESSAGES)
FEW_LABELS = 3  # of the steps that another one holds, in its label
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
    def least_bytes(self) -> int:
        """Bytes, of an open shape at its least."""
        return prod(map(least, self.shape)) * numpy_dtype(self.dtype).itemsize

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
    """Argument location of a step: byte ``offset`` of input, output or state ``index``, of parameters or arena.

    ``nbytes``: those of the tensor there; 0 if they depend on dimensions. In an arena planned for each size, ``index``
    is that of a buffer. In the memory ``size`` it is no place: the argument itself is the value of dimension ``index``.
    In the memory ``repeat`` it is where pointer ``index`` of the :class:`Repeat` is, in whose calls it stands.
    """

    memory: Memory
    index: int = 0
    offset: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class KernelCall:
    """One kernel call. ``node`` names the graph nodes it computes, for people."""

    kernel: str
    args: tuple[Slot, ...]
    node: str

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return self.kernel

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Arguments, in the order in which native code finds them."""
        return self.args


@dataclass(frozen=True)
class CopyStep:
    """Moves the bytes of ``source`` to ``target``, which has as many: ``nbytes``, a number or a size; 0 where they are
    those of the slots.

    With ``round``, where a number (int64) lies, the target is that many times as many bytes behind ``target``.
    """

    source: Slot
    target: Slot
    node: str = ""
    nbytes: int = 0
    round: Slot | None = None

    @property
    def amount(self) -> int:
        """Bytes to copy: a number or a size."""
        return self.source.nbytes if type(self.nbytes) is int and not self.nbytes else self.nbytes

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return "copy"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots written and read, in this order."""
        return (self.target, self.source) if self.round is None else (self.target, self.source, self.round)


@dataclass(frozen=True)
class Count:
    """Dimension count: makes the int64 at ``source`` the value of a dimension, for the steps behind it."""

    dim: Dim
    source: Slot
    node: str = ""

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return "count"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slot read."""
        return (self.source,)


@dataclass(frozen=True)
class Host:
    """Host call of an opaque operator in Python. ``specs``: what lies in the slots ``args``, of which the last
    ``results`` are written. ``operator`` is found by its name when the executable is loaded: a file holds no Python
    code.
    """

    operator: str
    args: tuple[Slot, ...]
    specs: tuple[TensorSpec, ...]
    results: int
    attrs: Mapping[str, Any]
    node: str

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return f"{self.operator} (host)"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Arguments, results last."""
        return self.args


@dataclass(frozen=True)
class Collective:
    """A collective of all workers, or a message of two, from the tensor ``source`` to ``target`` of each.

    ``spec`` and ``result`` are their types; without ``result`` they are the same. Of N workers:

    - ``all_reduce``: [...] -> [...], the sum, max or min of all (``reduce``, which is "" for others);
    - ``reduce_scatter``: [N * n, ...] -> [n, ...], of which worker r has part r;
    - ``all_gather``: [n, ...] -> [N * n, ...], those of all by rank;
    - ``all_to_all``: [N * n, ...] -> [N * n, ...], part r for worker r;
    - ``broadcast``: that of worker ``peer``; ``send`` and ``recv``: to or from worker ``peer``, by ``tag``. A sender
      has no ``target``, a receiver no ``source``, and ``spec`` is the type of what is sent.

    The result is there after the :class:`Wait` for it; until then no step may touch ``target``.
    """

    operation: str
    reduce: str
    source: Slot | None
    target: Slot | None
    spec: TensorSpec
    node: str
    result: TensorSpec | None = None
    peer: int = -1
    tag: int = 0

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return f"{self.operation} (collective)"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots read and written, in this order."""
        return tuple(slot for slot in (self.source, self.target) if slot is not None)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Types of the tensors in ``slots``."""
        places = (self.source, self.spec), (self.target, self.result or self.spec)
        return tuple(spec for slot, spec in places if slot is not None)

    @property
    def workers(self) -> int | None:
        """The number of workers that its types say; None if any will do, or it depends on dimensions."""
        parts, whole = self.spec, self.result or self.spec
        if self.operation == "reduce_scatter":
            parts, whole = whole, parts
        elif self.operation != "all_gather":
            return None
        known = parts.shape and whole.shape and not parts.dims and not whole.dims and parts.shape[0]
        return whole.shape[0] // parts.shape[0] if known else None


@dataclass(frozen=True)
class Wait:
    """Ends when the collective that is step ``step`` has its result."""

    step: int
    node: str = ""

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return "wait"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """None: it only waits."""
        return ()


@dataclass(frozen=True)
class Pointer:
    """Pointer argument of repeated calls, by round.

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
    once: tuple[KernelCall, ...]
    calls: tuple[KernelCall, ...]
    odd: tuple[KernelCall, ...]
    pointers: tuple[Pointer, ...]
    node: str

    @property
    def all_calls(self) -> tuple[KernelCall, ...]:
        """All calls, each once, in this order."""
        return (*self.once, *self.calls, *self.odd)

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return " + ".join(dict.fromkeys(call.kernel for call in (*self.calls, *self.odd))) + " (repeated)"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots read and written: arguments that stay, and those that its pointers come from."""
        own = (slot for call in self.all_calls for slot in call.args if slot.memory != "repeat")
        return (*own, *(slot for pointer in self.pointers for slot in pointer.slots))


@dataclass(frozen=True)
class Branch:
    """Branch: the steps ``then`` where the byte at ``condition`` is not 0, else ``other``: native ones, one after
    another.
    """

    condition: Slot
    then: tuple[Native, ...]
    other: tuple[Native, ...]
    node: str

    @property
    def places(self) -> tuple[Slot, ...]:
        """Slot of the condition."""
        return (self.condition,)

    @property
    def lists(self) -> tuple[tuple[Native, ...], tuple[Native, ...]]:
        """The steps that it may run."""
        return self.then, self.other

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return f"branch ({_labels(self.then)} | {_labels(self.other)})"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The condition, and what its steps read and write."""
        return (*self.places, *(slot for steps in self.lists for step in steps for slot in step.slots))


@dataclass(frozen=True)
class While:
    """While loop: the steps ``before``, and then ``body`` as long as the byte at ``condition`` is not 0 and it ran
    fewer times than the number (int64) at ``limit`` says; how often is the number (int64) at ``round``. Steps are
    native ones.
    """

    limit: Slot
    condition: Slot
    round: Slot
    before: tuple[Native, ...]
    body: tuple[Native, ...]
    node: str

    @property
    def places(self) -> tuple[Slot, ...]:
        """Slots of limit, condition and round."""
        return (self.limit, self.condition, self.round)

    @property
    def lists(self) -> tuple[tuple[Native, ...], tuple[Native, ...]]:
        """The steps that it may run."""
        return self.before, self.body

    @property
    def label(self) -> str:
        """Profile label of the step."""
        return f"loop ({_labels(self.body)})"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Slots read and written: those that decide, and those of its steps."""
        return (*self.places, *(slot for steps in self.lists for step in steps for slot in step.slots))


@dataclass(frozen=True)
class CallShare:
    """Share of a kernel call, step ``step``, in a parallel region of several: the entry point ``symbol`` of its region
    of ``extent`` iterations; with 0 the kernel itself, on one thread.

    ``weight``: the part of the time of all shares of the region, in 1024ths. ``scratch``: the bytes that other calls of
    the region have before those of this one.
    """

    step: int
    symbol: str
    extent: int
    weight: int
    scratch: int


@dataclass(frozen=True)
class ConcurrentCalls:
    """Concurrent kernel calls: ``count`` steps from step ``first`` on, none of which reads or writes what another one
    writes. In a pool of ``threads`` threads or more they are a few parallel regions, which their own ``regions`` share;
    fewer threads, which have enough to do in the regions of each, call them one after another, as a profile does.
    """

    first: int
    count: int
    threads: int
    regions: tuple[tuple[CallShare, ...], ...]

    def moved(self, numbers: Sequence[int]) -> ConcurrentCalls:
        """The calls where each step of the executable has another one of ``numbers``."""
        regions = [tuple(replace(share, step=numbers[share.step]) for share in region) for region in self.regions]
        return replace(self, first=numbers[self.first], regions=tuple(regions))


def _labels(steps: Sequence[Native]) -> str:
    """Labels of the steps, each kind once, the first few."""
    names = list(dict.fromkeys(step.label for step in steps if not isinstance(step, CopyStep)))
    more = [f"{len(names) - FEW_LABELS} more"] * (len(names) > FEW_LABELS)
    return " + ".join([*names[:FEW_LABELS], *more]) or "nothing"


def calls_of(steps: Sequence[Step]) -> Iterator[KernelCall]:
    """The kernel calls among steps, in those that hold others too, each once."""
    for step in steps:
        if isinstance(step, KernelCall):
            yield step
        elif isinstance(step, Repeat):
            yield from step.all_calls
        elif isinstance(step, (Branch, While)):
            for steps in step.lists:
                yield from calls_of(steps)


Native = KernelCall | CopyStep | Repeat | Branch | While
Step = Native | Count | Host | Collective | Wait


def array_at(address: int, spec: TensorSpec, sizes: Mapping[str, int]) -> np.ndarray:
    """The tensor at an address as an array: a view, valid as long as the memory is."""
    shape, dtype = spec.at(sizes), numpy_dtype(spec.dtype)
    nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not nbytes:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)
