"""Measurements of Burnish beside its peers; each module runs by itself, `python -m benchmarks.<module> --help`."""
