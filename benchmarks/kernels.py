"""Single layers against onnxruntime and OpenVINO: C1…C12, D1…D9 (TVM paper, Table 4.2) and BERT's products M1…M3.

Forms: `hot` repeats one layer; `cold` takes turns among models with weights of their own; `chain` runs eight layers of
different weights in one call and divides by eight, which hides the cost of a call and of conversions at its ends.
A row named `direct` forbids Winograd (`exact=True`). It takes turns with as many multiply-adds on registers, and with
as many of a register tile whose operands are in the first cache: a core that is kept busy with wide vectors loses clock
rate, so that a peak taken from rest is none that any kernel could hold. Last, its share of the peak at the clock rate
that the layer itself leaves.

`python -m benchmarks.kernels [LAYER ...] [--forms hot,cold,chain] [--peers-only] [--json]`
"""

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from rich.progress import track

from benchmarks import harness, layers, peak
from burnish.measure import peers
from burnish.measure.accuracy import scaled_error

FORMS = ("hot", "cold", "chain")
CHAIN = 8
DIRECT = ("C2", "C6", "C9", "C12")
BURST_FLOPS = 1e8  # half a millisecond: a clock rate changes more slowly
SETTLING_CALLS, BURSTS = 30, 150


@dataclass(frozen=True)
class Setting:
    """Settings common to all rows of a run."""

    threads: int
    seconds: float
    target: str
    contenders: tuple[str, ...]


def prepare(name: str, models: Sequence[bytes], setting: Setting, exact: bool) -> list[peers.Run]:
    """Every model loaded into one contender."""
    if name == "burnish":
        return [harness.burnish_run(model, setting.threads, setting.target, exact) for model in models]
    if name == "onnxruntime":
        return [peers.onnxruntime(model, setting.threads, own_threads=False) for model in models]
    return [peers.prepare(name, model, setting.threads) for model in models]


def in_turn(runs: Sequence[peers.Run], inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """A call that runs the next model at each call."""
    cycle = itertools.cycle(runs)
    return lambda: next(cycle)(inputs)


def measure(
    layer: layers.Layer,
    form: str,
    setting: Setting,
    exact: bool = False,
    further: Mapping[str, Callable[[], object]] | None = None,
) -> harness.Row:
    """One layer in one form, in turn with `further` calls."""
    length = CHAIN if form == "chain" else 1
    copies = layers.cold_copies(layer) if form == "cold" else 1
    serialized = [layers.model(layer, seed, length) for seed in range(copies)]
    inputs = {"x": layers.input_array(layer)}
    runs = {name: prepare(name, serialized, setting, exact) for name in setting.contenders}
    for run in itertools.chain(*runs.values()):
        run(inputs)  # the first call of a model allocates and touches its memory
    error = None
    if "burnish" in runs:
        error = scaled_error(runs["burnish"][0](inputs), runs[harness.ORACLE][0](inputs))
    calls = {**{name: in_turn(runs[name], inputs) for name in setting.contenders}, **(further or {})}
    row = harness.compare(layer.name, form, calls, setting.seconds, error, calls=length)
    note = f"{layer.flops / min(row.microseconds.values()) / 1e3:.0f} GFLOP/s"
    if form == "cold":
        note += f", {4 * np.prod(layer.weight_shape) * copies / 2**20:.0f} MB of weights"
    return replace(row, note=note)


def measure_direct(layer: layers.Layer, setting: Setting) -> harness.Row:
    """The layer without Winograd, in a chain, against as many bare multiply-adds."""
    flops = CHAIN * layer.flops
    with peak.Team(setting.threads) as team:
        loops = {"registers": team.fma(flops), "first cache": team.tile(flops)}
        row = measure(layer, "chain", setting, exact=True, further=loops)
    registers, cache = (row.microseconds[name] / row.microseconds["burnish"] for name in loops)
    note = f"{registers:.1%} of the FMA peak, {cache:.1%} of a tile's from L1, {same_clock(layer, setting):.1%} at"
    return replace(row, form="direct", note=f"{note} the layer's clock rate")


def same_clock(layer: layers.Layer, setting: Setting) -> float:
    """Share of the FMA peak at the clock rate that the layer leaves: a short burst of one thread follows each call.

    A core that multiplies and loads draws more power than one that only multiplies, and may be clocked lower; it needs
    milliseconds to be faster again.
    """
    call = in_turn(prepare("burnish", [layers.model(layer, 0, CHAIN)], setting, True), {"x": layers.input_array(layer)})
    shares = []
    with peak.Team(1) as team:
        burst = team.fma(BURST_FLOPS)
        for _ in range(SETTLING_CALLS + BURSTS):
            start = time.perf_counter()
            call()
            middle = time.perf_counter()
            burst()
            seconds = middle - start, time.perf_counter() - middle
            shares.append(CHAIN * layer.flops / seconds[0] / (setting.threads * BURST_FLOPS / seconds[1]))
    return statistics.median(shares[SETTLING_CALLS:])


def rows(layer: layers.Layer, forms: Sequence[str], setting: Setting) -> Iterator[harness.Row]:
    """All rows of one layer."""
    for form in forms:
        if form != "chain" or layers.chainable(layer):
            yield measure(layer, form, setting)
    if "burnish" in setting.contenders and layer.name in DIRECT:
        yield measure_direct(layer, setting)


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
    contenders = harness.PEERS if arguments.peers_only else ("burnish", *harness.PEERS)
    setting = Setting(arguments.threads, arguments.seconds, arguments.target, contenders)
    measured = [
        row
        for name in track(names, "layers", disable=arguments.json, transient=True)
        for row in rows(layers.LAYERS[name], forms, setting)
    ]
    title = f"Single layers, {arguments.threads} threads; FMA peak {rate.median:.0f} GFLOP/s"
    return harness.show(title, measured, arguments.json, extra={"fma_gflops": asdict(rate)})


if __name__ == "__main__":
    sys.exit(main())
