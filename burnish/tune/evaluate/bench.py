"""The measuring worker: loads kernels that may crash, hang or lie, checks what they compute, and times them."""

from __future__ import annotations

import ctypes
import gc
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from burnish.accuracy import scaled_error
from burnish.build import Kernel
from burnish.errors import BurnishError
from burnish.kernels.task import Task
from burnish.loops.layout import layout
from burnish.runtime.buffers import numpy_dtype, round_up
from burnish.runtime.driver import driver_image
from burnish.runtime.image import Image, LoadedImage
from burnish.runtime.pool import Pool, pool
from burnish.target import Target
from burnish.tune.evaluate.building import unpack
from burnish.tune.evaluate.measurement import Measurement
from burnish.tune.evaluate.memory import Fenced
from burnish.tune.evaluate.reference import Examples, packed, tolerance
from burnish.tune.evaluate.reference import examples as make_examples
from burnish.tune.evaluate.rules import LEAST_BATCH, Fixed, Rule
from burnish.tune.evaluate.stopwatch import Stopwatch

_LONG = 2e-3  # seconds: a run this long needs no other before it to warm caches up, and is a batch
_STRIDE = 4096  # bytes: a multiple of it is each thread's scratch, as in compiled models
_PACKED_BYTES = 1 << 29  # of constants kept in several layouts at once


class WrongAnswer(Exception):  # noqa: N818 - an outcome
    """What a kernel computed is not what its task defines."""


class _Runtime(ctypes.Structure):
    """``struct Runtime``, the second argument of every kernel (``%Runtime`` of runtime/driver.py)."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("profile", ctypes.c_void_p),
    )


class Loaded:
    """A kernel in executable memory with its arguments: all that the stopwatch needs to call it."""

    def __init__(
        self, kernel: Kernel, image: Image, arguments: Sequence[Fenced], constants: Sequence[Fenced], workers: Pool
    ) -> None:
        self._image = LoadedImage(image)
        self.address = self._image.address(kernel.symbol)
        stride = round_up(kernel.scratch_bytes, _STRIDE)
        self.scratch = Fenced(stride * workers.threads)
        self._runtime = _Runtime(
            workers.parallel, workers.address, self.scratch.address, stride, workers.threads, None
        )
        self._kept = arguments  # whose memory would go with them
        self._arguments = (ctypes.c_void_p * len(arguments))(*(each.address for each in arguments))
        self.pointers = ctypes.addressof(self._arguments)
        self.runtime = ctypes.addressof(self._runtime)
        self.constants = [(each.address, each.bytes.size) for each in constants]


@dataclass(frozen=True)
class _Output:
    """Memory of an output; that memory as an array, which of it counts (None: all), and what should be there."""

    memory: Fenced
    found: np.ndarray
    counts: np.ndarray | None
    right: np.ndarray
    difference: np.ndarray  # of both: making it anew would take longer than computing it
    scale: float  # the largest finite magnitude

    def error(self) -> float:
        """As ``scaled_error``, but fast where all values are finite."""
        with np.errstate(all="ignore"):
            np.subtract(self.found, self.right, out=self.difference)
            np.abs(self.difference, out=self.difference)
            if self.counts is not None:
                self.difference[~self.counts] = 0
            error = float(self.difference.max(initial=0.0)) / self.scale
        if math.isfinite(error):
            return error
        kept = slice(None) if self.counts is None else self.counts
        return scaled_error([self.found[kept]], [self.right[kept]])


class Bench:
    """One task's parameters in fenced memory, and what its kernels must make of them.

    ``cold``: constants come from memory in every timed run, as in a model that is larger than the caches; otherwise
    from wherever the previous run has left them.
    """

    def __init__(
        self, task: Task, target: Target, threads: int, cold: bool = False,
        examples: Examples | None = None,
    ) -> None:  # fmt: skip
        """``examples``: inputs by name and the reference's outputs for them, if they are known."""
        self.task = task
        self.cold = cold
        self.feeds, self.expected = make_examples(task) if examples is None else examples
        self._allowed = tolerance(task)
        self._pool = pool(driver_image(target.triple), threads)
        self._pool.start()
        self._watch = Stopwatch(target)
        self._inputs = {
            t.name: _holding(packed(self.feeds[t.name], task.layouts.get(t.name)))
            for t in task.inputs if t.name not in task.constants
        }  # fmt: skip
        self._constants: dict[tuple[str, str], Fenced] = {}
        self._outputs = [self._output(i) for i in range(len(task.outputs))]

    def _output(self, number: int) -> _Output:
        t, right = self.task.outputs[number], self.expected[number]
        arrangement = self.task.layouts.get(t.name)
        physical = arrangement.pack(right) if arrangement else np.ascontiguousarray(right)
        dtype = numpy_dtype(t.dtype)
        memory = Fenced(physical.size * dtype.itemsize)
        array = memory.bytes.view(dtype).reshape(physical.shape)
        counts = None
        if arrangement and physical.size != right.size:
            counts = arrangement.pack(np.ones(right.shape, bool)).astype(bool)
        scale = float(np.abs(physical[np.isfinite(physical)]).max(initial=0.0)) or 1.0
        wide = np.float32 if t.dtype in ("float32", "float16", "bfloat16") else np.float64
        right = physical.astype(wide)
        return _Output(memory, array, counts, right, np.empty_like(right), scale)

    def load(self, kernel: Kernel, image: Image) -> Loaded:
        """Raises OSError or MemoryError for a kernel that cannot be loaded, ScheduleError for a layout."""
        constants = [
            self._constant(t.name, kernel.packing.get(t.name, ""))
            for t in self.task.inputs if t.name in self.task.constants
        ]  # fmt: skip
        found = iter(constants)
        inputs = [self._inputs[t.name] if t.name in self._inputs else next(found) for t in self.task.inputs]
        return Loaded(kernel, image, [*inputs, *(output.memory for output in self._outputs)], constants, self._pool)

    def _constant(self, name: str, tag: str) -> Fenced:
        if (name, tag) not in self._constants:
            while sum(each.bytes.size for each in self._constants.values()) > _PACKED_BYTES:
                del self._constants[next(iter(self._constants))]
            array = self.feeds[name]
            self._constants[name, tag] = _holding(np.ascontiguousarray(layout(tag).pack(array) if tag else array))
        return self._constants[name, tag]

    def check(self, loaded: Loaded) -> float:
        """Runs the kernel once; the seconds. Raises WrongAnswer, naming the output, what was found, what is allowed."""
        for output in self._outputs:
            output.memory.fill()
        loaded.scratch.fill()  # what reads it before it writes it gets NaN; and a run does not pay for fresh pages
        took = self.seconds(loaded, 1, self.cold)
        for t, output in zip(self.task.outputs, self._outputs, strict=True):
            if not output.memory.untouched_around():
                raise WrongAnswer(f"bytes next to '{t.name}' were written")
            error = output.error()
            if not error <= self._allowed:
                raise WrongAnswer(f"'{t.name}' is wrong by {error:.3g} of its scale, allowed: {self._allowed:.3g}")
        if not loaded.scratch.untouched_around():
            raise WrongAnswer("bytes next to scratch memory were written")
        return took

    def seconds(self, loaded: Loaded, runs: int, cold: bool) -> float:
        """Seconds that ``runs`` runs take together."""
        flushed = loaded.constants if cold else None
        return self._watch.seconds(loaded.address, loaded.pointers, loaded.runtime, runs, flushed)

    def untouched(self, loaded: Loaded) -> bool:
        """Whether no byte next to an output or to scratch memory has changed."""
        return loaded.scratch.untouched_around() and all(o.memory.untouched_around() for o in self._outputs)


def _holding(array: np.ndarray) -> Fenced:
    """Memory that kernels may only read."""
    memory = Fenced(array.nbytes, writable=False)
    memory.bytes[:] = array.reshape(-1).view(np.uint8)
    memory.lock()
    return memory


class Contender:
    """A kernel that is loaded and right, with as many runs in a batch as last ``batch_seconds``.

    ``usual``: seconds a run, of the faster of two. ``first``: those of a run before.
    """

    def __init__(self, bench: Bench, loaded: Loaded, first: float, batch_seconds: float) -> None:
        self._bench, self._loaded, self._batch_seconds = bench, loaded, batch_seconds
        self.usual = first
        if first < _LONG:
            self.usual = max(1e-9, min(bench.seconds(loaded, 1, bench.cold) for _ in range(2)))
        self._runs = max(1, math.ceil(batch_seconds / self.usual))

    def warm(self) -> None:
        """Brings back into the caches what another kernel has taken there."""
        if self.usual < _LONG:
            self._bench.seconds(self._loaded, 1, self._bench.cold)

    def batch(self) -> float:
        """Seconds a run, of a batch."""
        while (took := self._bench.seconds(self._loaded, self._runs, self._bench.cold)) < LEAST_BATCH:
            # what the number of runs was taken from was slowed by something
            self._runs = math.ceil(1.2 * self._runs * self._batch_seconds / max(took, 1e-9))
        return took / self._runs


def alone(own: Contender, rule: Rule) -> tuple[list[float], str]:
    """The times of a kernel's batches (seconds a run), and why measuring ended."""
    times = [own.batch()]
    while not (stop := rule.stop(times)):
        times.append(own.batch())
    return times, stop


def in_turns(own: Contender, rival: Contender, rule: Rule, to_beat: float) -> tuple[list[float], list[float], str]:
    """The times of two kernels' batches, turn by turn, and why that ended. The last of a turn begins the next.

    A kernel has lost that takes more than ``to_beat`` times as long as the rival.
    """
    times: dict[Contender, list[float]] = {own: [], rival: []}
    order, last = [rival, own], None
    while not (stop := rule.stop(times[own], [to_beat * each for each in times[rival]]) if times[own] else ""):
        for contender in order:
            if contender is not last:
                contender.warm()
            times[contender].append(contender.batch())
            last = contender
        order.reverse()
    return times[own], times[rival], stop


def enter(bench: Bench, kernel: Kernel, image: Image, batch_seconds: float) -> Contender:
    """Loads and checks a kernel. Raises what ``load`` and ``check`` raise."""
    loaded = bench.load(kernel, image)
    return Contender(bench, loaded, bench.check(loaded), batch_seconds)


def run(
    bench: Bench, kernel: Kernel, image: Image, rule: Rule, rival: Contender | None, to_beat: float
) -> Measurement:
    """Loads, checks and times one kernel, in turns with a rival if there is one."""
    started = time.perf_counter()
    times: Sequence[float] = ()
    outcome, error, stop, beside = "ok", "", "", math.nan
    try:
        loaded = bench.load(kernel, image)
        first = bench.check(loaded)
        if rival is None:
            times, stop = alone(Contender(bench, loaded, first, rule.batch_seconds), rule)
        elif least := hopeless(bench, loaded, rule, first, to_beat * rival.usual):
            times, stop, beside = (least,), "lost", rival.usual
        else:
            own = Contender(bench, loaded, first, rule.batch_seconds)
            times, others, stop = in_turns(own, rival, rule, to_beat)
            beside = min(others)
        if not bench.untouched(loaded):
            raise WrongAnswer("bytes outside of its memory were written")
    except WrongAnswer as wrong:
        outcome, error, times = "wrong", str(wrong), ()
    except (BurnishError, OSError, MemoryError) as problem:
        outcome, error, times = "build failed", f"loading: {type(problem).__name__}: {problem}", ()
    return Measurement(tuple(times), outcome, error, 0.0, time.perf_counter() - started, stop, beside)


def hopeless(bench: Bench, loaded: Loaded, rule: Rule, first: float, rival: float) -> float:
    """The seconds of a run by which a kernel is far behind the rival's; 0 if it is not.

    The ``first`` run decides nothing alone: it has cold caches, and may have had to wake threads up, or wait for them.
    """
    if not rule.hopeless(first, rival):
        return 0.0
    least = min(first, bench.seconds(loaded, 1, bench.cold))
    return least if rule.hopeless(least, rival) else 0.0


def compare(
    first: tuple[Bench, Kernel, Image], second: tuple[Bench, Kernel, Image], rounds: int, batch_seconds: float
) -> tuple[list[float], list[float]] | str:
    """Both kernels' seconds a run by round, in turns; or why there are none."""
    try:
        one, other = (enter(*each, batch_seconds) for each in (first, second))
    except (WrongAnswer, BurnishError, OSError, MemoryError) as problem:
        return f"{type(problem).__name__}: {problem}"
    return in_turns(one, other, Fixed(rounds, batch_seconds), 1.0)[:2]


class _Corner:
    """The rival of now, which stays loaded from one candidate to the next."""

    def __init__(self, benches: Mapping[bytes, Bench]) -> None:
        self._benches = benches
        self._key: tuple[bytes, Kernel] | None = None
        self._rival: Contender | None = None

    def rival(self, given: tuple[bytes, Kernel, Image] | None, batch_seconds: float) -> Contender | None:
        """The kernel ready for its turns; None without one, or if it cannot be had any more."""
        if given is None:
            return None
        packet, kernel, image = given
        if self._key != (packet, kernel):
            self.leave()
            with suppress(WrongAnswer, BurnishError, OSError, MemoryError):
                self._rival = enter(self._benches[packet], kernel, image, batch_seconds)
            self._key = packet, kernel
        return self._rival

    def leave(self, packet: bytes | None = None) -> None:
        """Gives the rival up, if it is one of this task (None: of whichever)."""
        if self._key is not None and packet in (None, self._key[0]):
            self._key = self._rival = None


def work(line: Connection) -> None:
    """The life of a measuring worker: benches by the packets of their tasks, and what is done on them."""
    benches: dict[bytes, Bench] = {}
    corner = _Corner(benches)
    gc.disable()
    while True:
        order, *given = line.recv()
        if order == "open":
            packet, *rest = given
            try:
                bench = benches[packet] = Bench(unpack(packet), *rest)
                line.send((bench.feeds, bench.expected))
            except Exception as problem:
                line.send(problem)
        elif order == "close":
            corner.leave(given[0])
            del benches[given[0]]
            gc.collect()
        elif order == "run":
            packet, kernel, code, rule, rival, to_beat = given
            line.send(run(benches[packet], kernel, code, rule, corner.rival(rival, rule.batch_seconds), to_beat))
        else:
            (one, *first), (other, *second), rounds, batch_seconds = given
            line.send(compare((benches[one], *first), (benches[other], *second), rounds, batch_seconds))
