"""Measurements of Burnish against its peers; each module runs by itself, `python -m benchmarks.<module> --help`."""
