"""Every kind of tree within a budget of memory (§2.5.5): data of four budgets, against the same training in memory.

Each training has a process of its own. Told are the memory that it took beyond the interpreter and its libraries, the
CPU seconds of both, and the held-out AUC, which must be equal: the trees are the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks.boosting.external import child
from benchmarks.boosting.report import Row, row

FEATURES, TIMES = 112, 4  # columns, and how many budgets the data are
METHODS: Mapping[str, Mapping[str, Any]] = {
    "hist": {"tree_method": "hist"}, "exact": {"tree_method": "exact"},
    "approx, global": {"tree_method": "approx", "proposal": "global", "max_bin": 64},
    "approx, local": {"tree_method": "approx", "proposal": "local", "max_bin": 64},
}  # fmt: skip


def measure(quick: bool = False) -> list[Row]:
    """A row for each method."""
    rows, rounds = (20_000, 2) if quick else (300_000, 2)
    budget = 4 * FEATURES * rows // TIMES
    found = []
    for name, options in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            given: dict[str, Any] = {"rows": rows, "rounds": rounds, "folder": folder, "features": FEATURES}
            outside, inside = (child("train", **given, options=dict(options), budget=b) for b in (budget, 0))
        taken, other = ((each["peak"] - each["before"]) / 2**20 for each in (outside, inside))
        note = (
            f"{rows // 1000}K x {FEATURES}, {TIMES} budgets of {budget / 2**20:.0f} MB; in memory {other:.0f} MB; "
            f"CPU s {outside['cpu']:.1f}, {inside['cpu']:.1f} in memory; AUC {outside['auc']:.6f}, {inside['auc']:.6f}"
        )
        one = row(f"within a budget, {name}, MB beyond the interpreter", taken, {}, f"about {budget / 2**20:.0f}", note)
        found.append({**one, "auc": outside["auc"], "auc in memory": inside["auc"], "peak in memory": other})
    return found
