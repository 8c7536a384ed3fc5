"""Inputs and outputs whose extents, ranks or kinds are open until a call, and the arguments that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from burnish.errors import InputError, UnsupportedOperator
from burnish.frontend.onnx.dtypes import dtype_name
from burnish.frontend.onnx.texts import texts_of
from burnish.loops.numeric import numpy_dtype
from burnish.runtime.dlpack import from_dlpack

TEXT = "text"


@dataclass(frozen=True)
class OpenSpec:
    """An input or output: ``shape`` has a name, or "?", where an extent is open, and is None where the rank is.

    ``kind``: "tensor", "sequence" (a list of arrays), "optional" (None, or what it may hold) or "maps" (of outputs: a
    list of dictionaries of label and number); ``dtype`` is that of the arrays, "text" of those of strings.
    """

    name: str
    shape: tuple[int | str, ...] | None
    dtype: str
    kind: str = "tensor"

    def __str__(self) -> str:
        extents = "…" if self.shape is None else ", ".join(map(str, self.shape))
        text = f"{self.dtype}[{extents}]" if self.kind != "maps" else self.dtype
        return f"{self.name}: {text if self.kind == 'tensor' else f'{self.kind} of {text}'}"


def open_spec(value: onnx.ValueInfoProto) -> OpenSpec:
    """Specification of an input or output as declared. Raises UnsupportedOperator for maps that are in no sequence."""
    kind, declared = "tensor", value.type
    while not declared.HasField("tensor_type"):
        inner = declared.WhichOneof("value")
        if inner is None:
            return OpenSpec(value.name, None, "?", kind)  # of outputs, whose types need not be declared
        if inner == "map_type" and kind == "sequence":
            element = declared.map_type.value_type.tensor_type.elem_type
            return OpenSpec(value.name, None, dtype_name(element, f"value '{value.name}'"), "maps")
        if inner not in ("sequence_type", "optional_type"):
            allowed = "tensors, sequences, optionals"
            raise UnsupportedOperator(f"value '{value.name}': found type {inner}; allowed: {allowed}")
        kind = "optional" if inner == "optional_type" else kind if kind == "optional" else "sequence"
        declared = getattr(declared, inner).elem_type
    texts = declared.tensor_type.elem_type == onnx.TensorProto.STRING
    dtype = TEXT if texts else dtype_name(declared.tensor_type.elem_type, f"value '{value.name}'")
    if not declared.tensor_type.HasField("shape"):
        return OpenSpec(value.name, None, dtype, kind)
    shape = tuple(
        int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?"
        for d in declared.tensor_type.shape.dim
    )
    return OpenSpec(value.name, shape, dtype, kind)


@dataclass(frozen=True)
class OpenInputs:
    """The inputs of a model, and ``limits``: what callers promised of them, the shapes of those named and the bounds
    (one number, or the least and the greatest) of dimensions.
    """

    specs: tuple[OpenSpec, ...]
    limits: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a call by name, as arrays. Raises InputError for what is missing, unknown or does not fit."""
        specs = {spec.name: spec for spec in self.specs}
        if len(args) > len(specs):
            listed = "; ".join(map(str, self.specs)) or "none"
            raise InputError(f"{len(args)} inputs given, the model has {len(specs)}: {listed}")
        values = dict(zip(specs, args, strict=False))
        for name, value in kwargs.items():
            if name not in specs or name in values:
                what = "is given twice, by position and by name" if name in values else "is unknown"
                raise InputError(f"input '{name}' {what}; the model's inputs: {', '.join(map(str, self.specs))}")
            values[name] = value
        missing = [str(s) for s in self.specs if s.name not in values and s.kind != "optional"]
        if missing:
            raise InputError(f"input {'; '.join(missing)} is missing")
        found = {name: _accept(spec, values.get(name)) for name, spec in specs.items()}
        self._check_sizes(found)
        return found

    def _check_sizes(self, values: Mapping[str, Any]) -> None:
        """Raises InputError where inputs differ in an extent of one name, or are outside what was promised."""
        sizes: dict[str, tuple[int, str]] = {}
        for spec in self.specs:
            value = values[spec.name]
            shape = self.limits.get(spec.name, spec.shape)
            if not isinstance(value, np.ndarray) or shape is None:
                continue
            pairs: list[tuple[Any, int]] = list(zip(shape, value.shape, strict=True))
            for own, n in pairs:
                if isinstance(own, int) and own != n:
                    raise InputError(f"input '{spec.name}' is {list(value.shape)}, allowed: {list(shape)}")
                if not isinstance(own, str) or own == "?":
                    continue
                first, where = sizes.setdefault(own, (n, spec.name))
                if first != n:
                    raise InputError(f"dimension '{own}': found {n} of input '{spec.name}', {first} of '{where}'")
                low, high = self._bounds(own)
                if not low <= n <= high:
                    raise InputError(f"dimension '{own}': found {n} of input '{spec.name}'; allowed: {low} to {high}")

    def _bounds(self, name: str) -> tuple[int, int]:
        """The least and the greatest value of a dimension."""
        bounds: Any = self.limits.get(name, (0, 1 << 62))
        return (bounds, bounds) if isinstance(bounds, int) else (bounds[0], bounds[1])


def _accept(spec: OpenSpec, value: Any) -> Any:
    """The value as the model takes it. Raises InputError."""
    if spec.kind == "optional" and value is None:
        return None
    if spec.kind != "tensor" and isinstance(value, (list, tuple)):
        return [_accept(OpenSpec(spec.name, spec.shape, spec.dtype), each) for each in value]
    if spec.dtype == TEXT and spec.kind != "sequence":
        value = _texts(value)
    elif not isinstance(value, (np.ndarray, np.generic)) and hasattr(value, "__dlpack__"):
        value = from_dlpack(value)
    if not isinstance(value, (np.ndarray, np.generic)) or spec.kind == "sequence":
        raise InputError(f"input '{spec.name}' is a {type(value).__name__}, allowed: {spec}")
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    fits = spec.shape is None or (
        len(spec.shape) == array.ndim
        and all(isinstance(own, str) or own == n for own, n in zip(spec.shape, map(int, array.shape), strict=True))
    )
    own = np.dtype(object) if spec.dtype == TEXT else numpy_dtype(spec.dtype)
    if array.dtype != own or not fits:
        raise InputError(f"input '{spec.name}' is {array.dtype}{list(array.shape)}, allowed: {spec}")
    others = [e for e in array.reshape(-1).tolist() if not isinstance(e, str)] if spec.dtype == TEXT else ()
    if others:
        raise InputError(f"input '{spec.name}' holds a {type(others[0]).__name__}, allowed: {spec}")
    return array


def _texts(value: Any) -> Any:
    """A tensor of texts, of what may be one: an array or nested lists of strings; anything else as it is."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    items: list[Any] = array.reshape(-1).tolist() if array.dtype.kind in "OU" else [None]
    return texts_of(items, array.shape) if all(isinstance(item, str) for item in items) else value
