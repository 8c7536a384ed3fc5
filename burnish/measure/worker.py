"""Worker jobs on compiled models: loads them, checks their answers, times them; a job may end its worker."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from burnish.machines.machine import Machine
from burnish.measure.accuracy import ROUNDINGS, scaled_error
from burnish.measure.comparison import profiled, time_in_turns
from burnish.measure.samples import module_inputs
from burnish.runtime.artifact import assembled
from burnish.runtime.buffers import allocate
from burnish.runtime.devices import device_for
from burnish.runtime.module import Module
from burnish.workers import tell
from burnish.workers.line import Allocate

BEAT = 0.5  # seconds between signs of life
_loaded: list[Module] = []  # in this process, in order


def prepare() -> Allocate:
    """Fork-server setup: parameters that arrive lie as those of a module do."""
    return allocate


class _Beat:
    """Tells which model is going to run (None: several, in turns), and now and then that one still does."""

    def __init__(self) -> None:
        self._told: tuple[int | None, ...] = ()
        self._last = 0.0

    def __call__(self, running: int | None) -> None:
        now = time.perf_counter()
        if self._told != (running,) or now - self._last > BEAT:
            self._told, self._last = (running,), now
            tell(running)


def load(header: Mapping[str, Any], sections: Mapping[str, np.ndarray], threads: int, machine: Machine | None) -> int:
    """Adds a module, given as the parts of its artifact (uint8 arrays); how many there are then. ``machine``: whose
    device runs it (None: what its architecture has).
    """
    gc.disable()
    executable = assembled(header, {name: data.data for name, data in sections.items()})
    device = None if machine is None else device_for(machine, executable.target)
    _loaded.append(Module(executable, threads, device=device))
    return len(_loaded)


def compare_loaded(
    first: int, second: int, allowed: float, rounding: float, seconds: float | None
) -> Mapping[str, Any]:
    """See :func:`compare`; of modules by number."""
    return compare(_loaded[first], _loaded[second], allowed, rounding, seconds, _Beat())


def profile_loaded(numbers: Sequence[int], rounds: int, runs: int) -> list[list[list[tuple[str, float]]]]:
    """See :func:`burnish.measure.comparison.profiled`; of modules by number."""
    chosen = [_loaded[number] for number in numbers]
    feeds, beat = module_inputs(chosen[0]), _Beat()
    for number, module in enumerate(chosen):
        beat(number)
        module(**feeds)
    beat(None)
    return profiled(chosen, rounds, runs, feeds, lambda: beat(None))


def compare(
    first: Module,
    second: Module,
    allowed: float,
    rounding: float,
    seconds: float | None,
    beat: Callable[[int | None], None],
) -> Mapping[str, Any]:
    """Equivalence of the second module to the first, with errors up to ``allowed``, and both modules' seconds by round
    where they agree; timed for ``seconds``, or not at all (None).

    If perturbing the inputs by ``rounding``, an error that one kernel may make, moves the worst output of the first
    module by more than ``allowed``, ROUNDINGS times that movement is tolerated.
    """
    feeds = module_inputs(first)
    beat(0)
    expected = _run(first, feeds)
    beat(1)
    found = _run(second, feeds)
    errors = [scaled_error([a], [b]) for a, b in zip(found, expected, strict=True)]
    worst = max(range(len(errors)), key=lambda n: np.inf if np.isnan(errors[n]) else errors[n])
    if not errors[worst] <= allowed:
        beat(0)
        moved = _run(first, {name: _moved(array, rounding) for name, array in feeds.items()})[worst]
        right = expected[worst]
        finite = np.isfinite(moved) & np.isfinite(right)
        allowed = max(allowed, ROUNDINGS * scaled_error([moved[finite]], [right[finite]]))
    if not errors[worst] <= allowed:
        name, far = first.outputs[worst].name, errors[worst]
        how = "is NaN on one side alone" if np.isnan(far) else f"differs by {far:.3g} of its scale"
        return {"wrong": f"output '{name}' {how}, allowed: {allowed:.3g}"}
    beat(None)
    times = None if seconds is None else time_in_turns(first, second, feeds, lambda: beat(None), seconds).times
    return {"difference": errors[worst], "times": times}


def _run(module: Module, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    found = module(**feeds)
    return found if isinstance(found, tuple) else (found,)


def _moved(array: np.ndarray, rounding: float) -> np.ndarray:
    """Floats changed by ``rounding`` of their own, up or down."""
    if array.dtype.kind in "biu":
        return array
    signs = np.random.default_rng(0).choice((-1.0, 1.0), array.shape)
    return (array.astype(np.float64) * (1.0 + rounding * signs)).astype(array.dtype)
