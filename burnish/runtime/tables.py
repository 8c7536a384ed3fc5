"""Call tables: the kernels of an executable and the addresses of their arguments, as native code reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from burnish.loops.sizes import Dim, dims_of
from burnish.runtime.buffers import address_of
from burnish.runtime.executable import Branch, CopyStep, Count, Executable, KernelCall, Pointer, Repeat, Slot, While
from burnish.runtime.steps import Native

NATIVE = (KernelCall, CopyStep, Repeat, Branch, While)


@dataclass
class StepTables:
    """The steps as tables of numbers, whose words are addresses where ``relocations`` say so.

    ``args`` holds the arguments of all calls; those of step ``i`` begin at ``begins[i]``. ``calls`` holds a function
    ("burnish_…": of the driver, else a kernel) and where its arguments are, of each native step in order, then of the
    steps that steps hold. ``patches`` are entered by each call of the model: where, number in ``io``, offset;
    ``places`` says of each which buffer of the arena it is in (-1: none) and at what offset, ``extents`` which are no
    addresses but sizes. ``counts``: which argument holds the value of each dimension that a step counts.

    ``joined``: the first step of each native call that a call of the model makes, of which concurrent steps are one.
    They begin at entry ``joined_at`` of ``calls``: behind all others, or at the first where no steps are concurrent.

    ``relocations``: of ``args``, the number of the word, and what it is relative to: "param", "state", "args" (words of
    eight bytes) or "calls" (entries of 16).
    """

    executable: Executable
    begins: list[int] = field(default_factory=list)
    extents: list[tuple[int, int]] = field(default_factory=list)
    counts: dict[Dim, int] = field(default_factory=dict)
    relocations: list[tuple[int, str]] = field(default_factory=list)
    _args: list[int] = field(default_factory=list)
    _calls: list[tuple[str, int]] = field(default_factory=list)
    _repeated: list[tuple[str, int]] = field(default_factory=list)
    _patches: list[tuple[int, int, int]] = field(default_factory=list)
    _places: list[tuple[int, int]] = field(default_factory=list)
    _uses: dict[Dim, list[int]] = field(default_factory=dict)  # arguments that are values of counted dimensions
    _to_repeated: list[int] = field(default_factory=list)  # arguments that are addresses of steps held

    def __post_init__(self) -> None:
        own = self.executable
        outputs = 1 + len(own.inputs)
        sizes = outputs + len(own.outputs)
        self._first_io = {"arena": 0, "input": 1, "output": outputs, "size": sizes}
        self.zero = sizes + len(own.dims)  # the number in ``io`` of a null pointer
        self._uses = {d: [] for d in own.counted}
        for step in own.steps:
            if isinstance(step, NATIVE):
                self._calls.append(self._native(step))
                self.begins.append(self._calls[-1][1])
                continue
            self.begins.append(len(self._args))
            if isinstance(step, Count):
                self._calls.append(("burnish_count", len(self._args)))
            for slot in step.slots:
                self._enter(slot)
            if isinstance(step, Count):
                self._args += [step.dim.high, 0, 0]
                self.counts[step.dim] = len(self._args)
                self._args.append(0)
        self._enter_uses()
        together = self._together()
        for at in self._to_repeated:
            self._args[at] += len(self._calls)
        self.args = np.array(self._args, np.uint64)
        self.calls = self._calls + self._repeated + (list(together.values()) if own.concurrent else [])
        self.joined = [*together]
        self.joined_at = len(self._calls) + len(self._repeated) if own.concurrent else 0
        self.patches = np.array(self._patches, np.uint64).reshape(-1, 3)
        self.places = np.array(self._places, np.int64).reshape(-1, 2)

    def bind(self, entry: Callable[[str], int], params: int, state: int) -> np.ndarray:
        """Makes words of ``args`` and ``patches`` addresses, once; the table of calls. ``entry``: the address of a
        function; parameters and state are at ``params`` and ``state``.
        """
        begin = address_of(self.args)
        calls = np.array([(entry(name), begin + 8 * at) for name, at in self.calls], np.uint64).reshape(-1, 2)
        bases = {"param": (params, 1), "state": (state, 1), "args": (begin, 8), "calls": (address_of(calls), 16)}
        for at, relative in self.relocations:
            base, size = bases[relative]
            self.args[at] = base + size * self._args[at]
        if len(self.patches):
            self.patches[:, 0] = begin + 8 * self.patches[:, 0]
        return calls

    def _enter_uses(self) -> None:
        """Tells the steps that count where the values go."""
        for d, own in self.counts.items():
            self._args[own - 2] = 1 + len(self._uses[d])
            self._args[own - 1] = len(self._args)
            self.relocations.append((own - 1, "args"))
            for at in (own, *self._uses[d]):
                self._relative("args", at)

    def _relative(self, base: str, value: int) -> None:
        """Appends an argument that is relative to ``base``."""
        self.relocations.append((len(self._args), base))
        self._args.append(value)

    def _native(self, step: Native) -> tuple[str, int]:
        """Appends the arguments of a step behind those of the steps that it holds; its function, and where they are."""
        if isinstance(step, Repeat):
            return self._repeat(step)
        if isinstance(step, (Branch, While)):
            return self._flow(step)
        begin = len(self._args)
        for slot in step.slots:
            self._enter(slot)
        if isinstance(step, KernelCall):
            return step.kernel, begin
        self._enter_extent(step.amount)
        return "burnish_copy" if step.round is None else "burnish_place", begin

    def _flow(self, step: Branch | While) -> tuple[str, int]:
        """The arguments of ``burnish_branch`` or ``burnish_while``: places, then lists of steps with their lengths."""
        firsts = []
        for steps in step.lists:
            entries = [self._native(own) for own in steps]
            firsts.append(len(self._repeated))
            self._repeated += entries
        begin = len(self._args)
        for slot in step.places:
            self._enter(slot)
        for first, steps in zip(firsts, step.lists, strict=True):
            self._to_repeated.append(len(self._args))
            self._relative("calls", first)
            self._args.append(len(steps))
        return "burnish_branch" if isinstance(step, Branch) else "burnish_while", begin

    def _together(self) -> dict[int, tuple[str, int]]:
        """The native steps by number, of which concurrent ones are one call; appends the arguments of these."""
        numbers = [number for number, step in enumerate(self.executable.steps) if isinstance(step, (*NATIVE, Count))]
        entries = {number: entry for entry, number in enumerate(numbers)}
        found = dict(zip(numbers, self._calls, strict=True))
        for group in self.executable.concurrent:
            first = len(self._repeated)
            shares = [share for region in group.regions for share in region]
            self._repeated += [(share.symbol, found[share.step][1]) for share in shares]
            begin = len(self._args)
            self._args += [len(group.regions), group.threads, group.count]
            self._relative("calls", entries[group.first])
            self._to_repeated.append(len(self._args))
            self._relative("calls", first)
            for region in group.regions:
                self._args.append(len(region))
                for share in region:
                    self._args += [share.extent, share.weight, share.scratch]
            for number in range(group.first, group.first + group.count):
                del found[number]
            found[group.first] = "burnish_concurrent", begin
        return dict(sorted(found.items()))

    def _enter(self, slot: Slot, offset: int = 0) -> None:
        """Appends the address of ``slot``, ``offset`` bytes on. That of parameters and state never changes."""
        offset += slot.offset
        if slot.memory == "size" and self.executable.dims[slot.index] in self._uses:
            self._uses[self.executable.dims[slot.index]].append(len(self._args))
            self._args.append(0)
            return
        if slot.memory in ("param", "state"):
            first = self.executable.state_offsets[slot.index] if slot.memory == "state" else 0
            self._relative(slot.memory, first + offset)
            return
        placed = bool(self.executable.buffers) and slot.memory == "arena"  # its place depends on dimensions
        self._patch(self._first_io[slot.memory] + (0 if placed else slot.index), slot.index if placed else -1, offset)

    def _patch(self, io: int, buffer: int, offset: int) -> None:
        self._places.append((buffer, offset))
        self._patches.append((len(self._args), io, offset))
        self._args.append(0)

    def _enter_extent(self, extent: int) -> None:
        """Appends a number, or the value of a size."""
        if dims_of((extent,)):
            self.extents.append((len(self._places), extent))
            self._patch(self.zero, -1, 0)
        else:
            self._args.append(extent)

    def _repeat(self, step: Repeat) -> tuple[str, int]:
        """The arguments of ``burnish_repeat``, behind those of the calls that it makes."""
        moved: list[tuple[int, Pointer, int]] = []  # which argument, by which pointer, bytes behind it
        first = len(self._repeated)
        for call in step.all_calls:
            self._repeated.append((call.kernel, len(self._args)))
            for slot in call.args:
                if slot.memory == "repeat":
                    moved.append((len(self._args), step.pointers[slot.index], slot.offset))
                    self._args.append(0)
                else:
                    self._enter(slot)
        begin = len(self._args)
        self._enter_extent(step.count)
        self._args.append(len(step.once))
        self._to_repeated.append(len(self._args))
        even, every = len(step.once) + len(step.calls), len(step.all_calls)
        self._relative("calls", first)
        self._args += [even, even if step.odd else len(step.once), every, len(moved)]
        for argument, pointer, offset in moved:
            self._relative("args", argument)
            for slot in pointer.slots:
                self._enter(slot, offset)
            self._enter_extent(pointer.stride)
            self._args += [int(pointer.before is not None), int(pointer.backwards)]
        return "burnish_repeat", begin
