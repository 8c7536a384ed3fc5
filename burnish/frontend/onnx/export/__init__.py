"""ONNX export: a Graph as an ONNX model. One file per operator family, each a table operator -> exporter."""

from burnish.frontend.onnx.export.model import OPSET, to_onnx

__all__ = ["OPSET", "to_onnx"]
