"""Quantization: a float model and data → layers in integers where these are faster and near enough, as standard ONNX."""
