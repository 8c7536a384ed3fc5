"""Trees as text, as Graphviz dot, and as self-contained SVG drawings."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from burnish.boost.tree import PRESENT
from burnish.errors import ParameterError

if TYPE_CHECKING:
    from burnish.boost.ensemble import Ensemble
    from burnish.boost.tree import Tree

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 132, 40, 14, 44  # of a node's box, and between boxes, in pixels
_SHOWN = 6  # categories that a test lists before it abbreviates


def text(model: Ensemble, tree: int, statistics: bool = True) -> str:
    """One tree, a node on each line, indented by depth. Raises ParameterError if the model has no such tree."""
    chosen = _tree(model, tree)
    lines: list[str] = []
    stack = [(0, 0, "")]
    while stack:
        node, depth, branch = stack.pop()
        line = "  " * depth + branch + _label(model, chosen, node)
        if statistics:
            gain = f"gain {chosen.gain[node]:.6g}, " if chosen.left[node] >= 0 else ""
            line += f"  ({gain}cover {chosen.cover[node]:.6g})"
        lines.append(line)
        if chosen.left[node] >= 0:
            left, right = _branches(chosen, node)
            stack.append((int(chosen.right[node]), depth + 1, f"{right}: "))
            stack.append((int(chosen.left[node]), depth + 1, f"{left}: "))
    return "\n".join(lines) + "\n"


def dot(model: Ensemble, tree: int) -> str:
    """One tree in the language of Graphviz: tests in boxes, leaves in ellipses. Raises ParameterError."""
    chosen = _tree(model, tree)
    lines = [f"digraph tree{tree} {{", "  node [fontname=sans];"]
    for node in range(chosen.size):
        leaf = chosen.left[node] < 0
        lines.append(f"  {node} [label={_quoted(_label(model, chosen, node))}, shape={'ellipse' if leaf else 'box'}];")
        if not leaf:
            for child, name in zip((chosen.left[node], chosen.right[node]), _branches(chosen, node), strict=True):
                lines.append(f"  {node} -> {child} [label={_quoted(name)}];")
    return "\n".join([*lines, "}", ""])


def svg(model: Ensemble, tree: int) -> str:
    """One tree as an SVG drawing. Raises ParameterError."""
    boxes, lines, (width, height) = picture(model, tree)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" font-size="11" text-anchor="middle">'
    ]
    for (x1, above), (x2, below), name in lines:
        y1, y2 = above + _HEIGHT / 2, below - _HEIGHT / 2
        parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#888"/>')
        parts.append(f'<text x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2:g}" fill="#666">{escape(name)}</text>')
    for x, y, label, leaf in boxes:
        left, top = x - _WIDTH / 2, y - _HEIGHT / 2
        parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="{16 if leaf else 3}" '
            f'fill="{"#e6f2e6" if leaf else "#e6ecf5"}" stroke="#555"/>'
        )
        for line, offset in zip(label.rsplit("\n", 1), (17, 32), strict=True):
            parts.append(f'<text x="{x:g}" y="{top + offset:g}">{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def picture(
    model: Ensemble, tree: int
) -> tuple[
    list[tuple[float, float, str, bool]],
    list[tuple[tuple[float, float], tuple[float, float], str]],
    tuple[float, float],
]:
    """A tree to be drawn: boxes (middle x, y, label, whether a leaf), lines between them with labels, and the size.

    y grows downwards. Raises ParameterError.
    """
    chosen = _tree(model, tree)
    x, y = _places(chosen)
    middles = [(left + _WIDTH / 2, top + _HEIGHT / 2) for left, top in zip(x, y, strict=True)]
    boxes = [
        (*middles[node], f"{_label(model, chosen, node)}\ncover {chosen.cover[node]:.5g}", bool(chosen.left[node] < 0))
        for node in range(chosen.size)
    ]
    lines = [
        (middles[node], middles[child], name)
        for node in range(chosen.size)
        if chosen.left[node] >= 0
        for child, name in zip((int(chosen.left[node]), int(chosen.right[node])), _branches(chosen, node), strict=True)
    ]
    return boxes, lines, (max(x) + _WIDTH + _GAP_X, max(y) + _HEIGHT + _GAP_X)


def _places(tree: Tree) -> tuple[list[float], list[float]]:
    """Upper left corners: leaves side by side in their order, every inner node in the middle above its children."""
    x, y = [0.0] * tree.size, [float(_GAP_X)] * tree.size
    column = 0
    stack = [0]
    while stack:
        node = stack.pop()
        if tree.left[node] < 0:
            x[node] = _GAP_X + column * (_WIDTH + _GAP_X)
            column += 1
        else:
            for child in (int(tree.right[node]), int(tree.left[node])):
                y[child] = y[node] + _HEIGHT + _GAP_Y
                stack.append(child)
    for node in reversed(range(tree.size)):  # children come after their parent
        if tree.left[node] >= 0:
            x[node] = (x[tree.left[node]] + x[tree.right[node]]) / 2
    return x, y


def _label(model: Ensemble, tree: Tree, node: int) -> str:
    """Label of a node: its test, or the value of a leaf."""
    if tree.left[node] < 0:
        return f"value {tree.value[node]:.6g}"
    name = model.names[tree.feature[node]]
    listed = tree.categories(node).tolist()
    known = model.categories[tree.feature[node]] if model.categories else None
    if not listed:
        if known is not None and tree.threshold[node] == PRESENT:
            return f"{name} in any category"
        return f"{name} < {tree.threshold[node]:.6g}"
    shown = [str(known[c]) if known is not None and c < len(known) else str(c) for c in listed[:_SHOWN]]
    more = [f"… {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    return f"{name} not in {{{', '.join(shown + more)}}}"


def _branches(tree: Tree, node: int) -> tuple[str, str]:
    """Edge labels to the left and to the right child."""
    left = bool(tree.default_left[node])
    return ("yes, missing" if left else "yes"), ("no" if left else "no, missing")


def _quoted(label: str) -> str:
    return '"' + label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _tree(model: Ensemble, tree: int) -> Tree:
    if not 0 <= tree < len(model.trees):
        raise ParameterError(f"render: tree is {tree}, allowed: 0 … {len(model.trees) - 1}")
    return model.trees[tree]
