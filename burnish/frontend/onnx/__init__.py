"""The ONNX frontend: a file, bytes or a ModelProto into a Graph with static shapes."""

from burnish.frontend.onnx.model import from_onnx

__all__ = ["from_onnx"]
