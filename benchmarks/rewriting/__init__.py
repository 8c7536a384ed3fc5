"""Sections of ``python -m benchmarks.rewrite``."""
