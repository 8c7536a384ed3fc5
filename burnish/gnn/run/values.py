"""States of a step that runs in parts, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from burnish.errors import InputError


class StepStates(Mapping[str, np.ndarray]):
    """The states of a step by name: what is read is a copy, what is set replaces the value."""

    def __init__(self, initial: Mapping[str, np.ndarray]) -> None:
        self.arrays = {name: np.array(value) for name, value in initial.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name].copy()

    def __setitem__(self, name: str, value: Any) -> None:
        """Raises InputError for an unknown name, and an array of another shape or dtype."""
        array = np.asarray(value)
        own = self.arrays.get(name)
        if own is None or (array.shape, array.dtype) != (own.shape, own.dtype):
            known = "nothing" if own is None else f"{own.dtype}{list(own.shape)}"
            raise InputError(f"state '{name}': found {array.dtype}{list(array.shape)}; allowed: {known}")
        self.arrays[name] = array.copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)
