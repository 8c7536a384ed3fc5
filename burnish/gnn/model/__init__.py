"""Layers of graph networks, their programs, and segments of them."""
