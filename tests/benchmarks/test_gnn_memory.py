"""The promises of budgets that the benchmark of graph networks checks, on rows that keep and break them."""

from __future__ import annotations

from typing import Any

from benchmarks.gnn_memory import NO_BUDGET, above, broken, over

Row = dict[str, Any]


def row(budget: str, peak: float, **more: Any) -> Row:
    made = {
        "data": "reddit", "what": "602 -> gcn 41", "budget": budget, "planner": "best", "peak MB": peak,
        "losses": [3.7, 3.5], "best MB": 100.0, "streaming MB": 300.0, "lru MB": 200.0,
    }  # fmt: skip
    return {**made, **more}


GENERATION = {"data": "reddit", "what": "generation", "peak MB": 400.0}
REFUSED = {"data": "reddit", "what": "602 -> gcn 41", "budget": "90MB", "refused": "found 90 MB; allowed: 120 MB"}


def test_sizes_within_budgets() -> None:
    without = row(NO_BUDGET, 2500.0)
    assert over([GENERATION, row("700MB", 650.0), without]) == []
    assert over([GENERATION, row("700MB", 701.0)]) == ["reddit, 602 -> gcn 41: peak 701 MB of 700MB"]
    assert over([{**GENERATION, "peak MB": 800.0}, row("700MB", 650.0)]) == ["reddit: generation: peak 800 MB of 700MB"]
    (text,) = over([GENERATION, row("700MB", 650.0, losses=[3.7, 3.4]), without])
    assert "losses [3.7, 3.4]; allowed: [3.7, 3.5]" in text
    assert over([GENERATION, REFUSED]) == ["reddit, 602 -> gcn 41: found 90 MB; allowed: 120 MB"]


def test_ten_budgets() -> None:
    first = row("700MB", 300.0, **{"best MB": 10.0})
    kept = [first, row("200MB", 190.0), row("300MB", 290.0, **{"best MB": 50.0}), row("200MB", 195.0, planner="lru")]
    assert broken([*kept, REFUSED]) == []
    assert broken([REFUSED]) == ["found 90 MB; allowed: 120 MB"]
    assert broken([*kept[:1], row("200MB", 190.0), row("300MB", 290.0, **{"best MB": 120.0}), REFUSED]) == [
        "300MB moves 120 MB, 200MB moved 100"
    ]
    assert broken(kept)[-1] == "200MB was not refused"
    (slow,) = broken([first, row("200MB", 190.0, **{"lru MB": 130.0}), REFUSED])
    assert slow == "lru moves 130 MB, the best plan 100"
    (text,) = broken([*kept, row("200MB", 195.0, losses=[3.7, 3.6], planner="streaming"), REFUSED])
    assert "losses that differ by 2.9e-02" in text
    assert above("x", row("1GB", 999.0)) == []
