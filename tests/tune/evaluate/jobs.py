"""What building workers are asked to do instead of building; they import it by name."""

from __future__ import annotations

import os
import time

from burnish.kernels.task import Choice
from burnish.machines.target import Target
from burnish.tune.evaluate import building
from burnish.tune.evaluate.building import Build

HOSTILE = {
    "sleep": lambda: time.sleep(600),
    "compute": lambda: pow(3, 10**9),
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "fail": lambda: int("x"),
}


def build(packet: str, target: Target, template: str, choice: Choice) -> Build:
    """As a build, but for templates with the name of something hostile."""
    HOSTILE.get(template, lambda: None)()
    return building.build_packet(packet, target, template, choice)
