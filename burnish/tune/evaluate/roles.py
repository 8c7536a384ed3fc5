"""Worker roles of the fork server: building, running, and what is set up once for all of them."""

from __future__ import annotations

from burnish.codegen.objects import target_machine
from burnish.measure import forkserver
from burnish.runtime.entry import driver_image
from burnish.target import host
from burnish.tune.evaluate import building, worker
from burnish.tune.evaluate import timer as stopwatch


def main(number: int) -> None:
    """The fork server's main function; ``number`` is the file descriptor of its line."""
    machine = host()
    target_machine(machine)
    driver_image(machine.triple)
    stopwatch.image(machine)
    forkserver.serve(number, {"build": building.work, "measure": worker.work})
