"""Pictures of a tree and of importances, drawn by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from burnish.base.optional import require
from burnish.boost.importance import importance_by_name
from burnish.boost.render import picture
from burnish.errors import ParameterError

if TYPE_CHECKING:
    from burnish.boost.ensemble import Ensemble

_PIXELS = 100.0  # of an inch


def plot_tree(model: Ensemble, tree: int = 0, ax: Any = None) -> Any:
    """Draws one tree into `ax`, or a new figure as large as it needs; returns the axes.

    Raises ParameterError if the model has no such tree, MissingDependencyError without matplotlib.
    """
    boxes, lines, (width, height) = picture(model, tree)
    pyplot = require("matplotlib.pyplot", "plot")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(width / _PIXELS, height / _PIXELS))
    for (x1, y1), (x2, y2), label in lines:
        ax.plot([x1, x2], [y1, y2], color="#888888", linewidth=1, zorder=1)
        ax.text((x1 + x2) / 2, (y1 + y2) / 2, label, ha="center", va="center", fontsize=6, color="#666666")
    for x, y, label, leaf in boxes:
        shape = {"boxstyle": "round" if leaf else "square", "facecolor": "#e6f2e6" if leaf else "#e6ecf5"}
        ax.text(x, y, label, ha="center", va="center", fontsize=7, bbox=shape, zorder=2)
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)  # the root is above
    ax.set_axis_off()
    return ax


def plot_importance(model: Ensemble, kind: str = "gain", most: int = 20, ax: Any = None) -> Any:
    """Draws the importances of the `most` important features as bars into `ax`, or a new figure; returns the axes.

    Raises ParameterError for another kind or number, MissingDependencyError without matplotlib.
    """
    if most < 1:
        raise ParameterError(f"plot_importance: most: found {most}; allowed: 1 and more")
    scores = list(importance_by_name(model, kind).items())[:most]
    pyplot = require("matplotlib.pyplot", "plot")
    if ax is None:
        _, ax = pyplot.subplots(figsize=(6, 1 + 0.25 * max(len(scores), 1)))
    ax.barh([name for name, _ in scores], [score for _, score in scores])
    ax.invert_yaxis()  # the most important above
    ax.set_xlabel(kind)
    ax.set_title("feature importance")
    return ax
