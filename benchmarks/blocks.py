"""Building blocks of networks against onnxruntime and OpenVINO: normalizations, views and joins around convolutions.

`python -m benchmarks.blocks [BLOCK ...] [--threads 2] [--target NAME] [--seconds S] [--json]`: blocks of
`architectures/blocks.py`, exported to ONNX by PyTorch with seeded random weights; answers are compared.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks import harness
from burnish.base.optional import require
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error

SEED = 0


def measure(name: str, threads: int, seconds: float, target: str | None) -> harness.Row:
    """One block; without Burnish if ``target`` is None."""
    torch = require("torch", extra="torch")
    from benchmarks.architectures.blocks import BLOCKS

    make, shapes = BLOCKS[name]
    torch.manual_seed(SEED)
    module, random = make().eval(), np.random.default_rng(SEED)
    inputs = {f"x{i}": random.standard_normal(shape, dtype=np.float32) for i, shape in enumerate(shapes)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.onnx"
        peers.export_onnx(module, inputs, path)
        runs = {peer: peers.prepare(peer, path, threads) for peer in harness.PEERS}
        error = None
        if target is not None:
            runs = {"burnish": harness.burnish_run(path, threads, target), **runs}
            error = scaled_error(runs["burnish"](inputs), runs[harness.ORACLE](inputs))
    return harness.compare(
        name, "hot", {contender: partial(run, inputs) for contender, run in runs.items()}, seconds, error
    )


def main() -> int:
    parser = harness.options(__doc__, seconds=2)
    arguments = parser.parse_args()
    require("torch", extra="torch")
    from benchmarks.architectures.blocks import BLOCKS

    names = harness.chosen(arguments, parser, list(BLOCKS))
    target = None if arguments.peers_only else arguments.target
    rows = [
        measure(name, arguments.threads, arguments.seconds, target)
        for name in track(names, "blocks", disable=arguments.json, transient=True)
    ]
    return harness.show(f"Blocks, {arguments.threads} threads", rows, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
