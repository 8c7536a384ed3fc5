"""Train a graph network within 2 GB: features and edges come from a file in blocks, the rest moves where it must.

`python examples/gnn_budget.py [--size reddit/10|reddit] [--memory-budget 2GB] [--epochs N]`. The graph is made by
another process, whose memory does not count.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import burnish as bn
from burnish.base.sizes import parse_budget
from burnish.fitting.report import TrainingProgress
from burnish.gnn.data.regions import peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="pubmed")
    parser.add_argument("--memory-budget", default="2GB")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    def show(now: TrainingProgress) -> None:
        print(f"epoch {now.epoch + 1}: loss {now.loss:.4f}, peak {peak_bytes() / 1e6:.0f} MB", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.bngraph"
        make = [sys.executable, "-m", "burnish.cli", "gnn", "convert", f"dataset:{arguments.size}", "-o", str(path)]
        subprocess.run(make, check=True)
        file = bn.gnn.GraphFile.open(path)
        network = bn.gnn.network("gcn", file.sections["features"].shape[1], file.classes, hidden=128)
        train = bn.Train(optimizer=bn.Adam(0.01), memory_budget=arguments.memory_budget)
        trained = bn.fit(
            network, path, train, epochs=arguments.epochs, evaluate_every=arguments.epochs, progress=show
        )  # fmt: skip
        print(*trained.notes)
        budget = parse_budget("--memory-budget", arguments.memory_budget)
        assert peak_bytes() <= budget, f"found a peak of {peak_bytes()} bytes; allowed: {budget}"
        assert trained.report.losses[-1] < trained.report.losses[0]


if __name__ == "__main__":
    main()
