"""Frontends: each reads one model format into a Graph."""
