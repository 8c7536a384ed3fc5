"""State of a module: named tensors that outlive a call, as a mapping to read and replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from burnish.errors import InputError, UnknownStateError
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import Executable


class ModuleStates(Mapping[str, np.ndarray]):
    """The states of a module by name. What is read is a copy; what is set replaces the value between two calls."""

    def __init__(self, executable: Executable, memory: np.ndarray, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._views: dict[str, np.ndarray] = {}
        for spec, begin in zip(executable.states, executable.state_offsets, strict=False):
            own = memory[begin : begin + spec.nbytes].view(numpy_dtype(spec.dtype))
            self._views[spec.name] = own.reshape(spec.shape)

    def __getitem__(self, name: str) -> np.ndarray:
        """Raises UnknownStateError for an unknown name."""
        if name not in self._views:
            raise self._unknown(name)
        with self._lock:
            return self._views[name].copy()

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        """Raises UnknownStateError for an unknown name, InputError for an array of another shape or dtype."""
        if name not in self._views:
            raise self._unknown(name)
        view, array = self._views[name], np.asarray(value)
        if (array.shape, array.dtype) != (view.shape, view.dtype):
            found, allowed = f"{array.dtype}{list(array.shape)}", f"{view.dtype}{list(view.shape)}"
            raise InputError(f"state '{name}' is {found}, allowed: {allowed}")
        with self._lock:
            np.copyto(view, array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __contains__(self, name: object) -> bool:
        return name in self._views

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {v.dtype}{list(v.shape)}' for name, v in self._views.items())})"

    def _unknown(self, name: str) -> UnknownStateError:
        known = ", ".join(self._views) or "none"
        return UnknownStateError(f"state: found '{name}', which is unknown; allowed: {known}")
