"""Open inference protocol (KServe v2, REST): requests to arrays, results to responses.

body     ::= JSON object [bytes of tensors]        with bytes, a header says how long the JSON is
request  ::= {"id"?, "parameters"?, "inputs": [tensor], "outputs"?: [{"name", "parameters"?}]}
tensor   ::= {"name", "shape", "datatype", "data" | "parameters": {"binary_data_size"}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from burnish.errors import BurnishError
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.callable import ArraySpec

LENGTH_HEADER = "inference-header-content-length"
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8",
    "int16": "INT16", "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
    "bfloat16": "BF16",
}  # fmt: skip


class RequestError(BurnishError):
    """A request that is refused: the message names the field, what was found and what is allowed; ``status``: as HTTP
    says it.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class InferRequest:
    """Arrays in the order of the model's inputs. ``outputs``: numbers of those that are asked for, in order, each with
    whether it is sent as bytes.
    """

    id: str
    arrays: list[np.ndarray]
    outputs: list[tuple[int, bool]]


class Signature:
    """Inputs and outputs of a served model, as the protocol has them."""

    def __init__(self, model: str, inputs: Sequence[ArraySpec], outputs: Sequence[ArraySpec]) -> None:
        """Raises RequestError for a type of array that the protocol has not."""
        self.model, self.inputs, self.outputs = model, tuple(inputs), tuple(outputs)
        for spec in (*self.inputs, *self.outputs):
            if spec.dtype not in DATATYPES:
                allowed = ", ".join(DATATYPES)
                raise RequestError(f"model '{model}': '{spec.name}' is {spec.dtype}; allowed: {allowed}")
        self._numbers = {spec.name: i for i, spec in enumerate(self.inputs)}
        self._results = {spec.name: i for i, spec in enumerate(self.outputs)}

    def metadata(self) -> dict[str, Any]:
        """Answer to a question for the model's metadata; an extent that is open is -1."""

        def tensors(specs: Sequence[ArraySpec]) -> list[dict[str, Any]]:
            shapes = [[n if isinstance(n, int) else -1 for n in spec.shape or (-1,)] for spec in specs]
            return [
                {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": shape}
                for spec, shape in zip(specs, shapes, strict=True)
            ]

        inputs, outputs = tensors(self.inputs), tensors(self.outputs)
        return {"name": self.model, "versions": ["1"], "platform": "burnish", "inputs": inputs, "outputs": outputs}

    def read(self, body: bytes, json_bytes: str | None, most_elements: int) -> InferRequest:
        """A request. ``json_bytes``: the header that says how long its JSON is, where bytes follow. Raises
        RequestError.
        """
        text, rest = _divided(body, json_bytes)
        request = _object(_parsed(text), "body")
        where = request.get("id", "")
        _require(isinstance(where, str), "id", where, "text")
        binary = _object(request.get("parameters", {}), "parameters").get("binary_data_output", False)
        _require(isinstance(binary, bool), "parameters.binary_data_output", binary, "true or false")
        tensors: Any = request.get("inputs")
        _require(isinstance(tensors, list), "inputs", tensors, "a list of tensors")
        arrays: dict[int, np.ndarray] = {}
        for i, tensor in enumerate(tensors):
            number, array, rest = self._tensor(f"inputs[{i}]", tensor, rest, most_elements)
            _require(number not in arrays, f"inputs[{i}].name", self.inputs[number].name, "each input once")
            arrays[number] = array
        missing = [spec.name for i, spec in enumerate(self.inputs) if i not in arrays]
        _require(not missing, "inputs", f"none named {missing[0]!r}" if missing else "", _names(self._numbers))
        _require(not len(rest), "body", f"{len(rest)} bytes behind those of the inputs", "none")
        ordered = [arrays[i] for i in range(len(self.inputs))]
        return InferRequest(where, ordered, self._asked(request.get("outputs"), binary))

    def _tensor(
        self, field: str, tensor: Any, rest: memoryview, most_elements: int
    ) -> tuple[int, np.ndarray, memoryview]:
        """The number of an input, its array, and the bytes behind it."""
        given = _object(tensor, field)
        name = given.get("name")
        known = isinstance(name, str) and name in self._numbers
        _require(known, f"{field}.name", name, _names(self._numbers))
        spec = self.inputs[self._numbers[str(name)]]
        wanted = DATATYPES[spec.dtype]
        _require(given.get("datatype") == wanted, f"{field}.datatype", given.get("datatype"), wanted)
        shape = given.get("shape")
        extents = isinstance(shape, list) and all(type(n) is int and 0 <= n < 1 << 40 for n in shape)
        _require(extents, f"{field}.shape", shape, "a list of numbers from 0")
        assert isinstance(shape, list)
        own = spec.shape
        fits = own is None or (
            len(own) == len(shape) and all(n == m for n, m in zip(own, shape, strict=True) if isinstance(n, int))
        )
        _require(fits, f"{field}.shape", shape, f"[{', '.join(map(str, own or ()))}]")
        count = prod(shape)
        _require(count <= most_elements, f"{field}.shape", f"{count} elements", f"up to {most_elements}")
        dtype = numpy_dtype(spec.dtype)
        parameters = _object(given.get("parameters", {}), f"{field}.parameters")
        unshared = "shared_memory_region" not in parameters
        _require(unshared, f"{field}.parameters", "shared_memory_region", "data, or binary_data_size")
        if "binary_data_size" not in parameters:
            _require("data" in given, field, "no data", "data, or parameters.binary_data_size")
            return self._numbers[spec.name], _from_json(f"{field}.data", given["data"], tuple(shape), dtype), rest
        size, place = parameters["binary_data_size"], f"{field}.parameters.binary_data_size"
        _require(type(size) is int and size == count * dtype.itemsize, place, size, str(count * dtype.itemsize))
        _require(size <= len(rest), place, f"{size}, and {len(rest)} bytes are left", "as many as are sent")
        array = np.frombuffer(rest[:size], np.uint8).view(dtype).reshape(shape)
        return self._numbers[spec.name], array, rest[size:]

    def _asked(self, asked: Any, binary: bool) -> list[tuple[int, bool]]:
        if asked is None:
            return [(i, binary) for i in range(len(self.outputs))]
        _require(isinstance(asked, list) and asked, "outputs", asked, "a list of outputs")
        found = []
        for i, each in enumerate(asked):
            field = f"outputs[{i}]"
            name: Any = _object(each, field).get("name")
            _require(isinstance(name, str) and name in self._results, f"{field}.name", name, _names(self._results))
            parameters = _object(each.get("parameters", {}), f"{field}.parameters")
            own = parameters.get("binary_data", binary)
            _require(isinstance(own, bool), f"{field}.parameters.binary_data", own, "true or false")
            plain = not {"classification", "shared_memory_region"} & parameters.keys()
            _require(plain, f"{field}.parameters", sorted(parameters), "binary_data")
            found.append((self._results[name], own))
        return found

    def answer(self, request: InferRequest, results: Sequence[np.ndarray]) -> tuple[bytes, dict[str, str]]:
        """The body of a response, and its headers."""
        tensors: list[dict[str, Any]] = []
        parts: list[Any] = []
        for number, binary in request.outputs:
            spec, array = self.outputs[number], results[number]
            tensor: dict[str, Any] = {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": [*array.shape]}
            if binary:
                parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
                tensor["parameters"] = {"binary_data_size": array.nbytes}
            else:
                wide = array.astype(np.float32) if spec.dtype == "bfloat16" else array
                tensor["data"] = wide.ravel().tolist()
            tensors.append(tensor)
        found = {"model_name": self.model, "model_version": "1", "outputs": tensors}
        text = json.dumps({**found, "id": request.id} if request.id else found).encode()
        if not parts:
            return text, {"content-type": "application/json"}
        headers = {"content-type": "application/octet-stream", LENGTH_HEADER: str(len(text))}
        return b"".join([text, *parts]), headers


def _divided(body: bytes, json_bytes: str | None) -> tuple[bytes, memoryview]:
    """The JSON of a body, and the bytes behind it."""
    if json_bytes is None:
        return body, memoryview(b"")
    size = int(json_bytes) if json_bytes.isascii() and json_bytes.isdigit() and len(json_bytes) < 16 else -1
    _require(0 <= size <= len(body), LENGTH_HEADER, json_bytes, f"0 to {len(body)}, the bytes of the body")
    return body[:size], memoryview(body)[size:]


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"body: found no JSON ({error}); allowed: a JSON object") from None


def _from_json(field: str, data: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of numbers in rows, or of all in one list."""
    _require(isinstance(data, list), field, data, "a list")
    try:
        found = np.asarray(data)
    except (ValueError, OverflowError, RecursionError):
        raise RequestError(f"{field}: found lists of different lengths; allowed: shape {list(shape)}") from None
    kinds = {"b": "b", "i": "iu", "u": "iu"}.get(dtype.kind, "fiu")
    sized = found.size == prod(shape) and (found.ndim == 1 or found.shape == shape)
    _require(sized, field, f"shape {list(found.shape)}", f"{prod(shape)} numbers, or shape {list(shape)}")
    if not found.size:
        return np.zeros(shape, dtype)
    _require(found.dtype.kind in kinds, field, f"other values ({found.dtype})", f"values of {dtype}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = int(found.min()) >= limits.min and int(found.max()) <= limits.max
        _require(fits, field, f"{found.min()} to {found.max()}", f"{limits.min} to {limits.max}")
    with np.errstate(over="ignore"):  # beyond the type: infinite
        return found.astype(dtype).reshape(shape)


def _object(value: Any, field: str) -> Mapping[str, Any]:
    _require(isinstance(value, dict), field, value, "a JSON object")
    return dict(value)


def _names(names: Mapping[str, int]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _require(holds: Any, field: str, found: Any, allowed: str) -> None:
    if not holds:
        text = found if isinstance(found, str) else json.dumps(found, default=str)
        raise RequestError(f"{field}: found {text[:200] or repr(text)}; allowed: {allowed}")
