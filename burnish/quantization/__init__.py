"""Quantization: a float model and data → its layers in integers where these are faster and near enough, as ONNX."""
