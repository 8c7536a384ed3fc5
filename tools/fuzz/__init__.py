"""Fuzzer: random models, compiled and compared with oracles. `python -m tools.fuzz`."""
