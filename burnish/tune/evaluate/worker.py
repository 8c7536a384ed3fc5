"""The measuring worker: loads kernels, checks what they compute, and times them; it may die of one."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from burnish.errors import BurnishError
from burnish.pipeline.kernel import Kernel
from burnish.runtime.image import Image
from burnish.tune.evaluate.building import unpack
from burnish.tune.evaluate.harness import KernelHarness, WrongAnswer
from burnish.tune.evaluate.interleaved import BatchedKernel, early_reject, interleaved, single
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.stopping import Fixed, Rule


def run(
    bench: KernelHarness, kernel: Kernel, image: Image, rule: Rule, incumbent: BatchedKernel | None, to_beat: float
) -> Measurement:
    """Loads, checks and times one kernel, in turns with an incumbent if there is one."""
    started = time.perf_counter()
    times: Sequence[float] = ()
    outcome, error, stop, beside = "ok", "", "", math.nan
    try:
        loaded = bench.load(kernel, image)
        first = bench.check(loaded)
        if incumbent is None:
            times, stop = single(BatchedKernel(bench, loaded, first, rule.batch_seconds), rule)
        elif least := early_reject(bench, loaded, rule, first, to_beat * incumbent.usual):
            times, stop, beside = (least,), "lost", incumbent.usual
        else:
            own = BatchedKernel(bench, loaded, first, rule.batch_seconds)
            times, others, stop = interleaved(own, incumbent, rule, to_beat)
            beside = min(others)
        if not bench.untouched(loaded):
            raise WrongAnswer("bytes outside of its memory were written")
    except WrongAnswer as wrong:
        outcome, error, times = "wrong", str(wrong), ()
    except (BurnishError, OSError, MemoryError) as problem:
        outcome, error, times = "build failed", f"loading: {type(problem).__name__}: {problem}", ()
    return Measurement(tuple(times), outcome, error, 0.0, time.perf_counter() - started, stop, beside)


def measure(bench: KernelHarness, kernel: Kernel, image: Image, batch_seconds: float) -> BatchedKernel:
    """Loads and checks a kernel. Raises what ``load`` and ``check`` raise."""
    loaded = bench.load(kernel, image)
    return BatchedKernel(bench, loaded, bench.check(loaded), batch_seconds)


def compare(
    first: tuple[KernelHarness, Kernel, Image],
    second: tuple[KernelHarness, Kernel, Image],
    rounds: int,
    batch_seconds: float,
) -> tuple[list[float], list[float]] | str:
    """Both kernels' seconds a run by round, in turns; or why there are none."""
    try:
        one, other = (measure(*each, batch_seconds) for each in (first, second))
    except (WrongAnswer, BurnishError, OSError, MemoryError) as problem:
        return f"{type(problem).__name__}: {problem}"
    return interleaved(one, other, Fixed(rounds, batch_seconds), 1.0)[:2]


class _Corner:
    """The incumbent of now, which stays loaded from one candidate to the next."""

    def __init__(self, benches: Mapping[bytes, KernelHarness]) -> None:
        self._benches = benches
        self._key: tuple[bytes, Kernel] | None = None
        self._incumbent: BatchedKernel | None = None

    def incumbent(self, given: tuple[bytes, Kernel, Image] | None, batch_seconds: float) -> BatchedKernel | None:
        """The kernel ready for its turns; None without one, or if it cannot be had any more."""
        if given is None:
            return None
        packet, kernel, image = given
        if self._key != (packet, kernel):
            self.leave()
            with suppress(WrongAnswer, BurnishError, OSError, MemoryError):
                self._incumbent = measure(self._benches[packet], kernel, image, batch_seconds)
            self._key = packet, kernel
        return self._incumbent

    def leave(self, packet: bytes | None = None) -> None:
        """Gives the incumbent up, if it is one of this task (None: of whichever)."""
        if self._key is not None and packet in (None, self._key[0]):
            self._key = self._incumbent = None


def work(line: Connection) -> None:
    """The life of a measuring worker: benches by the packets of their tasks, and what is done on them."""
    benches: dict[bytes, KernelHarness] = {}
    corner = _Corner(benches)
    gc.disable()
    while True:
        order, *given = line.recv()
        if order == "open":
            packet, *rest = given
            try:
                bench = benches[packet] = KernelHarness(unpack(packet), *rest)
                line.send((bench.feeds, bench.expected))
            except Exception as problem:
                line.send(problem)
        elif order == "close":
            corner.leave(given[0])
            del benches[given[0]]
            gc.collect()
        elif order == "run":
            packet, kernel, code, rule, incumbent, to_beat = given
            other = corner.incumbent(incumbent, rule.batch_seconds)
            line.send(run(benches[packet], kernel, code, rule, other, to_beat))
        else:
            (one, *first), (other, *second), rounds, batch_seconds = given
            line.send(compare((benches[one], *first), (benches[other], *second), rounds, batch_seconds))
