"""Emulated board: a worker whose code runs in an emulator of ARM CPUs; a nanosecond is an instruction.

`python -m burnish.boards.emulated` is what a board of this kind runs, on standard input and output.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np

from burnish.boards import agent
from burnish.boards.native import Native
from burnish.runtime.image import Image
from burnish.simulators.emulator import CpuEmulator

SECONDS = 1e-9  # of an instruction: what a core does that finishes one in each cycle, at 1 GHz


class Emulated(Native):
    """Emulated engine, as :class:`~burnish.boards.native.Native`, on one thread. Around memory nothing is mapped."""

    def __init__(self) -> None:
        self._emulators: dict[str, CpuEmulator] = {}
        self._arrays: dict[str, np.ndarray] = {}

    @staticmethod
    def about() -> dict:
        """Description of the emulated machine."""
        return {"machine": "aarch64", "cores": 1, "flags": [], "clock": "instructions"}

    def code(self, name: str, image: Image) -> None:
        """Raises TargetError for another machine's."""
        emulator = self._emulators[name] = CpuEmulator(count=True)
        emulator.kernels(image)

    def buffer(self, name: str, nbytes: int, data: bytes | None, writable: bool) -> None:
        """Memory of this name, in the place of what had it."""
        array = np.zeros(nbytes, np.uint8)
        if data is not None:
            array[:] = np.frombuffer(data, np.uint8)
        array.flags.writeable = writable
        self._arrays[name] = array

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Replaces bytes of writable memory."""
        self._view([name, offset, len(data)])[:] = np.frombuffer(data, np.uint8)

    def fill(self, name: str) -> None:
        """Makes memory what nobody has written: NaN in every float type."""
        self._arrays[name][:] = 0xFF

    def read(self, name: str, offset: int, nbytes: int) -> bytes:
        """Bytes of memory."""
        return self._view([name, offset, nbytes]).tobytes()

    def untouched(self) -> bool:
        """True: an access outside is an error of its own."""
        return True

    def call(self, order: dict[str, Any]) -> list[float]:
        """Seconds of one call: its instructions. All runs of the same code on the same memory have as many."""
        each = [self._step(*step) * SECONDS for step in order["steps"]]
        return each if order.get("profile") else [sum(each)]

    def _step(self, code: str, symbol: str, places: list[list[Any]]) -> int:
        """Instructions of a step."""
        views = [self._view(place) for place in places]
        if not code:
            views[0][:] = views[1]
            return len(views[0]) // 16  # as many loads and stores of vectors
        emulator = self._emulators[code]
        before = _instructions(emulator)
        emulator.run(symbol.encode(), views)
        gc.collect()  # a processor, which is part of circles, has a gigabyte of address space
        return _instructions(emulator) - before

    def _view(self, place: list[Any]) -> np.ndarray:
        """A part of a memory. Raises ValueError for what is not inside of it."""
        name, offset, nbytes = place
        array = self._arrays[name]
        if not 0 <= offset <= offset + nbytes <= array.nbytes:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of '{name}', which has {array.nbytes}")
        return array[offset : offset + nbytes]


def _instructions(emulator: CpuEmulator) -> int:
    return sum(block.runs * block.instructions for block in emulator.blocks.values())


if __name__ == "__main__":
    gc.freeze()  # nothing of what is here now will be garbage
    agent.main(Emulated)
