"""The worker that runs compiled models, and may die of one: loads them, checks their answers, times them."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from burnish.measure import forkserver
from burnish.measure.accuracy import ROUNDINGS, scaled_error
from burnish.measure.comparison import profiled, time_in_turns
from burnish.measure.samples import module_inputs
from burnish.runtime.artifact import assembled
from burnish.runtime.buffers import allocate
from burnish.runtime.module import Module

BEAT = 0.5  # seconds between signs of life
Tell = Callable[[int | None], None]  # which model is going to run; None: several, in turns


def main(number: int) -> None:
    """The fork server's main function; ``number`` is the file descriptor of its line."""
    forkserver.serve(number, {"models": work})


def work(line: Connection) -> None:
    """The worker's life: orders as JSON, of which each gets an answer, and signs of life before it."""
    modules: list[Module] = []
    told: int | None = None
    last = 0.0

    def tell(running: int | None) -> None:
        nonlocal told, last
        now = time.perf_counter()
        if running != told or now - last > BEAT:
            told, last = running, now
            _say(line, {"running": running})

    gc.disable()
    while True:
        order = json.loads(line.recv_bytes())
        try:
            if "load" in order:
                modules.append(_load(line, order["load"], order["bytes"], order["threads"]))
                answer: Any = len(modules)
            elif "compare" in order:
                first, second = (modules[number] for number in order["compare"])
                most = order["seconds"] if order["timed"] else None
                answer = compare(first, second, order["allowed"], order["rounding"], most, tell)
            else:
                chosen = [modules[number] for number in order["profile"]]
                feeds = module_inputs(chosen[0])
                for number, module in enumerate(chosen):
                    tell(number)
                    module(**feeds)
                tell(None)
                answer = profiled(chosen, order["rounds"], order["runs"], feeds, lambda: tell(None))
            _say(line, {"answer": answer})
            told = None
        except EOFError:  # the owner has gone
            return
        except Exception as error:
            _say(line, {"failed": f"{type(error).__name__}: {error}"})


def compare(
    first: Module, second: Module, allowed: float, rounding: float, seconds: float | None, tell: Tell
) -> Mapping[str, Any]:
    """Whether the second module answers as the first, with errors up to ``allowed``, and both modules' seconds by round
    if so; timed for so many ``seconds``, or not at all (None).

    Where a model is so sensitive that inputs changed by ``rounding``, one of the errors that a kernel may make, change
    its answers by more than that, a few times as much is allowed.
    """
    feeds = module_inputs(first)
    tell(0)
    expected = _run(first, feeds)
    tell(1)
    found = _run(second, feeds)
    errors = [scaled_error([a], [b]) for a, b in zip(found, expected, strict=True)]
    worst = max(range(len(errors)), key=lambda n: np.inf if np.isnan(errors[n]) else errors[n])
    if not errors[worst] <= allowed:
        tell(0)
        moved = _run(first, {name: _moved(array, rounding) for name, array in feeds.items()})[worst]
        right = expected[worst]
        finite = np.isfinite(moved) & np.isfinite(right)
        allowed = max(allowed, ROUNDINGS * scaled_error([moved[finite]], [right[finite]]))
    if not errors[worst] <= allowed:
        name, far = first.outputs[worst].name, errors[worst]
        how = "is NaN on one side alone" if np.isnan(far) else f"differs by {far:.3g} of its scale"
        return {"wrong": f"output '{name}' {how}, allowed: {allowed:.3g}"}
    tell(None)
    times = None if seconds is None else time_in_turns(first, second, feeds, lambda: tell(None), seconds).times
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


def _load(line: Connection, header: Mapping[str, Any], sizes: Mapping[str, int], threads: int) -> Module:
    """The module whose sections follow on the line, one after the other, as bare bytes."""
    forkserver.allow_more(2 * sum(sizes.values()) + 2 * header["arena_bytes"] + threads * header["scratch_bytes"])
    sections = {}
    for name, size in sizes.items():
        rest = sections[name] = allocate(size).data
        while rest:
            if not (count := os.readv(line.fileno(), [rest])):
                raise EOFError
            rest = rest[count:]
    return Module(assembled(header, sections), threads)


def _say(line: Connection, words: Mapping[str, Any]) -> None:
    line.send_bytes(json.dumps(words).encode())
