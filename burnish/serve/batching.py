"""Dynamic batching: requests of one model that wait are joined along their first extent into one call.

Calls of all models share a few threads in turn, a model at a time, so that none of them waits for the requests of
another one but for calls that run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from burnish.errors import InputError
from burnish.loops.sizes import dims_of, hinted, is_dim
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.callable import CompiledModel
from burnish.serve.protocol import RequestError

RELATIVE = 1e-3  # difference of a row alone and in a batch that rounding explains, of the largest element


@dataclass(eq=False)
class Waiting:
    """A request that waits for its call. ``rows``: its first extent; ``key``: the others, the same within a batch."""

    arrays: list[np.ndarray]
    rows: int
    key: Any
    done: asyncio.Future[list[np.ndarray]]
    arrived: float


@dataclass(eq=False)
class ServedModel:
    """A model, and the requests that wait for it. ``most_rows``: of a batch, 1 where each request is a call."""

    name: str
    model: CompiledModel
    most_rows: int = 1
    running: int = 0
    waiting: deque[Waiting] = field(default_factory=deque)

    def next_batch(self, now: float, patience: float) -> tuple[list[Waiting], float | None]:
        """The requests of the next call, which wait no longer; or none, and when it is worth looking again."""
        if not self.waiting or self.running >= self.model.calls_at_once:
            return [], None
        first = self.waiting[0]
        if self.most_rows == 1:
            return [self.waiting.popleft()], None
        chosen, rows = list[Waiting](), 0
        for each in self.waiting:
            if each.key == first.key and (not chosen or rows + each.rows <= self.most_rows):
                chosen.append(each)
                rows += each.rows
        if rows < self.most_rows and now < first.arrived + patience:
            return [], first.arrived + patience
        taken = set(map(id, chosen))
        self.waiting = deque(each for each in self.waiting if id(each) not in taken)
        return chosen, None

    def call(self, batch: Sequence[Waiting]) -> list[list[np.ndarray] | Exception]:
        """Results of each of the requests."""
        if len(batch) == 1:
            try:
                return [_results(self.model(*batch[0].arrays))]
            except Exception as error:
                return [error]
        try:
            results = _results(self.model(*map(np.concatenate, zip(*(each.arrays for each in batch), strict=True))))
        except InputError:  # of one of them
            return [found for each in batch for found in self.call([each])]
        except Exception as error:
            return [error] * len(batch)
        ends = np.cumsum([each.rows for each in batch])
        parts = [np.split(array, ends[:-1]) for array in results]
        return [list(own) for own in zip(*parts, strict=True)]


class Scheduler:
    """Calls of several models on ``threads`` threads, in the turn of the models. Its methods belong to one event loop.

    ``patience``: seconds that a request may wait for others to join it. ``on_call``: is called with the name of a model
    and the rows of each of its batches.
    """

    def __init__(
        self, models: Sequence[ServedModel], threads: int, patience: float, on_call: Callable[[str, int], None]
    ) -> None:
        self._turn = deque(models)
        self._idle, self._patience, self._on_call = threads, patience, on_call
        self._executor = ThreadPoolExecutor(threads, "burnish-serve")
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, model: ServedModel, arrays: list[np.ndarray], most_waiting: int) -> list[np.ndarray]:
        """The results of a request. Raises what the call does, and RequestError where too many wait."""
        if len(model.waiting) >= most_waiting:
            raise RequestError(f"model '{model.name}': found {most_waiting} requests that wait; allowed: fewer", 503)
        loop = asyncio.get_running_loop()
        joins = model.most_rows > 1
        key, rows = ([a.shape[1:] for a in arrays], arrays[0].shape[0]) if joins else (None, 1)
        if joins and any(a.shape[0] != rows for a in arrays):
            raise RequestError(f"inputs: found first extents {[a.shape[0] for a in arrays]}; allowed: one for all")
        request = Waiting(arrays, rows, key, loop.create_future(), loop.time())
        model.waiting.append(request)
        self._start()
        try:
            return await request.done
        finally:
            if request.done.cancelled() and request in model.waiting:
                model.waiting.remove(request)

    def close(self) -> None:
        """Ends the threads."""
        self._executor.shutdown(wait=False)

    def _start(self) -> None:
        """Starts the calls that can begin."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        again: list[float] = []
        passed = 0
        while self._idle and passed < len(self._turn):
            model = self._turn[0]
            self._turn.rotate(-1)
            batch, later = model.next_batch(loop.time(), self._patience)
            again += [] if later is None else [later]
            passed = 0 if batch else passed + 1
            if batch:
                self._idle -= 1
                model.running += 1
                self._on_call(model.name, sum(each.rows for each in batch))
                self._executor.submit(self._call, loop, model, batch)
        if again and self._idle:
            self._timer = loop.call_at(min(again), self._start)

    def _call(self, loop: asyncio.AbstractEventLoop, model: ServedModel, batch: list[Waiting]) -> None:
        """A call, on a thread of its own; the event loop gives its results to those that wait."""
        found: Sequence[list[np.ndarray] | BaseException]
        try:
            found = model.call(batch)
        except BaseException as error:
            found = [error] * len(batch)
        loop.call_soon_threadsafe(self._ended, model, batch, found)

    def _ended(
        self, model: ServedModel, batch: Sequence[Waiting], found: Sequence[list[np.ndarray] | BaseException]
    ) -> None:
        """Gives the requests of a call their results, and starts the calls that it has kept waiting."""
        self._idle += 1
        model.running -= 1
        for each, result in zip(batch, found, strict=True):
            if each.done.done():
                continue
            if isinstance(result, BaseException):
                each.done.set_exception(result)
            else:
                each.done.set_result(result)
        self._start()


def rows_of_batches(model: CompiledModel, asked: int) -> tuple[int, str]:
    """The most rows that calls of a model can join, up to ``asked``, and why not more where it is 1.

    Requests can be joined where the first extents of all inputs and outputs are one open dimension, and each row of the
    results depends on its own row of the inputs alone: that is tried, on random rows.
    """
    if asked == 1:
        return 1, ""
    shapes = [spec.shape or (None,) for spec in (*model.inputs, *model.outputs)]
    first = shapes[0][0]
    if not is_dim(first) or any(shape[0] != first for shape in shapes):
        return 1, "its inputs and outputs have no open first extent in common"
    (batch,) = first.dims
    if any(batch in dims_of(shape[1:]) for shape in shapes):
        return 1, f"more than the first extents depend on {batch}"
    most = min(asked, batch.high)
    if dict(model.state):
        return 1, "it has state"
    if batch.low > 1 or most < 2:
        return 1, f"{batch} is from {batch.low} to {batch.high}"
    return (most, "") if _rows_are_independent(model) else (1, "a row of its results depends on others")


def _rows_are_independent(model: CompiledModel) -> bool:
    """Whether three rows together give what each of them gives, up to rounding."""
    rng = np.random.default_rng(0)
    arrays = []
    for spec in model.inputs:
        shape = (3, *map(hinted, (spec.shape or ())[1:]))
        dtype = numpy_dtype(spec.dtype)
        values = rng.normal(size=shape) if dtype.kind not in "biu" else rng.integers(0, 2, shape)
        arrays.append(values.astype(dtype))
    try:
        together = _results(model(*arrays))
        apart = [_results(model(*(array[i : i + 1] for array in arrays))) for i in range(3)]
    except InputError:
        return False
    for i, whole in enumerate(together):
        rows = np.concatenate([results[i] for results in apart]).astype(np.float64)
        near = RELATIVE * float(np.abs(rows).max(initial=1e-30))
        if rows.shape != whole.shape or not np.allclose(whole.astype(np.float64), rows, RELATIVE, near, equal_nan=True):
            return False
    return True


def _results(found: Any) -> list[np.ndarray]:
    return list(found) if isinstance(found, tuple) else [found]
