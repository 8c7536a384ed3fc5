"""Graphs of vertices: formats, storage, partitions, halos."""
