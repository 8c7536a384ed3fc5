"""State of a compiled model: named tensors that outlive a call, as a mapping to read and replace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from burnish.errors import InputError, UnknownStateError
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import Executable

ArrayType = tuple[tuple[int, ...], np.dtype[Any]]  # shape, dtype


class ModuleStates(Mapping[str, np.ndarray]):
    """The states of a compiled model by name. What is read is a copy; what is set replaces the value between two calls.

    ``types``: shape and dtype of each; ``read`` and ``write``: how a value is copied from and to where it lies.
    """

    def __init__(
        self,
        types: Mapping[str, ArrayType] | None = None,
        read: Callable[[str], np.ndarray] | None = None,
        write: Callable[[str, np.ndarray], None] | None = None,
    ) -> None:
        self._types, self._read, self._write = dict(types or {}), read, write

    @classmethod
    def of(
        cls, arrays: Mapping[str, np.ndarray], access: Callable[[bool], AbstractContextManager[Any]]
    ) -> ModuleStates:
        """States that are these arrays, which are read and written within ``access``: True where one is written."""

        def read(name: str) -> np.ndarray:
            with access(False):
                return arrays[name].copy()

        def write(name: str, value: np.ndarray) -> None:
            with access(True):
                np.copyto(arrays[name], value)

        return cls({name: (array.shape, array.dtype) for name, array in arrays.items()}, read, write)

    def __getitem__(self, name: str) -> np.ndarray:
        """Raises UnknownStateError for an unknown name."""
        if name not in self._types or self._read is None:
            raise self._unknown(name)
        return self._read(name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Raises UnknownStateError for an unknown name, InputError for an array of another shape or dtype."""
        if name not in self._types or self._write is None:
            raise self._unknown(name)
        array = np.asarray(value)
        shape, dtype = self._types[name]
        if (array.shape, array.dtype) != (shape, dtype):
            found, allowed = f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)}"
            raise InputError(f"state '{name}' is {found}, allowed: {allowed}")
        self._write(name, array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __len__(self) -> int:
        return len(self._types)

    def __repr__(self) -> str:
        types = (f"{name}: {dtype}{list(shape)}" for name, (shape, dtype) in self._types.items())
        return f"State({', '.join(types)})"

    def _unknown(self, name: str) -> UnknownStateError:
        known = ", ".join(self._types) or "none"
        return UnknownStateError(f"state: found '{name}', which is unknown; allowed: {known}")


def state_views(executable: Executable, memory: np.ndarray) -> dict[str, np.ndarray]:
    """The states of an executable as arrays in the memory of all of them, uint8."""
    views = {}
    for spec, begin in zip(executable.states, executable.state_offsets, strict=False):
        own = memory[begin : begin + spec.nbytes].view(numpy_dtype(spec.dtype))
        views[spec.name] = own.reshape(spec.shape)
    return views
