"""Jobs of the measuring worker: loads kernels, checks what they compute, and times them; it may die of one."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from burnish.codegen.objects import target_machine
from burnish.errors import BurnishError
from burnish.machines.target import Target, host
from burnish.pipeline.kernel import CompiledKernel
from burnish.runtime.devices import bench_for, is_timed
from burnish.runtime.entry import driver_image
from burnish.runtime.image import Image
from burnish.tune.evaluate import timer
from burnish.tune.evaluate.building import unpack
from burnish.tune.evaluate.expected import Faulty, WrongAnswer
from burnish.tune.evaluate.harness import KernelHarness
from burnish.tune.evaluate.interleaved import BatchedKernel, Bench, early_reject, interleaved, single
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.on_device import DeviceHarness
from burnish.tune.evaluate.reference import Examples
from burnish.tune.evaluate.reference import examples as make_examples
from burnish.tune.evaluate.remote import TaskArrays
from burnish.tune.evaluate.stopping import Fixed, Rule


def prepare() -> None:
    """Fork-server setup, once for all workers, those that build as well."""
    machine = host()
    target_machine(machine)
    driver_image(machine.triple)
    timer.image(machine)


def run(
    bench: Bench,
    kernel: CompiledKernel,
    image: Image | None,
    rule: Rule,
    incumbent: BatchedKernel | None,
    to_beat: float,
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
    except Faulty as fault:
        outcome, error, times = "crashed", str(fault), ()
    except (BurnishError, OSError, MemoryError) as problem:
        outcome, error, times = "build failed", f"loading: {type(problem).__name__}: {problem}", ()
    return Measurement(tuple(times), outcome, error, 0.0, time.perf_counter() - started, stop, beside)


def measure(bench: Bench, kernel: CompiledKernel, image: Image | None, batch_seconds: float) -> BatchedKernel:
    """Loads and checks a kernel. Raises what ``load`` and ``check`` raise."""
    loaded = bench.load(kernel, image)
    return BatchedKernel(bench, loaded, bench.check(loaded), batch_seconds)


def compare(
    first: tuple[Bench, CompiledKernel, Image | None],
    second: tuple[Bench, CompiledKernel, Image | None],
    rounds: int,
    batch_seconds: float,
) -> tuple[list[float], list[float]] | str:
    """Both kernels' seconds a run by round, in turns; or why there are none."""
    try:
        one, other = (measure(*each, batch_seconds) for each in (first, second))
    except (WrongAnswer, Faulty, BurnishError, OSError, MemoryError) as problem:
        return f"{type(problem).__name__}: {problem}"
    return interleaved(one, other, Fixed(rounds, batch_seconds), 1.0)[:2]


class _Corner:
    """The incumbent of now, which stays loaded from one candidate to the next."""

    def __init__(self, benches: Mapping[str, Bench]) -> None:
        self._benches = benches
        self._key: tuple[str, CompiledKernel] | None = None
        self._incumbent: BatchedKernel | None = None

    def incumbent(
        self, given: tuple[str, CompiledKernel, Image | None] | None, batch_seconds: float
    ) -> BatchedKernel | None:
        """The kernel ready for its turns; None without one, or if it cannot be had any more."""
        if given is None:
            return None
        packet, kernel, image = given
        if self._key != (packet, kernel):
            self.leave()
            with suppress(WrongAnswer, Faulty, BurnishError, OSError, MemoryError):
                self._incumbent = measure(self._benches[packet], kernel, image, batch_seconds)
            self._key = packet, kernel
        return self._incumbent

    def leave(self, packet: str | None = None) -> None:
        """Gives the incumbent up, if it is one of this task (None: of whichever)."""
        if self._key is not None and packet in (None, self._key[0]):
            self._key = self._incumbent = None


_benches: dict[str, Bench] = {}  # of this process, by the packets of their tasks
_corner = _Corner(_benches)


def open_task(packet: str, target: Target, threads: int, cold: bool, examples: Examples | None) -> Examples | None:
    """Gets ready to run kernels of a task, on this CPU or on the device that runs the target's code; the examples that
    it makes, if none are given. Raises what its reference raises, and TargetError without the device.
    """
    gc.disable()
    task = unpack(packet)
    known = make_examples(task) if examples is None else examples
    if is_timed(target.machine):
        _benches[packet] = DeviceHarness(bench_for(target), TaskArrays(task, known), cold)
    else:
        _benches[packet] = KernelHarness(task, target, threads, cold, known)
    return known if examples is None else None


def examples_of(packet: str) -> Examples:
    """Inputs of a task and the outputs that belong to them, for kernels that run elsewhere. Raises as ``open_task``."""
    gc.disable()
    return make_examples(unpack(packet))


def close_task(packet: str) -> None:
    """Gives up all that belongs to a task."""
    _corner.leave(packet)
    del _benches[packet]
    gc.collect()


def run_loaded(
    packet: str,
    kernel: CompiledKernel,
    image: Image | None,
    rule: Rule,
    incumbent: tuple[str, CompiledKernel, Image | None] | None,
    to_beat: float,
) -> Measurement:
    """See :func:`run`; of kernels of tasks that are open."""
    other = _corner.incumbent(incumbent, rule.batch_seconds)
    return run(_benches[packet], kernel, image, rule, other, to_beat)


def compare_loaded(
    first: tuple[str, CompiledKernel, Image | None],
    second: tuple[str, CompiledKernel, Image | None],
    rounds: int,
    batch_seconds: float,
) -> tuple[list[float], list[float]] | str:
    """See :func:`compare`; of kernels of tasks that are open."""
    one, other = ((_benches[packet], kernel, image) for packet, kernel, image in (first, second))
    return compare(one, other, rounds, batch_seconds)
