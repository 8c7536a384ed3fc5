"""Machines, operations, strategies and costs of parallel programs."""
