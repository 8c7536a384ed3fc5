"""AdaTune's figure 7: networks untuned, and tuned by AutoTVM and by AdaTune in equal trials, compared.

Fewer trials a network (`--trials`) than in the paper, on a CPU. Each session begins without records. Reported are the
time of the tuned network over that of the untuned one, in turns (`untuned kept` where it is not faster), of AdaTune's
over AutoTVM's, in turns too, and the seconds of both sessions (figure 8's quantity, which the paper has of a GPU).

`python -m benchmarks.adatune_networks [NETWORK ...] [--trials N] [--threads N] [--json]`
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import models
from benchmarks.harness import check_names
from benchmarks.provenance import stored
from burnish.driver.compilation import import_graph
from burnish.driver.tuned import Tuned, tune_model
from burnish.machines.target import target
from burnish.measure.accuracy import scaled_error
from burnish.measure.comparison import time_in_turns
from burnish.runtime.module import Module
from burnish.tune.session import Tune

NETWORKS = ("resnet18", "light_vgg19", "light_squeezenet")  # the paper has VGG-16
STRATEGIES = ("autotvm", "adatune")
ALLOWED = 1e-3  # error of one tuned network relative to the other's scale


@dataclass(frozen=True)
class Row:
    """A network: of both strategies the time over the untuned one's with its interval, trials and seconds.

    ``ratio``: AdaTune's time over AutoTVM's, with its interval.
    """

    network: str
    over_untuned: dict[str, tuple[float, float, float]]
    kept: dict[str, bool]
    trials: dict[str, int]
    seconds: dict[str, float]
    ratio: tuple[float, float, float]
    error: float


def measure(name: str, trials: int, threads: int) -> Row:
    """Tunes a network both ways and compares."""
    graph, machine = import_graph(str(models.build(name))), target("cpu,-amx")
    found: dict[str, Tuned] = {}
    for strategy in STRATEGIES:
        with tempfile.TemporaryDirectory() as folder:
            options = Tune(seconds=None, trials=trials, min_gain=0.0, strategy=strategy)
            found[strategy] = tune_model(
                graph, options, Path(folder) / "records.jsonl", target=machine, threads=threads
            )
    first, second = (found[strategy].module for strategy in STRATEGIES)
    assert isinstance(first, Module) and isinstance(second, Module), "networks of fixed sizes"
    feeds = models.inputs(name, seed=1)
    answers = [[np.asarray(y) for y in _several(module(**feeds))] for module in (first, second)]
    compared = time_in_turns(first, second, feeds, most_seconds=8.0)
    return Row(
        name, {s: (t.gain.ratio, t.gain.low, t.gain.high) for s, t in found.items()},
        {s: bool(t.gain.second_wins) for s, t in found.items()}, {s: t.outcome.trials for s, t in found.items()},
        {s: t.outcome.seconds for s, t in found.items()}, (compared.ratio, compared.low, compared.high),
        scaled_error(answers[1], answers[0]),
    )  # fmt: skip


def _several(answer: object) -> Sequence[object]:
    return answer if isinstance(answer, tuple) else (answer,)


def show(rows: Sequence[Row]) -> None:
    columns = ("network", *(f"{s} / untuned" for s in STRATEGIES), "adatune / autotvm", "seconds", "error")
    table = Table(*columns, title="Figure 7: networks")
    for each in rows:
        cells = ["{:.3f} ({:.3f} to {:.3f})".format(*v) for v in (*each.over_untuned.values(), each.ratio)]
        seconds = " ".join(f"{s:.0f}" for s in each.seconds.values())
        table.add_row(each.network, *cells, seconds, f"{each.error:.0e}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help="default: %(default)s")
    parser.add_argument("--trials", type=int, default=192, help="of each network and strategy (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    check_names(parser, given.networks, models.names())
    rows = [measure(name, given.trials, given.threads) for name in given.networks]
    if given.json:
        print(stored({"trials": given.trials, "threads": given.threads, "rows": [asdict(each) for each in rows]}))
    else:
        show(rows)
    return int(any(each.error > ALLOWED for each in rows))


if __name__ == "__main__":
    sys.exit(main())
