"""Pictures of training as one self-contained HTML page of SVG: the loss curve, and live memory over a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from burnish.fitting.report import TrainingReport

_WIDTH, _HEIGHT, _LEFT, _BELOW = 760, 240, 72, 34  # of a plot, and of its margins for numbers, in pixels
_POINTS = 1000  # of a curve: more are averaged, as no screen shows them
_SMOOTH = 50  # parts of a curve, whose means are the smooth one
_COLORS = ("#b9c7dc", "#1f4e8c", "#c8501e")
_TICKS = 5
Curve = tuple[str, Sequence[float], Sequence[float]]  # name, x, y


def page(report: TrainingReport, more: Sequence[str] = ()) -> str:
    """The page, with parts of HTML that come last. Curves of more than 1,000 points are averaged over equal parts."""
    losses = np.asarray(report.losses, np.float64)
    calls = np.arange(1, len(losses) + 1)
    curves: list[Curve] = [("loss", *_averaged(calls, losses, _POINTS)), ("mean", *_averaged(calls, losses, _SMOOTH))]
    if report.evaluations:
        found = report.evaluations
        curves.append(("validation", [e.call for e in found], [e.loss for e in found]))
    live = [n / 1e6 for n in report.live]
    memory = ", ".join(f"{kind} {nbytes / 1e6:.2f} MB" for kind, nbytes in report.memory.items())
    summary = (
        f"{report.calls} batches, {report.updates} updates, {report.epochs} epochs in {report.seconds:.1f} s; "
        f"ended by {report.stop_reason}; {memory}"
    )
    parts = [f"<p>{escape(summary)}</p>", "<h2>Loss by batch</h2>", _plot(curves)]
    if report.best is not None:
        metrics = "".join(f", {name} {value:.4f}" for name, value in report.best.metrics.items())
        text = f"best validation loss {report.best.loss:.4f} after {report.best.call} batches{metrics}"
        parts.append(f"<p>{escape(text)}</p>")
    if live:
        parts += ["<h2>Live activations by kernel of a step, MB</h2>", _plot([("live", [*range(len(live))], live)])]
    parts += more
    style = "body{font:14px sans-serif;margin:2em;max-width:50em}text{font:11px sans-serif;fill:#444}"
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><title>Training</title><style>{style}</style></head>'
        f"<body><h1>Training</h1>{''.join(parts)}</body></html>\n"
    )


def _averaged(x: np.ndarray, y: np.ndarray, most: int) -> tuple[list[float], list[float]]:
    """Averaged points of a curve, at most ``most``: means over equal parts; what is not finite is left out."""
    kept = np.isfinite(y)
    x, y = x[kept], y[kept]
    if len(x) <= most:
        return x.tolist(), y.tolist()
    parts = [*zip(np.array_split(x, most), np.array_split(y, most), strict=True)]
    return [float(a.mean()) for a, _ in parts], [float(b.mean()) for _, b in parts]


def _plot(curves: Sequence[Curve]) -> str:
    """Curves in one frame, with numbers at both axes and the curves' names."""
    xs = [v for _, x, _ in curves for v in x]
    ys = [v for _, _, y in curves for v in y]
    if not xs:
        return "<p>nothing yet</p>"
    (left, right), (low, high) = (min(xs), max(xs)), (min(0.0, *ys), max(ys))
    across, up = (right - left) or 1.0, (high - low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (x - left) / across * _WIDTH, (1 - (y - low) / up) * _HEIGHT + 8

    drawn = []
    for tick in range(_TICKS):
        y = low + up * tick / (_TICKS - 1)
        (_, row), x = place(left, y), left + across * tick / (_TICKS - 1)
        column, _ = place(x, low)
        drawn.append(f'<line x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{row:.1f}" y2="{row:.1f}" stroke="#e4e4e4"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{row + 4:.1f}" text-anchor="end">{_short(y)}</text>')
        drawn.append(f'<text x="{column:.1f}" y="{_HEIGHT + 26}" text-anchor="middle">{_short(x)}</text>')
    for number, (name, x_values, y_values) in enumerate(curves):
        color = _COLORS[number % len(_COLORS)]
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in zip(x_values, y_values, strict=True))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        at = _LEFT + _WIDTH - 80 * (len(curves) - number)
        drawn.append(f'<text x="{at}" y="18" style="fill:{color}">{escape(name)}</text>')
    return f'<svg width="{_LEFT + _WIDTH + 20}" height="{_HEIGHT + _BELOW}">{"".join(drawn)}</svg>'


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.3g}"
