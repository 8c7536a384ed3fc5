"""Conformance: the ONNX standard's own backend tests, each compiled and compared with what the standard expects."""
