"""Timeline of a simulated step: its tasks and transfers by device and link, as text and as a picture (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from burnish.parallel.simulate.state import ACTIVATION, KIND, PART, SYNCHRONIZATION, THING, Trace
from burnish.parallel.simulate.taskgraph import Problem

WORDS = ("forward", "backward", "send", "gradient", "sum")
COLOURS = ("#4c78a8", "#f58518", "#72b7b2", "#e45756", "#b279a2")


@dataclass(frozen=True)
class Entry:
    """Timeline entry of one task: what it does (a word of ``WORDS``), of which operation or tensor, on which resource;
    ns.
    """

    what: str
    name: str
    resource: int
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """Tasks of a step in order of their start; ``resources`` names rows, devices first. ``time`` in ns.

    ``after``: ns of weight synchronization that is added after the step.
    """

    entries: tuple[Entry, ...]
    resources: tuple[str, ...]
    devices: int
    time: int
    after: int

    def busy(self) -> NDArray[np.float64]:
        """The share of the step that each resource works."""
        found = np.zeros(len(self.resources))
        for e in self.entries:
            found[e.resource] += e.end - e.start
        return found / max(self.time, 1)

    def text(self, width: int = 72) -> str:
        """Rows of characters, one a resource that works: f forward, b backward, s send, g gradient, + sum; . idle."""
        rows = []
        busy = self.busy()
        for r, name in enumerate(self.resources):
            if busy[r] == 0:
                continue
            line = ["."] * width
            for e in (e for e in self.entries if e.resource == r):
                first = e.start * width // max(self.time, 1)
                for x in range(first, max(first + 1, -(-e.end * width // max(self.time, 1)))):
                    line[min(x, width - 1)] = "fbsg+"[WORDS.index(e.what)]
            rows.append(f"{name:>16} {''.join(line)} {100 * busy[r]:3.0f} %")
        total = f"{(self.time + self.after) / 1e6:.3f} ms"
        if self.after:
            total += f", of which {self.after / 1e6:.3f} ms of synchronization after the step"
        return "\n".join([*rows, f"{'step':>16} {total}"]) + "\n"

    def svg(self, width: int = 1200, row: int = 18) -> str:
        """The picture: a row for each resource that works, a rectangle with its name for each task."""
        used = [r for r, share in enumerate(self.busy()) if share > 0]
        place = {r: n for n, r in enumerate(used)}
        left, scale = 150, (width - 160) / max(self.time, 1)
        height = row * (len(used) + 2)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="{row * 6 // 10}">'
        ]
        for r in used:
            parts.append(f'<text x="4" y="{row * place[r] + row * 3 // 4}">{escape(self.resources[r])}</text>')
        for e in self.entries:
            x, span = left + e.start * scale, max((e.end - e.start) * scale, 0.25)
            label = f"{e.what} {escape(e.name)}: {e.start / 1e3:.1f} to {e.end / 1e3:.1f} µs"
            parts.append(
                f'<rect x="{x:.2f}" y="{row * place[e.resource] + 1}" width="{span:.2f}" height="{row - 2}" '
                f'fill="{COLOURS[WORDS.index(e.what)]}"><title>{label}</title></rect>'
            )
        y = row * (len(used) + 1)
        for n, (word, colour) in enumerate(zip(WORDS, COLOURS, strict=True)):
            x = left + n * 100
            parts.append(f'<rect x="{x}" y="{y}" width="{row - 4}" height="{row - 4}" fill="{colour}"/>')
            parts.append(f'<text x="{x + row}" y="{y + row * 2 // 3}">{word}</text>')
        parts.append(f'<text x="{width - 160}" y="{y + row * 2 // 3}">{(self.time + self.after) / 1e6:.3f} ms</text>')
        return "\n".join([*parts, "</svg>"]) + "\n"


def timeline_of(
    problem: Problem, choice: NDArray[np.int32], trace: Trace, count: int, time: int, after: int
) -> Timeline:
    """Timeline of a trace of ``count`` events."""
    names = [op.name for op in problem.model.operations]
    entries = []
    for key, resource, start, end in zip(*(column[:count] for column in trace), strict=True):
        if start == end:
            continue  # of inference, what there is on the way back
        what = int(key) >> KIND
        thing = (int(key) >> THING) & ((1 << (KIND - THING)) - 1)
        part = (int(key) >> PART) & ((1 << PART) - 1)
        if what < ACTIVATION:
            name = f"{names[thing]}[{part}]"
        elif what != SYNCHRONIZATION:
            edge = problem.model.edges[thing]
            name = f"{edge.tensor} for {names[edge.consumer]}[{int(key) & ((1 << PART) - 1)}]"
        else:
            name = ", ".join(problem.weights.names[thing])
        word = WORDS[what if what <= SYNCHRONIZATION else what - SYNCHRONIZATION + 1]
        entries.append(Entry(word, name, int(resource), int(start), int(end)))
    return Timeline(
        tuple(sorted(entries, key=lambda e: (e.start, e.resource))), _rows(problem), problem.machine.size, time, after
    )


def _rows(problem: Problem) -> tuple[str, ...]:
    devices: Sequence[str] = [f"{d.kind} {n}" for n, d in enumerate(problem.machine.devices)]
    return (*devices, *(link.name for link in problem.machine.links))
