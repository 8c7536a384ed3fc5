"""Execution of a plan: one device's compiled program as a step of training, its states parts of the whole model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from burnish.comm.protocol import Comm
from burnish.errors import ArtifactError, InputError, UnknownStateError
from burnish.ops.part import Box, extents_of
from burnish.runtime.buffers import aligned_array, numpy_dtype
from burnish.runtime.collectives import copied_bytes
from burnish.runtime.module import Module
from burnish.runtime.steps import TensorSpec


class RankStep:
    """Rank program: one device's share of a model or of a step of training, called like the module of the whole.

    All devices are called at the same time, with the whole batch, of which each reads what it needs. ``inputs`` and
    ``states`` are those of the whole. Results are there on device 0, those of one element on every device.
    """

    def __init__(self, module: Module, comm: Comm) -> None:
        """Raises ArtifactError for a module that is no device's program, or that of another number of devices."""
        facts = module.executable.info.get("rank")
        if not isinstance(facts, Mapping):
            raise ArtifactError("the module is no program of a device; allowed: one that was compiled for a plan")
        if len(facts["held"]) != comm.size or facts["rank"] != comm.rank:
            found = f"the program of device {facts['rank']} of {len(facts['held'])}"
            raise ArtifactError(f"{found}; allowed: that of device {comm.rank} of {comm.size}")
        self._module, self.comm = module, comm
        self.inputs = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in facts["inputs"])
        self.states = tuple(TensorSpec(name, tuple(shape), dtype) for name, shape, dtype in facts["states"])
        self.state = SplitState(module, comm, self.states, [_boxes(held) for held in facts["held"]])
        self._reads = {name: _slices(box) for name, box in _boxes(facts["reads"]).items()}
        numbers = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._numbers = numbers | {name: numbers[source] for name, source in facts["sources"].items()}
        self._outputs = [number for _, number in facts["outputs"]]
        self._given = [
            None if spec.name in self._reads else aligned_array(spec.shape, numpy_dtype(spec.dtype))[0]
            for spec in module.inputs
        ]  # messages arrive there
        self._results = [aligned_array(spec.shape, numpy_dtype(spec.dtype))[0] for spec in module.outputs]

    @property
    def memory(self) -> dict[str, int]:
        """Bytes as of the module, and those of ``messages``."""
        given = [array for array in self._given if array is not None]
        kept = sum(array.nbytes for array in [*given, *self._results])
        return {**self._module.memory, "messages": kept + copied_bytes(self._module.executable.steps)}

    @property
    def info(self) -> Mapping[str, Any]:
        """Metadata in the artifact."""
        return self._module.executable.info

    def __call__(self, *arrays: np.ndarray) -> Any:
        """The results that this device has: the only one, or a tuple.

        Raises InputError, and WorkerError naming a device that died, failed, or let this one wait for too long.
        """
        if len(arrays) != len(self.inputs):
            raise InputError(f"{len(arrays)} inputs given, the model has {len(self.inputs)}")
        given = []
        for spec, array in zip(self._module.inputs, self._given, strict=True):
            if array is None:
                whole = np.asarray(arrays[self._numbers[spec.name]])
                array = np.ascontiguousarray(whole[self._reads[spec.name]]).reshape(spec.shape)
            given.append(array)
        self._module.run_into(given, self._results)
        found = [self._results[number].copy() for number in self._outputs]
        return found[0] if len(found) == 1 else tuple(found)


class SplitState(Mapping[str, np.ndarray]):
    """States of the whole model, of which every device holds boxes.

    To read one is a collective: all devices read the same ones, in the same order, and get the whole.
    """

    def __init__(
        self, module: Module, comm: Comm, specs: Sequence[TensorSpec], held: Sequence[Mapping[str, Box]]
    ) -> None:
        self._own, self._comm, self._held = module.state, comm, held
        self._specs = {spec.name: spec for spec in specs}

    def __getitem__(self, name: str) -> np.ndarray:
        """Raises UnknownStateError for an unknown name, WorkerError where a device is gone."""
        if name not in self._specs:
            known = ", ".join(self._specs) or "none"
            raise UnknownStateError(f"state: found '{name}', which is unknown; allowed: {known}")
        spec = self._specs[name]
        dtype = numpy_dtype(spec.dtype)
        own = self._own[name].reshape(-1) if name in self._own else np.zeros(0, dtype)
        result = np.zeros(spec.shape, dtype)
        for part, held in zip(self._comm.all_gather_v(own.view(np.uint8)), self._held, strict=True):
            if name in held:
                box = held[name]
                result[_slices(box)] = part.view(dtype).reshape(extents_of(box))
        return result

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        """Keeps what this device holds of a value; each device sets its own. Raises InputError for another type."""
        spec, array = self._specs.get(name), np.asarray(value)
        if spec is None or array.shape != spec.shape or array.dtype != numpy_dtype(spec.dtype):
            found = f"state '{name}' is {array.dtype}{list(array.shape)}"
            raise InputError(f"{found}, allowed: {spec or 'a state of the model'}")
        box = self._held[self._comm.rank].get(name)
        if box is not None:
            self._own[name] = np.ascontiguousarray(array[_slices(box)]).reshape(extents_of(box))

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def __len__(self) -> int:
        return len(self._specs)


def _boxes(told: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Box]:
    return {name: tuple((int(start), int(stop)) for start, stop in box) for name, box in told.items()}


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
