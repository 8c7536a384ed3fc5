"""Execution of a plan: one device's compiled program as a step of training, its states parts of the whole model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from burnish.comm.protocol import Comm
from burnish.errors import ArtifactError, InputError
from burnish.ops.part import Box, extents_of
from burnish.runtime.arguments import Arguments
from burnish.runtime.buffers import aligned_array, numpy_dtype
from burnish.runtime.callable import CompiledBase, ProfileRow
from burnish.runtime.collectives import copied_bytes
from burnish.runtime.module import Module
from burnish.runtime.state import ModuleStates
from burnish.runtime.steps import TensorSpec


class RankStep(CompiledBase):
    """Rank program: one device's share of a model or of a step of training, called like the module of the whole.

    All devices are called at the same time, with the whole batch, of which each reads what it needs. ``inputs`` and
    ``states`` are those of the whole, ``outputs`` the results that this device has: all on device 0, those of one
    element on every device. To read a state is a collective: all devices read the same ones, in the same order, and get
    the whole; to set one is not: each keeps what it holds of it.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

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
        self._held = [_boxes(held) for held in facts["held"]]
        types = {spec.name: (spec.shape, numpy_dtype(spec.dtype)) for spec in self.states}
        self.state = ModuleStates(types, self._gathered, self._keep)
        self._arguments = Arguments(self.inputs, {})
        self._reads = {name: _slices(box) for name, box in _boxes(facts["reads"]).items()}
        numbers = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._numbers = numbers | {name: numbers[source] for name, source in facts["sources"].items()}
        self._outputs = [number for _, number in facts["outputs"]]
        self.outputs = tuple(replace(module.outputs[number], name=name) for name, number in facts["outputs"])
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

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The results that this device has: the only one, or a tuple.

        Raises InputError, and WorkerError naming a device that died, failed, or let this one wait for too long.
        """
        self._module.run_into(self._parts(args, kwargs), self._results)
        found = [self._results[number].copy() for number in self._outputs]
        return found[0] if len(found) == 1 else tuple(found)

    def take_states(self, other: RankStep) -> None:
        """Takes over the states of another program of the same whole, for other sizes: a collective, unless every
        device holds the same parts for both.
        """
        for name in self.state:
            if [held.get(name) for held in self._held] != [held.get(name) for held in other._held]:
                self._keep(name, other._gathered(name))
            elif name in self._module.state:
                self._module.state[name] = other._module.state[name]

    def profile(self, /, *args: Any, repeat: int = 20, **kwargs: Any) -> list[ProfileRow]:
        """Time of each step on this device, messages among them: a collective as a call, by the same ``repeat``."""
        return self._module.profile(*self._parts(args, kwargs), repeat=repeat)

    def save(self, path: str | Path, *, key: bytes | None = None) -> None:
        """Writes the program of this device, with its part of the state: ``load(path, comm=)`` gives the module that a
        ``RankStep`` is made of. Raises OSError.
        """
        self._module.save(path, key=key)

    def _release(self) -> None:
        self._module.close()

    def _facts(self) -> list[str]:
        """Facts for ``repr``."""
        return [f"device {self.comm.rank} of {self.comm.size}"]

    def _parts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[np.ndarray]:
        """Inputs of this device's program, read from the arguments of the whole. Raises InputError."""
        if len(args) + len(kwargs) != len(self.inputs):
            raise InputError(f"{len(args) + len(kwargs)} inputs given, the model has {len(self.inputs)}")
        arrays = self._arguments.bind(args, kwargs)
        given = []
        for spec, array in zip(self._module.inputs, self._given, strict=True):
            if array is None:
                whole = np.asarray(arrays[self._numbers[spec.name]])
                array = np.ascontiguousarray(whole[self._reads[spec.name]]).reshape(spec.shape)
            given.append(array)
        return given

    def _gathered(self, name: str) -> np.ndarray:
        """A state of the whole, of which every device holds a box or nothing. Raises WorkerError where one is gone."""
        spec = next(spec for spec in self.states if spec.name == name)
        dtype, own = numpy_dtype(spec.dtype), self._module.state
        part = own[name].reshape(-1) if name in own else np.zeros(0, dtype)
        result = np.zeros(spec.shape, dtype)
        for each, held in zip(self.comm.all_gather_v(part.view(np.uint8)), self._held, strict=True):
            if name in held:
                result[_slices(held[name])] = each.view(dtype).reshape(extents_of(held[name]))
        return result

    def _keep(self, name: str, value: np.ndarray) -> None:
        """Sets what this device holds of a state of the whole."""
        box = self._held[self.comm.rank].get(name)
        if box is not None:
            self._module.state[name] = np.ascontiguousarray(value[_slices(box)]).reshape(extents_of(box))


def _boxes(ranges: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, Box]:
    return {name: tuple((int(start), int(stop)) for start, stop in box) for name, box in ranges.items()}


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)
