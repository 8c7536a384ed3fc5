"""Plots of results as SVG files: curves, and strategies of parallel plans. Needs matplotlib (`burnish[plot]`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.base.optional import require

Points = Sequence[tuple[float, float]]


def curves(path: Path, lines: Mapping[str, Points], x: str, y: str, log: str = "") -> None:
    """One line for each name; ``log``: the axes, of "xy", that are logarithmic."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, points in lines.items():
        axes.plot([p[0] for p in points], [p[1] for p in points], marker=".", label=name)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xscale("log" if "x" in log else "linear")
    axes.set_yscale("log" if "y" in log else "linear")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, path)


def strategy(path: Path, layers: Mapping[str, Sequence[Mapping[str, Any]]], devices: int) -> None:
    """A row of boxes for each layer, one for each operation: its tasks, samples downwards and all else to the right,
    each in its device's color. An operation has "samples" and "others", numbers of parts, and "devices" by task.
    """
    pyplot = _pyplot()
    patches: Any = require("matplotlib.patches", "plot")
    most = max(map(len, layers.values()))
    figure, axes = pyplot.subplots(figsize=(2.2 + 0.5 * most, 0.8 + 0.5 * len(layers)))
    colors = pyplot.get_cmap("tab10" if devices <= 10 else "tab20")
    for row, operations in enumerate(layers.values()):
        for column, one in enumerate(operations):
            high, wide = 0.8 / one["samples"], 0.8 / one["others"]
            for task, device in enumerate(one["devices"]):
                place = column + wide * (task % one["others"]), -row - 0.8 + high * (task // one["others"])
                axes.add_patch(
                    patches.Rectangle(place, wide, high, facecolor=colors(device), edgecolor="white", lw=0.4)
                )
    axes.set_xlim(-0.1, most)
    axes.set_ylim(-len(layers) + 0.1, 0.1)
    axes.set_xticks([])
    axes.set_yticks([-row - 0.4 for row in range(len(layers))], list(layers), fontsize=7)
    legend = [patches.Patch(color=colors(device), label=str(device)) for device in range(devices)]
    axes.legend(handles=legend, title="device", loc="upper left", bbox_to_anchor=(1, 1), fontsize=7)
    _save(figure, path)


def _pyplot() -> Any:
    matplotlib: Any = require("matplotlib", "plot")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "burnish"  # the same file from the same numbers
    return require("matplotlib.pyplot", "plot")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    require("matplotlib.pyplot", "plot").close(figure)
