"""ONNX element types and tensors as Burnish dtypes and NumPy arrays."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx.numpy_helper

from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx.context import RuntimeValue
from burnish.frontend.onnx.external import NO_FILES, ExternalData
from burnish.loops.expr import DTYPES
from burnish.loops.numeric import numpy_dtype

_NAMES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "BOOL": "bool",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "FLOAT8E4M3FN": "float8_e4m3fn", "FLOAT8E4M3FNUZ": "float8_e4m3fnuz", "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz", "FLOAT8E8M0": "float8_e8m0fnu", "FLOAT4E2M1": "float4_e2m1fn",
    "INT4": "int4", "UINT4": "uint4", "INT2": "int2", "UINT2": "uint2",
}  # fmt: skip


def dtype_name(element_type: int, where: str) -> str:
    """The dtype of an ONNX element type; UnsupportedOperator, naming ``where``, if there is none.

    That of texts is a RuntimeValue.
    """
    names = {number: name for name, number in onnx.TensorProto.DataType.items()}
    name = names.get(element_type, str(element_type))
    if name == "UNDEFINED":
        raise ModelError(f"{where}: element type: found none; allowed: {', '.join(DTYPES)}")
    if name == "STRING":
        raise RuntimeValue(f"{where}: element type: found STRING; allowed: numbers; texts only in a call", "")
    if name not in _NAMES:
        raise UnsupportedOperator(f"{where}: element type: found {name}; allowed: {', '.join(_NAMES.values())}")
    return _NAMES[name]


def element_named(name: str, where: str) -> int:
    """The ONNX element type of this name, as old opsets give it. Raises ModelError."""
    if name not in dict(onnx.TensorProto.DataType.items()):
        raise ModelError(f"{where}: element type: found {name!r}; allowed: a name such as FLOAT")
    return onnx.TensorProto.DataType.Value(name)


def element_type(dtype: str) -> int:
    """The ONNX element type of a dtype."""
    name = next(name for name, own in _NAMES.items() if own == dtype)
    return onnx.TensorProto.DataType.Value(name)


def to_array(tensor: onnx.TensorProto, where: str, data: ExternalData = NO_FILES) -> np.ndarray:
    """The tensor's value; ``data`` leads to what lies in other files. Raises ModelError, naming ``where``."""
    dtype = dtype_name(tensor.data_type, where)
    dims = list(tensor.dims)
    if min(dims, default=0) < 0:
        raise ModelError(f"{where}: dimensions: found {dims}; allowed: none below 0")
    try:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            found = data.read(tensor, math.prod(dims) * numpy_dtype(dtype).itemsize, where)
            return found.view(numpy_dtype(dtype)).reshape(dims)
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OSError, ArithmeticError, MemoryError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{where}: the data of a tensor with dimensions {dims} cannot be read: {error}") from error
