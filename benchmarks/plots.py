"""Plots of stored results as SVG files next to them: curves, and strategies of parallel plans.

`python -m benchmarks plots` draws them, by matplotlib (`burnish[plot]`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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


def graphs(path: Path, sides: Mapping[str, Sequence[tuple[str, Sequence[int], bool]]]) -> None:
    """Graphs side by side, of operators (label, numbers of those that they read, whether colored), inputs above."""
    pyplot = _pyplot()
    figure, every = pyplot.subplots(1, len(sides), figsize=(7 * len(sides), 7), squeeze=False)
    for axes, (title, operators) in zip(every[0], sides.items(), strict=True):
        depth, places, used = list[int](), list[tuple[float, float]](), dict[int, int]()
        for _, reads, _ in operators:
            depth.append(1 + max((depth[other] for other in reads), default=-1))
            places.append((used.setdefault(depth[-1], 0), -depth[-1]))
            used[depth[-1]] += 1
        places = [(x - (used[-int(y)] - 1) / 2, y) for x, y in places]
        for number, (text, reads, colored) in enumerate(operators):
            for other in reads:
                axes.annotate(
                    "",
                    places[number],
                    places[other],
                    arrowprops={"arrowstyle": "-", "color": "0.7", "lw": 0.7},
                    zorder=0,
                )
            box = {
                "boxstyle": "round",
                "facecolor": "tab:orange" if colored else "white",
                "edgecolor": "0.4",
                "lw": 0.6,
            }
            axes.text(*places[number], text, ha="center", va="center", fontsize=6, bbox=box)
        axes.set_xlim(-max(used.values()) / 2, max(used.values()) / 2)
        axes.set_ylim(-max(depth) - 0.7, 0.7)
        axes.set_title(title, fontsize=8)
        axes.axis("off")
    _save(figure, path)


def _pyplot() -> Any:
    matplotlib: Any = require("matplotlib", "plot")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "burnish"  # the same file from the same numbers
    return require("matplotlib.pyplot", "plot")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})
    require("matplotlib.pyplot", "plot").close(figure)


# --- what is drawn of which results -----------------------------------------------------------------------------------


def _searches(report: Any, path: Path) -> None:
    """Figure 3.13 of FlexFlow: the best strategy over the time of search."""
    curves(path, {row["mode"]: row["curve"] for row in report["search"]}, "CPU s of search", "ms a step, simulated")


def _strategy(network: str) -> Callable[[Any, Path], None]:
    """Figures 3.14 and 3.15: operations of a layer in a row; where most layers are one operation, twelve in a row."""

    def draw(report: Any, path: Path) -> None:
        found = next(row["strategy"] for row in report["strategies"] if row["network"] == network)
        single = max(one["layer"] for one in found) + 1 > 24
        layers: dict[str, list[Any]] = {}
        for number, one in enumerate(found):
            first = number // 12 * 12 + 1
            layers.setdefault(f"from {first}" if single else f"{one['layer']}: {one['kind']}", []).append(one)
        strategy(path, layers, 4)

    return draw


def _accuracies(start: str, metric: str) -> Callable[[Any, Path], None]:
    """Figures 2.3 and 2.10 of XGBoost: accuracy over trees, of the rows whose names begin so."""

    def draw(report: Any, path: Path) -> None:
        rows = [row for row in report["sections"]["convergence"] if row["name"].startswith(start)]
        words = [row["name"].partition(": ")[2].split(", ") for row in rows]
        common = set.intersection(*map(set, words))  # what all say is no name
        names = [", ".join(word for word in one if word not in common) for one in words]
        curves(path, {name: row["curve"] for name, row in zip(names, rows, strict=True)}, "trees", metric)

    return draw


def _recomputing(part: str, x: str) -> Callable[[Any, Path], None]:
    """Figure 3.9 of MXNet: seconds of a step over depth or length."""

    def draw(report: Any, path: Path) -> None:
        rows = [row for row in report[part] if row["network"] == ("lstm" if part == "lengths" else "residual")]
        named = {"all kept": "CPU s", "sublinear": "sublinear CPU s"}
        curves(
            path, {name: [(row["size"], row[key]) for row in rows] for name, key in named.items()}, x, "CPU s a step"
        )

    return draw


def _lengths(report: Any, path: Path) -> None:
    """Figure 3.7 of MXNet: bytes of a step of an LSTM over its length, at the thesis' size."""
    rows = report["recurrent"]
    lines = {name: [(row["length"], row[name] / 1e6) for row in rows] for name in ("none", "inplace", "sharing")}
    lines["sublinear"] = [(row["length"], row["sublinear"]["bytes"] / 1e6) for row in rows]
    curves(path, lines, "steps", "MB")


def _substitutions(report: Any, path: Path) -> None:
    """Figure 2.8 of TASO: a cell of NasNet-A before and after, values that the other side has not colored."""
    row = next(each for each in report["sequences"] if each["machine"] == "gpu-like")
    graphs(path, {"before": row["before"], "\n".join(row["applied"]): row["after"]})


def _clocks(kernel: str) -> Callable[[Any, Path], None]:
    """Figures 6 and 11 of AdaTune: the best so far over the time of a session, medians of the seeds."""

    def draw(report: Any, path: Path) -> None:
        rows = [row for row in report["sections"]["adatune curves"] if row["kernel"] == kernel]
        lines = {row["variant"]: [point[:2] for point in row["seconds, median, low, high"]] for row in rows}
        curves(path, lines, "s of session", "time over the best one's")

    return draw


FIGURES: Mapping[str, tuple[str, Callable[[Any, Path], None]]] = {  # by file: the results' name and what draws it
    "parallel-search": ("parallel-studies", _searches),
    "parallel-strategy-inception": ("parallel-studies", _strategy("inception_v3")),
    "parallel-strategy-nmt": ("parallel-studies", _strategy("nmt")),
    "boost-epsilons": ("boost-convergence", _accuracies("Fig. 2.3", "AUC, held out")),
    "boost-ranking": ("boost-convergence", _accuracies("Table 2.4", "NDCG@10, held out")),
    "memory-speed-depth": ("memory-speed", _recomputing("speed", "layers")),
    "rewrite-sequences": ("rewrite-sequences", _substitutions),
    "adatune-convolution": ("replay-adatune", _clocks("C8")),
    "adatune-batched": ("replay-adatune", _clocks("BMM")),
    "memory-speed-length": ("memory-lengths", _recomputing("lengths", "steps")),
    "memory-lengths": ("memory-lengths", _lengths),
}


def draw(folder: Path) -> list[Path]:
    """Draws every figure whose results a folder has, from the newest of them; returns the files."""
    made = []
    for name, (results, make) in FIGURES.items():
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{results}-*.json"))]
        if reports:
            made.append(folder / f"{name}.svg")
            make(max(reports, key=lambda report: report["measured"]["date"]), made[-1])
    return made
