"""ONNX files: reading, bounds of what is read, the opset."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx.defs
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from burnish.base.files import open_regular
from burnish.errors import ModelError, UnsupportedOperator
from burnish.frontend.onnx.domains import DEFAULT
from burnish.frontend.onnx.external import NO_FILES, ExternalData

MOST_BYTES = (1 << 31) - 1  # of a file: protobuf's own limit
OLDEST_OPSET = 1


def load_model(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, ExternalData]:
    """The parsed model, and where its external data may be."""
    external = NO_FILES
    if isinstance(model, onnx.ModelProto):
        proto, where = model, "the ModelProto"
    else:
        if isinstance(model, bytes):
            data, where = model, f"the model of {len(model)} bytes"
        else:
            path = Path(model)
            where, external = f"model file '{path}'", ExternalData(path)
            data = _read(path, where)
        try:
            proto = onnx.ModelProto.FromString(data)
        except DecodeError as error:
            raise ModelError(f"{where}: not an ONNX model, or truncated ({len(data)} bytes): {error}") from error
    if not proto.HasField("graph") or not proto.graph.output:
        raise ModelError(f"{where}: holds no graph with outputs; it is not an ONNX model, or truncated")
    return proto, external


def _read(path: Path, where: str) -> bytes:
    """The bytes of the model file. Raises ModelError."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise ModelError(
                    f"{where}: {size} bytes, allowed: up to {MOST_BYTES}, the limit of protobuf; save the weights as "
                    "external data"
                )
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"{where}: cannot be read: {reason}") from error


def versions_of(proto: onnx.ModelProto) -> dict[str, int]:
    """The versions of the domains that a model imports."""
    return {o.domain: o.version for o in proto.opset_import}


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of the default domain; of a model that imports only others the newest, as onnxruntime takes it."""
    newest = onnx.defs.onnx_opset_version()
    if not proto.opset_import:
        raise ModelError("model: opset imports: found none; allowed: one at least, that of the default domain")
    versions = {o.domain: o.version for o in proto.opset_import}
    version = next((versions[d] for d in DEFAULT if d in versions), newest)
    if not OLDEST_OPSET <= version <= newest:
        allowed = f"{OLDEST_OPSET} to {newest}"
        raise UnsupportedOperator(f"model: opset of the default domain: found {version}; allowed: {allowed}")
    return version
