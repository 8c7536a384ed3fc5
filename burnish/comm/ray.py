"""Workers placed and watched by Ray, on one machine or a cluster; their data goes through gloo, not through Ray."""

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from burnish.base.optional import require
from burnish.comm.local import TIMEOUT
from burnish.comm.processes import failure
from burnish.comm.torch import run_joined
from burnish.errors import BurnishError, ParameterError, WorkerError
from burnish.workers.plain import decode, encode, reference
from burnish.workers.serving import report

_SETTINGS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # else Ray listens on the address of the first network card
    "RAY_USAGE_STATS_ENABLED": "0",
}
_GRACE = 3.0  # seconds for the others to tell of their errors once one has failed


def launch_ray(
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
    resources: Mapping[str, float] | None = None,
    timeout: float = TIMEOUT,
    address: str | None = None,
    init_method: str | None = None,
) -> list[Any]:
    """Launch on Ray, as `burnish.comm.launch` with processes, each of which is an actor on a node that has `resources`
    for it.

    `resources` are those of one worker (None: one CPU). `address` is that of a running cluster; None uses the one that
    this process is connected to, or else starts Ray here, on the loopback device, and stops it at the end.
    `init_method` is gloo's meeting place (`torch_comm`); None is a file, which all workers must reach: on several
    machines give one in a shared folder, and set GLOO_SOCKET_IFNAME there. Raises WorkerError if the workers
    have not found their places within `timeout` seconds, names the one that died, and ends all others.
    """
    ray = _ray(here=address is None)
    named = reference(function, "launch_ray: function")
    orders = [encode(list(given), f"launch_ray: arguments of worker {rank}") for rank, given in enumerate(arguments)]
    bundle = dict(resources or {"CPU": 1.0})
    with _connected(ray, address, len(arguments)), tempfile.TemporaryDirectory() as folder:
        meeting = init_method or f"file://{folder}/store"
        placement = ray.util.placement_group([bundle] * len(arguments), strategy="PACK")
        actors: list[Any] = []
        try:
            if not placement.wait(timeout):
                wanted = f"{len(arguments)} workers with {bundle}"
                raise WorkerError(0, f"launch_ray: no place for {wanted} within {timeout:g} s")
            for rank in range(len(arguments)):
                strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                    placement_group=placement, placement_group_bundle_index=rank
                )
                options = {"num_cpus": bundle.get("CPU", 0), "scheduling_strategy": strategy, "max_restarts": 0}
                actors.append(ray.remote(**options)(_Actor).remote(rank, len(arguments)))
            calls = {
                actor.run.remote(named, meeting, timeout, *order): rank
                for rank, (actor, order) in enumerate(zip(actors, orders, strict=True))
            }
            return _watch(ray, calls)
        finally:
            for actor in actors:
                ray.kill(actor, no_restart=True)
            ray.util.remove_placement_group(placement)


def _ray(here: bool) -> Any:
    """Ray, imported under settings that it reads then. Raises ParameterError if it is to start here on all cards."""
    if not here:
        return require("ray", "distributed")
    late = "ray" in sys.modules and os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") is None
    if late and not sys.modules["ray"].is_initialized():
        raise ParameterError(
            "launch_ray: Ray was imported before RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER was set, and would listen on all "
            "network cards; allowed: RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 from the start, or a cluster by ray.init"
        )
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    return require("ray", "distributed")


class _Actor:
    """One worker: one call is its whole life."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def run(
        self, named: list[str], meeting: str, timeout: float, text: str, arrays: list[Any]
    ) -> tuple[str, list[Any]]:
        """The result, or the error, as a plain value."""
        try:
            reply = {"result": run_joined(self.rank, self.size, named, meeting, timeout, decode(text, arrays))}
            return encode(reply, f"result of worker {self.rank}")
        except BaseException as error:
            return encode({"error": report(error)}, "error")


def _watch(ray: Any, calls: Mapping[Any, int]) -> list[Any]:
    """The results by rank once all workers have answered. Raises what ended the first that failed."""
    results: list[Any] = [None] * len(calls)
    failures: list[tuple[int, BurnishError]] = []
    stop: float | None = None
    waiting = list(calls)
    while waiting:
        done, waiting = ray.wait(waiting, timeout=None if stop is None else max(0.0, stop - time.monotonic()))
        if not done:
            break
        rank = calls[done[0]]
        try:
            reply = decode(*ray.get(done[0]))
        except ray.exceptions.RayError as error:
            why = " ".join(str(error).split())
            failures.append((0, WorkerError(rank, f"worker {rank} died: {type(error).__name__}: {why[:500]}")))
        else:
            if "error" in reply:
                failures.append(failure(reply["error"], rank))
            else:
                results[rank] = reply["result"]
        if failures and stop is None:
            stop = time.monotonic() + _GRACE
    if failures:
        raise min(failures, key=lambda failed: failed[0])[1]
    return results


@contextmanager
def _connected(ray: Any, address: str | None, workers: int) -> Iterator[None]:
    """Ray as it runs already, or started on the loopback device for as long as this lasts."""
    if ray.is_initialized():
        yield
        return
    if address is not None:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    else:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        yield
    finally:
        ray.shutdown()
