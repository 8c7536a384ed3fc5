"""ONNX element types and Burnish dtypes."""

from __future__ import annotations

import onnx

from burnish.errors import UnsupportedOperator
from burnish.loops.expr import DTYPES

_NAMES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "BOOL": "bool",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
}  # fmt: skip


def dtype_name(element_type: int, where: str) -> str:
    """The dtype of an ONNX element type; UnsupportedOperator, naming ``where``, if there is none."""
    known = dict((number, name) for name, number in onnx.TensorProto.DataType.items())
    name = known.get(element_type, str(element_type))
    if name not in _NAMES:
        raise UnsupportedOperator(f"{where}: element type: found {name}; allowed: {', '.join(DTYPES)}")
    return _NAMES[name]
