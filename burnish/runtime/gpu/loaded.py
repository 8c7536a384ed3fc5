"""An executable in the memory of a GPU: its kernels and buffers, and its launches as graphs that are replayed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from burnish.codegen.gridcode import GridCode
from burnish.errors import TargetError
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.runtime.buffers import ALIGNMENT, address_of, round_up
from burnish.runtime.device import unrolled
from burnish.runtime.executable import CopyStep, Executable, KernelCall, Repeat, Slot
from burnish.runtime.gpu.driver import Gpu
from burnish.runtime.gpu.memory import StreamOrder

GRAPHS = 16  # kept at a time, for as many places of inputs and outputs
OFTEN = 8  # times that places are met until their graph takes the place of another one
MET = 256  # places that are remembered
COPIED_BYTES = 1 << 20  # of inputs and outputs, up to which copies take less time than launches one by one

Places = tuple[tuple[int, ...], tuple[int, ...]]  # of inputs and of outputs


class LoadedExecutable:
    """An executable in the memory of a GPU."""

    def __init__(self, gpu: Gpu, executable: Executable, kernels: Mapping[str, bytes], params: np.ndarray) -> None:
        self.gpu, self.executable = gpu, executable
        self.codes = {name: GridCode.unpacked(code) for name, code in kernels.items()}
        loaded = {name: gpu.module(code) for name, code in self.codes.items()}
        self.functions = {name: functions for name, (_, functions) in loaded.items()}
        self.arena = gpu.allocate(executable.arena_bytes)
        self.params = gpu.allocate(params.nbytes)
        self.state = gpu.allocate(executable.state_offsets[-1])
        self.inputs: Sequence[int] = [gpu.allocate(spec.nbytes) for spec in executable.inputs]
        self.outputs: Sequence[int] = [gpu.allocate(spec.nbytes) for spec in executable.outputs]
        self.workspace = gpu.allocate(max((c.workspace for c in self.codes.values()), default=0))
        self.spare = gpu.allocate(self._spare_bytes())
        gpu.upload(self.params, address_of(params), params.nbytes)
        gpu.wait()
        memory = (self.arena, self.params, self.state, *self.inputs, *self.outputs, self.workspace, self.spare)
        self._own = tuple(self.inputs), tuple(self.outputs)
        self._graphs: OrderedDict[Places, Any] = OrderedDict()  # the one used last is last
        weakref.finalize(self, _end, gpu, memory, [module for module, _ in loaded.values()], self._graphs)
        self._met: OrderedDict[Places, int] = OrderedDict()  # how often, without a graph
        self._last: tuple[StreamOrder, ...] = ()  # what used the memory last
        specs = (*executable.inputs, *executable.outputs)
        launches = sum(len(self.codes[call.kernel].launches) for call in self._calls())
        self._copied = len(specs) < launches and sum(spec.nbytes for spec in specs) <= COPIED_BYTES

    @contextmanager
    def turn(self, stream: int | None) -> Iterator[None]:
        """Context of one call, on a stream (None: the own one), after the call before it."""
        gpu = self.gpu
        with gpu.on(stream):
            gpu.after(self._last)
            try:
                yield
            except BaseException:
                with suppress(TargetError):
                    self._mark()
                raise
            self._mark()

    def _mark(self) -> None:
        """Order of what comes next: after this; a captured call is ordered by who launches the graph."""
        self._last = () if self.gpu.capturing else (self.gpu.mark(),)

    @property
    def orders(self) -> tuple[StreamOrder, ...]:
        """Streams, and events behind the last call."""
        return self._last

    @contextmanager
    def at(self, inputs: Sequence[int], outputs: Sequence[int]) -> Iterator[None]:
        """Context with inputs and outputs at other places."""
        self.inputs, self.outputs = inputs, outputs
        try:
            yield
        finally:
            self.inputs, self.outputs = self._own

    def replay(self) -> None:
        """Executes all steps, which are captured as a graph: of places of somebody else the second time that they are
        met. Before, they are copied from and to its own places where that is little.
        """
        places = tuple(self.inputs), tuple(self.outputs)
        graph = self._graphs.get(places)
        if graph is not None and not self.gpu.capturing:
            self._graphs.move_to_end(places)
            self.gpu.replay(graph)
        elif self.gpu.capturing:
            self._steps()
        elif places == self._own or self._is_known(places):
            self.gpu.replay(self._captured(places))
        elif self._copied:
            self._by_copies(places)
        else:
            self._steps()

    def _is_known(self, places: Places) -> bool:
        """Whether places are met again, often if another graph has to go."""
        count = self._met.pop(places, 0) + 1
        if count >= (2 if len(self._graphs) < GRAPHS else OFTEN):
            return True
        self._met[places] = count
        if len(self._met) > MET:
            self._met.popitem(last=False)
        return False

    def _captured(self, places: Places) -> Any:
        """The graph of all steps at these places, which is kept."""
        while len(self._graphs) >= GRAPHS:
            oldest = next(key for key in self._graphs if key != self._own)
            self.gpu.ask("cuGraphExecDestroy", self._graphs.pop(oldest))
        graph = self._graphs[places] = self.gpu.captured(self._steps)
        return graph

    def _by_copies(self, places: Places) -> None:
        """Executes all steps at its own places, to and from which all is copied."""
        known = self.executable
        for own, place, spec in zip(self._own[0], places[0], known.inputs, strict=True):
            if own != place:
                self.gpu.copy(own, place, spec.nbytes)
        with self.at(*self._own):
            self.replay()
        for own, place, spec in zip(self._own[1], places[1], known.outputs, strict=True):
            if own != place:
                self.gpu.copy(place, own, spec.nbytes)

    def _steps(self) -> None:
        for step in self.executable.steps:
            self.step(step)

    def step(self, step: Any) -> None:
        """Asks for one step."""
        if isinstance(step, Repeat):
            for call in unrolled(step):
                self._call(call)
        elif isinstance(step, CopyStep):
            self.gpu.copy(self.address(step.target), self.address(step.source), step.target.nbytes)
        else:
            self._call(step)

    def _call(self, call: KernelCall) -> None:
        """One kernel; an argument that is not where vectors may be is copied there, and back if it is written."""
        code, places = self.codes[call.kernel], [self.address(slot) for slot in call.args]
        odd = {i: place for i, place in enumerate(places) if place % VECTOR_BYTES}
        at = self.spare
        for i, place in odd.items():
            places[i] = at
            at += round_up(code.nbytes[i], ALIGNMENT)
            self.gpu.copy(places[i], place, code.nbytes[i])
        self.gpu.launch(self.functions[call.kernel], [*places, self.workspace])
        for i in set(odd) & set(code.written):
            self.gpu.copy(odd[i], places[i], code.nbytes[i])

    def _spare_bytes(self) -> int:
        """For copies of the arguments of one call that are not at multiples of ``VECTOR_BYTES``."""
        return max(
            (
                sum(
                    round_up(n, ALIGNMENT)
                    for n, slot in zip(self.codes[call.kernel].nbytes, call.args, strict=True)
                    if self.address(slot) % VECTOR_BYTES
                )
                for call in self._calls()
            ),
            default=0,
        )

    def _calls(self) -> list[KernelCall]:
        steps = self.executable.steps
        calls = [call for step in steps for call in (unrolled(step) if isinstance(step, Repeat) else [step])]
        return [call for call in calls if isinstance(call, KernelCall)]

    def address(self, slot: Slot) -> int:
        """Address of an argument in the GPU's memory."""
        if slot.memory == "input":
            return self.inputs[slot.index] + slot.offset
        if slot.memory == "output":
            return self.outputs[slot.index] + slot.offset
        if slot.memory == "state":
            return self.state + self.executable.state_offsets[slot.index] + slot.offset
        return (self.arena if slot.memory == "arena" else self.params) + slot.offset


def _end(gpu: Gpu, memory: Sequence[int], modules: Sequence[Any], graphs: Mapping[Places, Any]) -> None:
    """Gives back memory, for which the driver waits until nothing uses it, and then what used it."""
    gpu.free(*memory)
    gpu.unload(modules, graphs.values())
