"""Arguments of a call: bound to inputs by position and name, converted, and checked against shapes and dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.dlpack import from_dlpack
from burnish.runtime.executable import TensorSpec


class Arguments:
    """Binding, conversion and validation of call arguments against a compiled model's input shapes and dtypes."""

    def __init__(self, inputs: Sequence[TensorSpec], info: Mapping[str, Any], exemplary: bool = False) -> None:
        """``info``: "converts", if numbers of other dtypes are converted; "assumed", first extents by inputs' names.

        ``exemplary``: whether shapes are those of a network's example inputs.
        """
        self.count = len(inputs)
        self._inputs = tuple(inputs)
        self._types = [(spec.shape, numpy_dtype(spec.dtype)) for spec in inputs]
        self.exemplary = exemplary
        self._converts, self._assumed = bool(info.get("converts")), dict(info.get("assumed", {}))

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The values in the order of inputs, and what was given beyond these. Raises InputError: unknown, missing."""
        names = [spec.name for spec in self._inputs]
        values = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            if name not in names:
                raise InputError(f"input '{name}' is unknown; the model's inputs: {', '.join(map(str, self._inputs))}")
            if name in values:
                raise InputError(f"input '{name}' is given twice, by position and by name")
            values[name] = value
        missing = [str(spec) for spec in self._inputs if spec.name not in values]
        if missing:
            raise InputError(f"input {'; '.join(missing)} is missing")
        return [values[name] for name in names] + list(args[len(names) :])

    def arrays(
        self, values: Sequence[Any], types: Sequence[tuple[tuple[int | str, ...], np.dtype[Any]]] | None
    ) -> list[np.ndarray]:
        """The values as arrays that kernels can read: contiguous, aligned to their elements, not copied otherwise.

        ``types``: the shape and dtype of each, where dimensions' values are known. Raises InputError.
        """
        if len(values) != self.count:
            listed = "; ".join(map(str, self._inputs)) or "none"
            raise InputError(f"{len(values)} inputs given, the model has {self.count}: {listed}")
        arrays: list[np.ndarray] = []
        for i, (value, (shape, dtype)) in enumerate(zip(values, types or self._types, strict=False)):
            if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                value = self.converted(self._inputs[i], value)
            # Kernels read whole vectors at any address, but elements at multiples of their size.
            if not (value.flags.c_contiguous and value.flags.aligned):
                value = np.array(value, order="C")
            arrays.append(value)
        return arrays

    def converted(self, spec: TensorSpec, value: Any) -> np.ndarray:
        """The value as an array of exactly the dtype and shape of ``spec``. Raises InputError."""
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.asarray(value)
        elif hasattr(value, "__dlpack__"):
            try:
                array = from_dlpack(value)
            except InputError as error:
                raise InputError(f"input '{spec.name}': {error}") from error.__cause__
        else:
            raise InputError(
                f"input '{spec.name}' is a {type(value).__name__}, allowed: a NumPy array or an object with __dlpack__"
            )
        if self._converts and array.dtype.kind in "fiub":
            array = array.astype(numpy_dtype(spec.dtype), copy=False)
        if array.dtype != numpy_dtype(spec.dtype) or not spec.accepts(array.shape):
            allowed = str(spec).removeprefix(f"{spec.name}: ")
            remedy = self._remedy(spec, array)
            raise InputError(f"input '{spec.name}' is {described(array)}, allowed: {allowed}{remedy}")
        return array

    def _remedy(self, spec: TensorSpec, array: np.ndarray) -> str:
        """A hint to compile otherwise, if only a number of rows differs that was assumed or an example's."""
        assumed = self._assumed.get(spec.name)
        if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or array.shape == spec.shape:
            return ""
        if assumed is None:
            return '; any number of rows: compile with dynamic={"batch": (1, 64)}' if self.exemplary else ""
        return (
            f"; the first extent ('{assumed}') is open in the model and was taken as {spec.shape[0]}: compile with "
            f"shapes={{'{spec.name}': {array.shape}}}"
        )


def described(array: np.ndarray) -> str:
    """An array's dtype and shape as messages say them."""
    return f"{array.dtype}{list(array.shape)}"
