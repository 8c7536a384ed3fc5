"""Whole models against onnxruntime and OpenVINO: alternating medians in one process, answers compared.

`python -m benchmarks.e2e [MODEL ...] [--torch] [--peers-only] [--json]`: the twelve models, or those named, also of
`models.REWRITE_MODELS`.
"""

import sys
from functools import partial

from rich.progress import track

from benchmarks import harness, models
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error


def measure(name: str, threads: int, seconds: float, target: str | None, with_torch: bool) -> harness.Row:
    """One model, random input of seed 1; the error is against onnxruntime, or the stored output if that is larger.

    Without Burnish if `target` is None.
    """
    path = models.build(name)
    inputs = models.inputs(name, seed=1)
    runs = {peer: peers.prepare(peer, path, threads) for peer in harness.PEERS}
    if with_torch and name not in models.LIGHT:
        runs["torch"] = peers.torch_eager(models.network(name)[0], threads)
    error = None
    if target is not None:
        runs = {"burnish": harness.burnish_run(path, threads, target), **runs}
        error = scaled_error(runs["burnish"](inputs), runs[harness.ORACLE](inputs))
        if name in models.LIGHT:
            stored_inputs, stored_output = models.stored_case(name)
            error = max(error, scaled_error(runs["burnish"](stored_inputs), [stored_output]))
    return harness.compare(
        name, "hot", {contender: partial(run, inputs) for contender, run in runs.items()}, seconds, error
    )


def main() -> int:
    parser = harness.options(__doc__, seconds=6)
    parser.add_argument("--torch", action="store_true", help="time torch in eager mode too")
    arguments = parser.parse_args()
    names = harness.chosen(arguments, parser, models.names(), list(models.REWRITE_MODELS))
    target = None if arguments.peers_only else arguments.target
    rows = [
        measure(name, arguments.threads, arguments.seconds, target, arguments.torch)
        for name in track(names, "models", disable=arguments.json, transient=True)
    ]
    return harness.show(f"Whole models, {arguments.threads} threads", rows, arguments.json, unit="ms")


if __name__ == "__main__":
    sys.exit(main())
