"""Time to tell a candidate's loop nest: by its template's description, and by applying the schedule.

    python -m benchmarks.nests [--json FILE]

For every template that matches a kernel of a small network: choices in its space, microseconds a candidate by what the
template gives (a thousand at once), milliseconds by the schedule. CPU seconds of one thread, medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import stored
from burnish.errors import ScheduleError
from burnish.graph import Graph, GraphBuilder
from burnish.graph.passes import optimize
from burnish.kernels.template import TemplateMatch
from burnish.kernels.templates import tunable_matches
from burnish.machines.target import host
from burnish.pipeline.plan import make_task, plan_kernels

MANY = 1000  # candidates described at once
SCHEDULED = 8  # candidates whose schedules are made
REPEATS = 5


def network() -> Graph:
    """A convolution, a depthwise one, pooling, a product and a softmax."""
    random, g = np.random.default_rng(0), GraphBuilder()

    def weight(*shape: int) -> str:
        return g.constant(random.standard_normal(shape).astype(np.float32))

    x = g.input("x", (1, 64, 56, 56))
    y = g.add("relu", g.add("conv2d", x, weight(64, 64, 3, 3), pads=(1, 1, 1, 1)))
    y = g.add("conv2d", y, weight(64, 1, 3, 3), pads=(1, 1, 1, 1), groups=64)
    y = g.add("max_pool2d", y, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    y = g.add("reshape", g.add("reduce_mean", y, axes=(2, 3)), shape=(1, 64))
    return g.build(g.add("softmax", g.add("matmul", y, weight(64, 1000)), axis=-1))


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call of this thread."""
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def drawn(match: TemplateMatch, count: int) -> list[Mapping[str, int | str]]:
    """The default and random choices."""
    random, knobs = np.random.default_rng(0), match.space.knobs
    others = [{k: v[int(random.integers(len(v)))] for k, v in knobs.items()} for _ in range(count - 1)]
    return [match.space.default, *others]


def measured(match: TemplateMatch) -> dict[str, Any]:
    """A row of the table."""
    choices = drawn(match, MANY)
    arrays = {knob: np.array([choice[knob] for choice in choices]) for knob in match.space.knobs}
    first = seconds(lambda: match.nests(arrays, MANY))  # what is from schedules makes them all now
    described = statistics.median(seconds(lambda: match.nests(arrays, MANY)) for _ in range(REPEATS)) / MANY

    def apply(choice: Mapping[str, int | str]) -> None:
        try:
            match.apply(choice)
        except ScheduleError:
            return

    made = statistics.median(seconds(lambda c=choice: apply(c)) for choice in choices[:SCHEDULED])  # type: ignore[misc]
    return {
        "task": match.task.label or "map", "template": match.name, "choices": match.space.size,
        "from": "description" if match.template.nests else "schedules",
        "first_ms": 1e3 * first, "microseconds": 1e6 * described, "schedule_ms": 1e3 * made,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    made = plan_kernels(optimize(network()), host(), exact=True)
    constants = dict(made.graph.constants)
    tasks = [make_task(made, group, constants)[0] for group in made.groups if made.computes(group)]
    rows = [measured(match) for task in tasks for match in tunable_matches(task, host())]
    for row in rows:
        print(
            "{task:12} {template:18} {choices:>12} {from:>12} {microseconds:8.2f} us {schedule_ms:8.2f} ms".format(
                **row
            )
        )
    if options.json:
        options.json.write_text(stored(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
