"""Execution simulator of strategies, searches over it, bounds, memory of devices."""
