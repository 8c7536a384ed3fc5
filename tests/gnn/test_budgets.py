"""Memory budgets of graph networks: whatever fits without a budget fits within it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from burnish.errors import ParameterError
from burnish.fitting.fit import fit
from burnish.gnn.data.store import save
from burnish.gnn.model.models import network
from burnish.gnn.run import whole
from burnish.gnn.run.outofcore import block_rows
from burnish.train.step import Train
from tests.gnn.references import small

TRIAL = """
import sys
import numpy as np
import burnish as bn
from burnish.gnn.data.graph import Graph
from burnish.gnn.data.regions import peak_bytes
kind, vertices, edges, features, hidden, cache = sys.argv[1], *map(int, sys.argv[2:6]), sys.argv[6]
rng = np.random.default_rng(vertices)
graph = Graph.of(
    rng.integers(0, vertices, (2, edges)),
    features=rng.standard_normal((vertices, features), np.float32), labels=np.arange(vertices) % 5,
    train=np.arange(vertices) % 2 == 0,
)
network = bn.gnn.network(kind, features, 5, hidden=hidden, heads=2)
budget = int(sys.argv[7]) if len(sys.argv) > 7 else None
train = bn.Train(optimizer=bn.Adam(0.01), memory_budget=budget)
found = bn.fit(network, graph, train, epochs=2, threads=1, cache_dir=cache)
print(peak_bytes(), *found.report.losses)
"""


def within(budget: int) -> Train:
    return Train(memory_budget=budget)


def trial(*given: object) -> list[float]:
    """Peak, bytes, and losses of a process that trains."""
    done = subprocess.run([sys.executable, "-c", TRIAL, *map(str, given)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


SIZES = [
    (kind, int(10 ** rng.uniform(2.5, 4.5)), int(10 ** rng.uniform(3, 5)), *map(int, rng.integers(1, 20, 2) * 4))
    for kind, rng in zip(("gcn", "sage", "gin", "gat"), map(np.random.default_rng, range(4)), strict=True)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_fits_without_a_budget_fits_within_it(sizes: tuple[object, ...], tmp_path: Path) -> None:
    trial(*sizes, tmp_path)  # kernels are made, which takes memory too
    peak, *losses = trial(*sizes, tmp_path)
    taken, *found = trial(*sizes, tmp_path, int(peak))
    assert found == losses
    assert taken < 1.03 * peak


def test_the_whole_is_taken_where_a_budget_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is resident, here given, and what modules work in. The least is named that either way needs."""
    graph, net = small(80), network("gcn", 12, 4, hidden=8, dropout=0.0)
    save(tmp_path / "g.bngraph", graph)
    monkeypatch.setattr(whole, "resident_bytes", lambda: 1_000_000)
    with pytest.raises(ParameterError, match=r"allowed: \d+ bytes .* what the whole graph takes at once") as refused:
        fit(net, graph, within(100_000), epochs=1, threads=1, cache_dir=tmp_path)
    (least,) = map(int, re.findall(r"allowed: (\d+)", str(refused.value)))
    assert 1_000_000 + 80 * 8 * 4 < least < 1_100_000
    for given in (graph, tmp_path / "g.bngraph"):
        assert not fit(net, given, within(least), epochs=1, threads=1, cache_dir=tmp_path).notes
        with pytest.raises(ParameterError, match=f"allowed: {least} bytes"):
            fit(net, given, within(least - 1), epochs=1, threads=1, cache_dir=tmp_path)


def test_blocks_are_several() -> None:
    """Of more than 8 K vertices: in one block everything would be there at once."""
    assert [block_rows(v, 16) for v in (100, 1024, 8192, 8193, 50_000)] == [1024, 1024, 1024, 2048, 7168]
    assert block_rows(233_000, 602) == 6144 + 1024 and block_rows(50_000, 16, 100) == 100
