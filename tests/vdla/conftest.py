"""The accelerator as a fixture that compares what it computes with the definitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph import Graph
from burnish.graph.evaluate import evaluate
from burnish.kernels.task import ScheduleSpace
from burnish.kernels.template import Template
from burnish.kernels.vdla import TEMPLATES
from burnish.machines.target import Target, target
from burnish.machines.vdla.device import Run, VdlaDevice
from tests.vdla.layers import integers


def fixed(template: Template[Any], choice: dict[str, int | str]) -> Template[Any]:
    """The template with one point in its space."""
    return replace(template, space=lambda *any: ScheduleSpace({}, choice))


Check = Callable[..., list[Run]]


@pytest.fixture
def check() -> Check:
    """Compiles a graph for the accelerator, compares what it computes with the definitions, and returns what ran."""

    def run(graph: Graph, machine: Target | None = None, choice: dict[str, int | str] | None = None) -> list[Run]:
        machine = machine or target("vdla")
        device = VdlaDevice(machine.machine.config)
        changes: dict[str, Any] = {"device": lambda: device}
        if choice is not None:
            changes["templates"] = tuple(fixed(t, choice) for t in TEMPLATES)
            changes["version"] = f"{machine.machine.version} {choice}"  # of the key of cached kernels
        there = replace(machine, machine=machine.machine.with_(**changes))
        feeds = {n: integers(*graph.types[n].shape, seed=7) for n in graph.inputs}
        module = bn.compile(graph, target=there, threads=1)
        found = module(**feeds)
        for one, wanted in zip(
            found if isinstance(found, tuple) else (found,), evaluate(graph, feeds).values(), strict=True
        ):
            np.testing.assert_array_equal(one, wanted)
        return device.runs

    return run
