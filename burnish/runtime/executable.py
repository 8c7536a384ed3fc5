"""Executable: the compiled model as plain data, which a module runs and an artifact stores.

executable ::= Executable(inputs, outputs, steps, driver, code, params, arena_bytes, scratch_bytes, target, graph, info,
                          buffers, in_place, states, state, initial, concurrent)
tensor     ::= TensorSpec(name, shape, dtype)
step       ::= native | Count(dim, source, node) | Host(operator, args, specs, results, attrs, node)
             | Collective(operation, reduce, source, target, spec, node, result, peer, tag) | Wait(step, node)
native     ::= Call(kernel, args, node) | Copy(source, target, node, nbytes, round)
             | Repeat(count, once, calls, odd, pointers, node)
             | Branch(condition, then, other, node) | While(limit, condition, round, before, body, node)
slot       ::= Slot(memory, index, offset, nbytes)

Calls that are ``concurrent`` are steps like others, which run side by side where nobody times each of them.

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

from burnish.errors import VerificationError
from burnish.loops.expr import NARROW
from burnish.loops.sizes import Dim, dims_of, is_size, least, solve
from burnish.memory.lifetimes import Interval
from burnish.runtime.buffers import ALIGNMENT, numpy_dtype, round_up
from burnish.runtime.host import ENTRY_ALIGNMENT, machine_of
from burnish.runtime.image import Image
from burnish.runtime.steps import MESSAGES, OPERATIONS, REDUCING, Native, calls_of
from burnish.runtime.steps import Branch as Branch
from burnish.runtime.steps import CallShare as CallShare
from burnish.runtime.steps import Collective as Collective
from burnish.runtime.steps import ConcurrentCalls as ConcurrentCalls
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

MOST_BYTES = 1 << 47  # of any memory: what a process can address
DRIVER_SYMBOLS = ("burnish_run", "burnish_parallel", "burnish_worker")
_KINDS = "biufc"  # NumPy's letters of dtypes that are numbers; bfloat16, which has none, is one, too


@dataclass(frozen=True, eq=False)
class Executable:
    """A compiled model; ``build`` makes one from the compiler's objects.

    ``driver`` holds the thread pool and the call loop, ``code`` the kernels. ``params`` are bytes (uint8), the arena is
    ``arena_bytes``, the scratch ``scratch_bytes`` for each thread. ``target`` is a ``host.fingerprint``. ``info`` is
    anything that JSON can hold. ``buffers``: lifetimes of what lies in an arena whose plan depends on dimensions (whose
    ``arena_bytes`` are those at the hints), ``in_place``: the pairs of them that may share memory; else both are empty.
    Raises VerificationError if parts do not fit together: see :func:`verify`.
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
    concurrent: tuple[ConcurrentCalls, ...] = ()

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


# --- verification -----------------------------------------------------------------------------------------------------


def verify(executable: Executable) -> None:
    """Verifier: raises VerificationError, naming the part, unless types, sizes and places fit together.

    It holds against mistakes and against files edited by hand; machine code itself cannot be checked, only trusted.
    """
    for role, specs in (("input", executable.inputs), ("output", executable.outputs)):
        for spec in specs:
            _verify_tensor(role, spec)
        names = [spec.name for spec in specs]
        _require(len(set(names)) == len(names), f"two {role}s have the same name in {names}")
    params = executable.params
    found = f"{params.dtype}{list(params.shape)}"
    _require(params.dtype == np.uint8 and params.ndim == 1, f"params are {found}, allowed: uint8 in one dimension")
    for what in ("arena_bytes", "scratch_bytes"):
        _require(_is_size(getattr(executable, what)), f"{what} is {getattr(executable, what)!r}, allowed: 0 to 2^47")
    for what in ("target", "graph"):
        _require(isinstance(getattr(executable, what), str), f"{what} is no text")
    _require(isinstance(executable.info, dict), f"info is a {type(executable.info).__name__}, allowed: a mapping")
    _verify_images(executable)
    _verify_dims(executable)
    signatures: dict[str, list[tuple[bool, int]]] = {}
    _verify_states(executable)
    for number, step in enumerate(executable.steps):
        _verify_step(executable, number, step)
    for call in executable.calls:
        _verify_call(executable, call)
        mine = [(slot.memory == "size", slot.nbytes) for slot in call.args]
        first = signatures.setdefault(call.kernel, mine)
        _require(first == mine, f"calls of '{call.kernel}' differ in arguments, the one of node '{call.node}' too")
    _verify_concurrent(executable)
    for number, spec in enumerate(executable.outputs):
        _verify_written(executable, number, spec)


def _verify_tensor(role: str, spec: TensorSpec) -> None:
    _require(isinstance(spec.name, str), f"{role} {spec.name!r}: the name is no text")
    extents = [extent for extent in spec.shape if not is_size(extent)]
    found = list(spec.shape)
    _require(all(map(_is_size, extents)), f"{role} '{spec.name}' has shape {found}, allowed: integers from 0")
    try:
        dtype = numpy_dtype(spec.dtype)
        known = isinstance(spec.dtype, str) and dtype.name == spec.dtype
    except TypeError:
        known = False
    _require(
        known and (dtype.kind in _KINDS or spec.dtype == "bfloat16" or spec.dtype in NARROW),
        f"{role} '{spec.name}' has dtype {spec.dtype!r}, allowed: numbers, such as float32",
    )
    _require(spec.nbytes <= MOST_BYTES, f"{role} '{spec.name}' has {spec.nbytes} bytes, allowed: up to 2^47")


def _verify_dims(executable: Executable) -> None:
    """Whether every dimension is known from an input, or from a step before it is used, and what lies in a symbolic
    arena is of some size.
    """
    names = [d.name for d in executable.dims]
    _require(len(set(names)) == len(names), f"two dimensions have the same name in {names}")
    solved = [solve(e, e.constant) for spec in executable.inputs for e in spec.shape if is_size(e)]
    given = {found[0] for found in solved if found is not None}
    _require(given.isdisjoint(executable.counted), "a step counts a dimension that an input has")
    _require(len(set(executable.counted)) == len(executable.counted), "two steps count the same dimension")
    bound = given.union(executable.counted)
    for d in executable.dims:
        _require(d in bound, f"no input has an extent that is a multiple of dimension '{d}' alone")
        ordered = all(map(_is_size, (d.low, d.high, d.hint))) and d.low <= d.hint <= d.high
        _require(ordered, f"dimension '{d}' is from {d.low!r} to {d.high!r}, its hint {d.hint!r}")
    for spec in executable.outputs:
        for d in spec.dims:
            _require(d in executable.dims, f"an output has any number of {d}, but no input has")
    _verify_counted(executable)
    owners = {b.name for b in executable.buffers}
    for b in executable.buffers:
        known = dims_of((b.nbytes,)) <= set(executable.dims) and _is_size(least(b.nbytes))
        _require(known and type(b.first) is type(b.last) is int, f"buffer '{b.name}' has {b.nbytes} bytes")
    _require(all(name in owners for pair in executable.in_place for name in pair), "in-place pairs name no buffers")


def _verify_counted(executable: Executable) -> None:
    """Whether no step uses a dimension before it is counted, and native code can enter it where it is used."""
    late = {i for i, d in enumerate(executable.dims) if d in executable.counted}
    for step in executable.steps:
        early = [executable.dims[s.index] for s in step.slots if s.memory == "size" and s.index in late]
        _require(not early, f"node '{step.node}' uses dimension {', '.join(map(str, early))} before it is counted")
        if isinstance(step, Count):
            late.discard(executable.dims.index(step.dim))
            _require(step.source.nbytes == 8, f"node '{step.node}' counts by {step.source}, allowed: 8 bytes")
        elif isinstance(step, Repeat):
            fixed = dims_of((step.count, *(p.stride for p in step.pointers))).isdisjoint(executable.counted)
            _require(fixed, f"node '{step.node}' repeats calls by a dimension that is counted")
    counts = "burnish_count" in executable.driver.symbols
    _require(not executable.counted or counts, "a dimension is counted, which the driver cannot")


def _verify_images(executable: Executable) -> None:
    machine = machine_of(executable.target.partition("-")[0])
    for what, image in (("driver", executable.driver), ("code", executable.code)):
        found = f"the {what} is for {image.machine!r}, the target is {executable.target!r}"
        drives = image is executable.driver and machine not in ENTRY_ALIGNMENT  # a device, beside which kernels run
        _require(image.machine == machine or (drives and image.machine in ENTRY_ALIGNMENT), found)
        size = len(image.data)
        for name, offset in image.symbols.items():
            inside = isinstance(name, str) and _is_size(offset) and offset < max(size, 1)
            _require(inside, f"symbol {name!r} of the {what} is at {offset!r}, allowed: 0 to {size}")
        for offset, target in image.absolute:
            inside = _is_size(offset) and _is_size(target) and offset + 8 <= size and target <= size
            _require(inside, f"the {what} has an address of {target!r} at {offset!r}, allowed: inside its {size} bytes")
    if executable.driver.machine not in ENTRY_ALIGNMENT:  # a device runs all the code
        _require(
            not executable.driver.data and not executable.driver.symbols, f"a driver for {machine!r}, allowed: none"
        )
        return
    missing = [name for name in DRIVER_SYMBOLS if name not in executable.driver.symbols]
    _require(not missing, f"the driver lacks {missing}")
    for name in DRIVER_SYMBOLS:
        _verify_entry(executable.driver, name)


def _verify_entry(image: Image, name: str) -> None:
    offset, multiple = image.symbols[name], ENTRY_ALIGNMENT.get(image.machine, 1)
    _require(offset % multiple == 0, f"'{name}' begins at byte {offset}, allowed: multiples of {multiple}")


def _verify_call(executable: Executable, call: KernelCall) -> None:
    known = isinstance(call.kernel, str) and isinstance(call.node, str) and call.kernel in executable.code.symbols
    _require(known, f"node '{call.node}' calls '{call.kernel}', which is undefined")
    _verify_entry(executable.code, call.kernel)


def _verify_concurrent(executable: Executable) -> None:
    """Whether concurrent calls are neighbouring calls of kernels of known sizes, all of which have shares."""
    end = 0
    for group in executable.concurrent:
        found = f"concurrent calls from step {group.first!r}"
        shares = [share for region in group.regions for share in region]
        numbers = [n for s in shares for n in (s.step, s.extent, s.weight, s.scratch)]
        numbers += group.first, group.count, group.threads
        _require(all(map(_is_size, numbers)), f"{found}: {numbers}, allowed: integers")
        last = group.first + group.count
        _require(end <= group.first < last <= len(executable.steps), f"{found}: {group.count} steps")
        _require(all(group.regions), f"{found}: a region without shares")
        _require({s.step for s in shares} == {*range(group.first, last)}, f"{found}: not all of {group.count} steps")
        _verify_driver(executable, "burnish_concurrent", found)
        for step in executable.steps[group.first : last]:
            static = isinstance(step, KernelCall) and all(slot.memory != "size" for slot in step.args)
            _require(static, f"{found}: {step!r}, allowed: calls of kernels of known sizes")
        for share in shares:
            _require(share.symbol in executable.code.symbols, f"{found}: '{share.symbol}' is undefined")
            _verify_entry(executable.code, share.symbol)
            _require(share.scratch <= executable.scratch_bytes, f"{found}: {share}, allowed: in the scratch memory")
        end = last


def _verify_states(executable: Executable) -> None:
    """Whether every state has a type and a value."""
    for spec in executable.states:
        _verify_tensor("state", spec)
        _require(not spec.dims, f"state '{spec.name}' has shape {list(spec.shape)}, allowed: integers")
    names = [spec.name for spec in executable.states]
    _require(len(set(names)) == len(names), f"two states have the same name in {names}")
    size = executable.state_offsets[-1]
    for what, memory in (("state", executable.state), ("initial state", executable.initial)):
        whole = memory.dtype == np.uint8 and memory.shape == (size,)
        _require(whole, f"the {what} is {memory.dtype}{list(memory.shape)}, allowed: uint8[{size}]")


def _verify_step(executable: Executable, number: int, step: Step) -> None:
    """Whether the arguments of a step exist, and are as many bytes as their types."""
    _require(isinstance(step.node, str), f"step {number} has node {step.node!r}, allowed: text")
    for position, slot in enumerate(step.slots):
        where = f"argument {position} of '{step.label}' is {slot}"
        integers = all(type(value) is int for value in (slot.index, slot.offset, slot.nbytes))
        _require(integers and slot.nbytes >= 0, f"{where}, allowed: integers")
        size = _bytes_of(executable, slot)
        if size is None:
            raise VerificationError(f"executable: {where}, which does not exist")
        last = size - slot.nbytes
        _require(0 <= slot.offset <= last, f"{where}, allowed: offsets from 0 to {last}")
    if isinstance(step, CopyStep):
        _verify_copy(executable, number, step)
    elif isinstance(step, (Branch, While)):
        _verify_flow(executable, number, step)
    elif isinstance(step, Host):
        known = isinstance(step.operator, str) and isinstance(step.attrs, dict)
        _require(known, f"node '{step.node}' calls the operator {step.operator!r}, allowed: a name, and attributes")
        counts = type(step.results) is int and 1 <= step.results <= len(step.args) == len(step.specs)
        _require(counts, f"node '{step.node}': {step.results!r} results of {len(step.args)} arguments")
        for slot, spec in zip(step.args, step.specs, strict=True):
            _verify_typed(executable, step.node, slot, spec)
    elif isinstance(step, Collective):
        _verify_collective(executable, number, step)
    elif isinstance(step, Repeat):
        _verify_repeat(executable, number, step)
    elif isinstance(step, Wait):
        begun = type(step.step) is int and 0 <= step.step < number
        begun = begun and isinstance(executable.steps[step.step], Collective)
        _require(begun, f"step {number} waits for step {step.step!r}, allowed: a collective before it")


def _verify_copy(executable: Executable, number: int, step: CopyStep) -> None:
    """Whether a copy moves bytes that both slots have."""
    found, amount = f"step {number} copies {step.source} to {step.target}", step.amount
    dims, places = dims_of((amount,)), (step.source,) if step.round is not None else (step.source, step.target)
    known = dims <= set(executable.dims) if dims else _is_size(amount) and amount > 0
    _require(known, f"{found}, {amount!r} bytes, allowed: 1 or more, or a size of the inputs' dimensions")
    _require(bool(dims) or all(s.nbytes == amount for s in places), f"{found}, allowed: as many bytes, not 0")
    if step.round is not None:
        _require(step.round.nbytes == 8, f"{found} by a round of {step.round.nbytes} bytes, allowed: 8")
    if executable.driver.machine in ENTRY_ALIGNMENT:
        _verify_driver(executable, "burnish_copy" if step.round is None else "burnish_place", f"step {number}")


def _verify_flow(executable: Executable, number: int, step: Branch | While) -> None:
    """Whether control flow reads numbers of the right size, and holds steps that native code runs."""
    for slot, nbytes in zip(step.places, (1,) if isinstance(step, Branch) else (8, 1, 8), strict=True):
        where = f"step {number}, node '{step.node}', decides by {slot}"
        _require(slot.nbytes == nbytes and slot.memory != "size", f"{where}, allowed: {nbytes} bytes of memory")
        _require(slot.offset % nbytes == 0, f"{where}, allowed: multiples of {nbytes}")
    name = "burnish_branch" if isinstance(step, Branch) else "burnish_while"
    _verify_driver(executable, name, f"step {number}")
    for own in (*step.lists[0], *step.lists[1]):
        _require(isinstance(own, Native), f"step {number} holds {own!r}, allowed: calls, copies, and steps of these")
        _verify_step(executable, number, own)


def _verify_driver(executable: Executable, name: str, what: str) -> None:
    _require(name in executable.driver.symbols, f"{what} needs '{name}', which the driver lacks")
    _verify_entry(executable.driver, name)


def _verify_repeat(executable: Executable, number: int, step: Repeat) -> None:
    """Whether repeated calls find their arguments inside of what their pointers come from, in the last round too."""
    extents = (step.count, *(p.stride for p in step.pointers))
    known = all(is_size(e) or _is_size(e) for e in extents) and dims_of(extents) <= set(executable.dims)
    found = f"step {number} repeats {step.count!r} times"
    _require(known and bool(step.calls), f"{found}, allowed: calls, and sizes of the inputs' dimensions")
    _require(least(step.count) >= 1, f"{found}, allowed: 1 or more")
    if executable.driver.machine in ENTRY_ALIGNMENT:
        _verify_driver(executable, "burnish_repeat", found)
    for pointer in step.pointers:
        _require(type(pointer.nbytes) is int and pointer.nbytes >= 0, f"{found}: a pointer to {pointer.nbytes!r} bytes")
        _require(type(pointer.backwards) is bool, f"{found}: a pointer backwards {pointer.backwards!r}")
        _require(all(s.memory != "size" for s in pointer.slots), f"{found}: a pointer to a size, allowed: to memory")
        span = (step.count - 1) * pointer.stride + pointer.nbytes
        for place in pointer.places if not is_size(span) else ():
            size = _bytes_of(executable, place)
            inside = size is not None and place.offset + span <= size
            _require(inside, f"{found}: a pointer goes over {span} bytes of {place}, which has {size}")
    for call in step.all_calls:
        for slot in call.args:
            if slot.memory != "repeat":
                continue
            integers = all(type(value) is int for value in (slot.index, slot.offset, slot.nbytes))
            inside = integers and 0 <= slot.index < len(step.pointers) and slot.offset >= 0 and slot.nbytes >= 0
            _require(inside, f"{found}: an argument of '{call.kernel}' is {slot}, allowed: one of its pointers")
            end = slot.offset + slot.nbytes
            given = step.pointers[slot.index].nbytes
            _require(not given or end <= given, f"{found}: '{call.kernel}' has {slot} of {given} bytes")


def _verify_typed(executable: Executable, node: str, slot: Slot, spec: TensorSpec) -> None:
    """Whether a tensor of a type can lie in a slot: at a multiple of its elements, of its bytes."""
    _verify_tensor(f"an argument of node '{node}',", spec)
    _require(spec.dims <= set(executable.dims), f"node '{node}': {spec} has dimensions that no input has")
    _require(slot.memory != "size", f"node '{node}': {spec} is {slot}, allowed: memory")
    aligned = slot.offset % numpy_dtype(spec.dtype).itemsize == 0 and slot.nbytes == spec.nbytes
    _require(aligned, f"node '{node}': {spec} is {slot}, allowed: {spec.nbytes} bytes at a multiple of an element's")


def _verify_collective(executable: Executable, number: int, step: Collective) -> None:
    """Whether a collective has operands of types that fit, and its result is waited for."""
    by = ("sum", "max", "min") if step.operation in REDUCING else ("",)
    known = step.operation in OPERATIONS and step.reduce in by
    found = f"node '{step.node}' is a collective {step.operation!r}"
    _require(known, f"{found} by {step.reduce!r}, allowed: {OPERATIONS}, of these {REDUCING} by sum, max, min")
    ends = (
        (step.operation != "recv") is (step.source is not None),
        (step.operation != "send") is (step.target is not None),
    )
    _require(
        all(ends), f"{found} from {step.source} to {step.target}, allowed: a source but of recv, a target but of send"
    )
    asked = step.operation in (*MESSAGES, "broadcast")
    numbers = type(step.peer) is int and type(step.tag) is int and (step.peer >= 0) is asked and step.peer >= -1
    _require(numbers, f"{found} with worker {step.peer!r} and tag {step.tag!r}, allowed: numbers where it has one")
    result = step.result or step.spec
    alike = result.dtype == step.spec.dtype and result.shape[1:] == step.spec.shape[1:]
    if step.operation not in ("reduce_scatter", "all_gather"):
        alike = alike and result.shape == step.spec.shape
    elif workers := step.workers:
        parts, whole = (step.spec, result) if step.operation == "all_gather" else (result, step.spec)
        alike = alike and parts.shape[0] * workers == whole.shape[0]
    whole_rows = step.operation in ("all_reduce", "broadcast", *MESSAGES) or bool(step.spec.shape and result.shape)
    _require(alike and whole_rows, f"{found} from {step.spec} to {result}, which do not fit")
    for slot, spec in zip(step.slots, step.specs, strict=True):
        _verify_typed(executable, step.node, slot, spec)
    _verify_awaited(executable, number, step)


def _verify_awaited(executable: Executable, number: int, step: Collective) -> None:
    """Whether the result of a collective is waited for, and nothing touches it before."""
    for later in executable.steps[number + 1 :]:
        if isinstance(later, Wait) and later.step == number:
            return
        touched = step.target is not None and any(_overlap(s, step.target) for s in later.slots)
        _require(not touched, f"node '{later.node}' touches the result of '{step.node}' before it is waited for")
    _require(False, f"nothing waits for the collective of node '{step.node}'")


def _overlap(a: Slot, b: Slot) -> bool:
    """Whether two slots have bytes in common."""
    same = (a.memory, a.index) == (b.memory, b.index)
    return same and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _bytes_of(executable: Executable, slot: Slot) -> int | None:
    """Size of what the slot points into, the least one of open shapes; None if there is no such thing."""
    specs = {"input": executable.inputs, "output": executable.outputs, "state": executable.states}.get(slot.memory)
    if specs is not None:
        return specs[slot.index].least_bytes if 0 <= slot.index < len(specs) else None
    if slot.memory == "size":
        return 0 if 0 <= slot.index < len(executable.dims) else None
    if slot.memory == "arena" and executable.buffers:
        return least(executable.buffers[slot.index].nbytes) if 0 <= slot.index < len(executable.buffers) else None
    if slot.index != 0:
        return None
    return {"param": executable.params.nbytes, "arena": executable.arena_bytes}.get(slot.memory)


def _verify_written(executable: Executable, number: int, spec: TensorSpec) -> None:
    """Whether kernels have all bytes of an output among their arguments."""
    slots = (s for step in executable.steps for s in step.slots if (s.memory, s.index) == ("output", number))
    end = 0
    for begin, stop in sorted((slot.offset, slot.offset + slot.nbytes) for slot in slots):
        if begin > end:
            break
        end = max(end, stop)
    _require(end >= spec.nbytes, f"no kernel has byte {end} of output '{spec.name}', which has {spec.nbytes}")


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_BYTES


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise VerificationError(f"executable: {otherwise}")
