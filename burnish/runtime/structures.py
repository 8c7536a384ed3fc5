"""Structures of graphs among a model's inputs: checked, and re-ordered for its kernels, once for the same arrays.

What kernels read between positions that are loaded, and at rows that are, must be right, for they check nothing. A call
with the very arrays of an earlier one finds what was made of them then: they are not to be written to in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish import ops
from burnish.errors import ArtifactError, InputError, ModelError, UnsupportedOperator
from burnish.loops.size_text import parse_extent
from burnish.loops.sizes import hinted, valued
from burnish.runtime.buffers import aligned_array
from burnish.runtime.executable import Executable, TensorSpec

KEPT = 8  # structures whose results are kept: those of a model's training, validation and test graphs
NAME = "structures"  # in an executable's info


@dataclass(frozen=True)
class Check:
    """Validity check of an input: ``offsets`` do not fall, from 0 to ``limit``; ``rows`` are from 0 to below it."""

    kind: str
    limit: int  # or a size of open dimensions

    def of(self, name: str, array: np.ndarray, sizes: Mapping[str, int]) -> None:
        """Raises InputError, naming the input, where it is not, at these values of dimensions."""
        if not array.size:
            return
        low, high = int(array.min()), int(array.max())
        most = valued(self.limit, sizes) - (self.kind == "rows")
        if low < 0 or high > most:
            raise InputError(f"input '{name}': found {self.kind} from {low} to {high}; allowed: 0 to {most}")
        if self.kind == "offsets":
            falls = np.flatnonzero(array[..., 1:] < array[..., :-1])
            if len(falls):
                at = int(falls[0]) % (array.shape[-1] - 1)
                found = f"{array.reshape(-1)[at]} before {array.reshape(-1)[at + 1]}, at {at}"
                raise InputError(f"input '{name}': found offsets that fall, {found}; allowed: ones that do not")


@dataclass(frozen=True)
class _Derived:
    """Array computed by an operator from others: inputs and earlier results, by their numbers."""

    make: Callable[..., Any]
    inputs: tuple[int, ...]
    spec: TensorSpec


class Structures:
    """Checked and derived inputs of a module. ``count``: the inputs that a caller gives."""

    def __init__(self, executable: Executable) -> None:
        """Raises ArtifactError for a description that does not fit the inputs."""
        held = executable.info.get(NAME)
        plan: Mapping[str, Any] = held if isinstance(held, Mapping) else {}
        derived, checks = plan.get("derived", []), plan.get("checks", [])
        self._names = [spec.name for spec in executable.inputs]
        self.count = len(self._names) - len(derived)
        try:
            self._derived = [
                _derived(executable, self.count + i, operator, inputs, attrs)
                for i, (operator, inputs, attrs) in enumerate(derived)
            ]
            dims = {d.name: d for d in executable.dims}
            self._checks = [
                (_number(i, self.count), Check(str(kind), parse_extent(str(limit), dims))) for i, kind, limit in checks
            ]
            self._dims = tuple(dims)
        except (ValueError, TypeError, ModelError, UnsupportedOperator) as error:
            raise ArtifactError(f"the model's structures are damaged: {error}") from error
        used = {i for d in self._derived for i in d.inputs if i < self.count} | {i for i, _ in self._checks}
        self._numbers = tuple(sorted(used))
        self._known: dict[tuple[Any, ...], tuple[list[weakref.ref[Any]], list[np.ndarray]]] = {}

    @property
    def offsets(self) -> dict[str, int]:
        """The inputs that are checked as offsets of rows, and the most that they may be, at the hints of dimensions."""
        return {self._names[i]: hinted(check.limit) for i, check in self._checks if check.kind == "offsets"}

    def complete(self, given: Sequence[Any], arrays: list[np.ndarray], values: Sequence[int]) -> list[np.ndarray]:
        """A call's ``arrays``, made of what was ``given``, and what is derived of them, at these ``values`` of the
        executable's dimensions. Raises InputError.
        """
        if not self._numbers:
            return arrays
        key: tuple[Any, ...] = (*[id(given[i]) for i in self._numbers], *values)
        known = self._known.get(key)
        if known is not None and all(r() is given[i] for r, i in zip(known[0], self._numbers, strict=True)):
            return arrays + known[1]
        sizes = dict(zip(self._dims, values, strict=True))
        for number, check in self._checks:
            check.of(self._names[number], arrays[number], sizes)
        results: list[np.ndarray] = []
        for step in self._derived:
            operands = [*arrays, *results]
            result, _ = aligned_array(step.spec.at(sizes), np.dtype(step.spec.dtype))
            try:
                result[...] = step.make(*[operands[i] for i in step.inputs])
            except IndexError as error:
                names = ", ".join(f"'{self._names[i]}'" for i in step.inputs)
                raise InputError(f"structure of {names}: {error}") from None
            results.append(result)
        try:
            held = [weakref.ref(given[i]) for i in self._numbers]
        except TypeError:  # of what is no object of its own: derived again by the next call
            return arrays + results
        while len(self._known) >= KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[key] = held, results
        return arrays + results


def _number(value: Any, below: int) -> int:
    if not isinstance(value, int) or not 0 <= value < below:
        raise ValueError(f"found input {value!r}; allowed: 0 to {below - 1}")
    return value


def _derived(executable: Executable, at: int, name: str, inputs: Any, attrs: Any) -> _Derived:
    """One derived input, of the type that its operator says."""
    operator = ops.operator_named(name)
    if operator.extern is None or not operator.traits.structure:
        raise ValueError(f"found operator '{name}'; allowed: one that makes structures of structures")
    numbers, make = tuple(_number(i, at) for i in inputs), operator.extern
    own, specs = executable.inputs[at], [executable.inputs[i] for i in numbers]
    complete = operator.complete(attrs)
    if operator.infer([(s.shape, s.dtype) for s in specs], attrs) != [(own.shape, own.dtype)]:
        raise ValueError(f"operator '{name}' has a result of another type than input {at}")
    return _Derived(lambda *arrays: make(*arrays, **complete), numbers, own)
