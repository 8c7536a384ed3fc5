"""Single layers beside onnxruntime and OpenVINO: C1…C12, D1…D9 (TVM paper, Table 4.2) and BERT's products M1…M3.

Forms: `hot` repeats one layer; `cold` takes turns among models with weights of their own; `chain` runs eight layers of
different weights in one call and divides by eight, which hides the cost of a call and of conversions at its ends.
A row named `direct` forbids Winograd (`exact=True`) and states the share of the FMA peak measured before it.

`python -m benchmarks.kernels [LAYER ...] [--forms hot,cold,chain] [--peers-only] [--json]`
"""

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace

import numpy as np
from rich.progress import track

from benchmarks import harness, layers, peak
from burnish import peers
from burnish.accuracy import scaled_error

FORMS = ("hot", "cold", "chain")
CHAIN = 8
DIRECT = ("C2", "C6", "C9", "C12")


def prepare(name: str, models: Sequence[bytes], threads: int, exact: bool) -> list[peers.Run]:
    """Every model loaded into one contender."""
    if name == "burnish":
        return [harness.burnish_run(model, threads, exact) for model in models]
    if name == "onnxruntime":
        return [peers.onnxruntime(model, threads, own_threads=False) for model in models]
    return [peers.prepare(name, model, threads) for model in models]


def in_turn(runs: Sequence[peers.Run], inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """A call that runs the next model at each call."""
    cycle = itertools.cycle(runs)
    return lambda: next(cycle)(inputs)


def measure(
    layer: layers.Layer, form: str, threads: int, seconds: float, contenders: Sequence[str], exact: bool = False
) -> harness.Row:
    """One layer in one form."""
    length = CHAIN if form == "chain" else 1
    copies = layers.cold_copies(layer) if form == "cold" else 1
    serialized = [layers.model(layer, seed, length) for seed in range(copies)]
    inputs = {"x": layers.input_array(layer)}
    runs = {name: prepare(name, serialized, threads, exact) for name in contenders}
    for run in itertools.chain(*runs.values()):
        run(inputs)  # the first call of a model allocates and touches its memory
    error = None
    if "burnish" in runs:
        error = scaled_error(runs["burnish"][0](inputs), runs[harness.ORACLE][0](inputs))
    calls = {name: in_turn(runs[name], inputs) for name in contenders}
    row = harness.compare(layer.name, form, calls, seconds, error, calls=length)
    note = f"{layer.flops / min(row.microseconds.values()) / 1e3:.0f} GFLOP/s"
    if form == "cold":
        note += f", {4 * np.prod(layer.weight_shape) * copies / 2**20:.0f} MB of weights"
    return replace(row, note=note)


def measure_direct(layer: layers.Layer, threads: int, seconds: float) -> harness.Row:
    """The layer without Winograd, in a chain, against the FMA peak measured just before and just after."""
    peaks = [peak.measure_fma(threads)]
    row = measure(layer, "chain", threads, seconds, ("burnish", *harness.PEERS), exact=True)
    peaks.append(peak.measure_fma(threads))
    share = layer.flops / row.microseconds["burnish"] / 1e3 / max(rate.median for rate in peaks)
    return replace(row, form="direct", note=f"{share:.1%} of the FMA peak")


def rows(
    layer: layers.Layer, forms: Sequence[str], threads: int, seconds: float, burnish: bool
) -> Iterator[harness.Row]:
    """All rows of one layer."""
    contenders = ("burnish", *harness.PEERS) if burnish else harness.PEERS
    for form in forms:
        if form != "chain" or layers.chainable(layer):
            yield measure(layer, form, threads, seconds, contenders)
    if burnish and layer.name in DIRECT:
        yield measure_direct(layer, threads, seconds)


def main() -> int:
    parser = harness.options(__doc__, seconds=2)
    parser.add_argument("--forms", default=",".join(FORMS), help="default: %(default)s")
    arguments = parser.parse_args()
    names = harness.chosen(arguments, parser, list(layers.LAYERS))
    forms = arguments.forms.split(",")
    if not set(forms) <= set(FORMS):
        parser.error(f"--forms: allowed are {', '.join(FORMS)}")
    peers.share_onnxruntime_threads(arguments.threads)
    rate = peak.measure_fma(arguments.threads)
    measured = [
        row
        for name in track(names, "layers", disable=arguments.json, transient=True)
        for row in rows(layers.LAYERS[name], forms, arguments.threads, arguments.seconds, not arguments.peers_only)
    ]
    title = f"Single layers, {arguments.threads} threads; FMA peak {rate.median:.0f} GFLOP/s"
    return harness.show(title, measured, arguments.json, extra={"fma_gflops": asdict(rate)})


if __name__ == "__main__":
    sys.exit(main())
