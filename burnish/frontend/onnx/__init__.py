"""The ONNX frontend: a file, bytes or a ModelProto into a Graph with static shapes, and a Graph into a ModelProto."""

from burnish.frontend.onnx.export import to_onnx
from burnish.frontend.onnx.model import Imported, from_onnx, import_onnx

__all__ = ["Imported", "from_onnx", "import_onnx", "to_onnx"]
