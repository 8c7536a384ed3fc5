"""An executable in the memory of a GPU: its kernels and buffers, and its launches as graphs that are replayed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from burnish.codegen.gridcode import GridCode
from burnish.machines.nvptx.machine import VECTOR_BYTES
from burnish.runtime.buffers import ALIGNMENT, address_of, round_up
from burnish.runtime.device import unrolled
from burnish.runtime.executable import CopyStep, Executable, KernelCall, Repeat, Slot
from burnish.runtime.gpu.driver import Gpu

GRAPHS = 8  # kept at a time, for as many places of inputs and outputs


class LoadedExecutable:
    """An executable in the memory of a GPU."""

    def __init__(self, gpu: Gpu, executable: Executable, kernels: Mapping[str, bytes], params: np.ndarray) -> None:
        self.gpu, self.executable = gpu, executable
        self.codes = {name: GridCode.unpacked(code) for name, code in kernels.items()}
        self.functions = {name: gpu.functions(code) for name, code in self.codes.items()}
        self.arena = gpu.allocate(executable.arena_bytes)
        self.params = gpu.allocate(params.nbytes)
        self.state = gpu.allocate(executable.state_offsets[-1])
        self.inputs = [gpu.allocate(spec.nbytes) for spec in executable.inputs]
        self.outputs = [gpu.allocate(spec.nbytes) for spec in executable.outputs]
        self.workspace = gpu.allocate(max((c.workspace for c in self.codes.values()), default=0))
        self.spare = gpu.allocate(self._spare_bytes())
        gpu.upload(self.params, address_of(params), params.nbytes)
        gpu.wait()
        memory = (self.arena, self.params, self.state, *self.inputs, *self.outputs, self.workspace, self.spare)
        weakref.finalize(self, gpu.free, *memory)
        self._own = tuple(self.inputs), tuple(self.outputs)
        self._graphs: dict[Any, Any] = {}  # by the places of inputs and outputs; None: met once
        self.kept: list[Any] = []  # arguments of launches that have not ended

    @contextmanager
    def at(self, inputs: Sequence[int], outputs: Sequence[int]) -> Iterator[None]:
        """Context with inputs and outputs at other places."""
        self.inputs, self.outputs = list(inputs), list(outputs)
        try:
            yield
        finally:
            self.inputs, self.outputs = map(list, self._own)
            self.kept.clear()

    def replay(self) -> None:
        """Executes all steps, which are captured as a graph: of places of somebody else the second time that they are
        met.
        """
        places = tuple(self.inputs), tuple(self.outputs)
        if places != self._own and places not in self._graphs:
            while len(self._graphs) > GRAPHS:
                oldest = next(key for key in self._graphs if key != self._own)
                graph = self._graphs.pop(oldest)
                if graph is not None:
                    self.gpu.ask("cuGraphExecDestroy", graph)
            self._graphs[places] = None
            self._steps()
            return
        if self._graphs.get(places) is None:
            self._graphs[places] = self.gpu.captured(self._steps)
            self.kept.clear()
        self.gpu.replay(self._graphs[places])

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
        self.kept.append(self.gpu.launch(self.functions[call.kernel], [*places, self.workspace]))
        for i in set(odd) & set(code.written):
            self.gpu.copy(odd[i], places[i], code.nbytes[i])

    def _spare_bytes(self) -> int:
        """For copies of the arguments of one call that are not at multiples of ``VECTOR_BYTES``."""
        steps = self.executable.steps
        calls = [call for step in steps for call in (unrolled(step) if isinstance(step, Repeat) else [step])]
        return max(
            (
                sum(
                    round_up(n, ALIGNMENT)
                    for n, slot in zip(self.codes[call.kernel].nbytes, call.args, strict=True)
                    if self.address(slot) % VECTOR_BYTES
                )
                for call in calls
                if isinstance(call, KernelCall)
            ),
            default=0,
        )

    def wait(self) -> None:
        """Ends when all that was asked for is done."""
        self.gpu.wait()
        self.kept.clear()

    def address(self, slot: Slot) -> int:
        """Address of an argument in the GPU's memory."""
        if slot.memory == "input":
            return self.inputs[slot.index] + slot.offset
        if slot.memory == "output":
            return self.outputs[slot.index] + slot.offset
        if slot.memory == "state":
            return self.state + self.executable.state_offsets[slot.index] + slot.offset
        return (self.arena if slot.memory == "arena" else self.params) + slot.offset
