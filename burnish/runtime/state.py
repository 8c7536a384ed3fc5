"""State of a module: named tensors that outlive a call, as a mapping to read and replace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.executable import Executable


class State(Mapping[str, np.ndarray]):
    """The states of a module by name. What is read is a copy; what is set replaces the value between two calls."""

    def __init__(self, executable: Executable, memory: np.ndarray, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._views: dict[str, np.ndarray] = {}
        for spec, begin in zip(executable.states, executable.state_offsets, strict=False):
            own = memory[begin : begin + spec.nbytes].view(numpy_dtype(spec.dtype))
            self._views[spec.name] = own.reshape(spec.shape)

    def __getitem__(self, name: str) -> np.ndarray:
        with self._lock:
            return self._views[name].copy()

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        """Raises InputError for an unknown name, and an array of another shape or dtype."""
        if name not in self._views:
            raise InputError(f"state '{name}' is unknown; the model's states: {', '.join(self._views) or 'none'}")
        view, array = self._views[name], np.asarray(value)
        if (array.shape, array.dtype) != (view.shape, view.dtype):
            found, allowed = f"{array.dtype}{list(array.shape)}", f"{view.dtype}{list(view.shape)}"
            raise InputError(f"state '{name}' is {found}, allowed: {allowed}")
        with self._lock:
            np.copyto(view, array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def __repr__(self) -> str:
        return f"State({', '.join(f'{name}: {v.dtype}{list(v.shape)}' for name, v in self._views.items())})"
