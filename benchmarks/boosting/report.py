"""Rows of the benchmarks' tables."""

from typing import Any

Row = dict[str, Any]


def row(name: str, ours: float, peers: dict[str, float] | None = None, asked: str = "", note: str = "") -> Row:
    """A row, whose ratio is ours / the least of the peers'. The name ends in the unit."""
    peers = peers or {}
    ratio = ours / min(peers.values()) if peers else None
    return {"name": name, "ours": ours, "peers": peers, "ratio": ratio, "asked": asked, "note": note}
