"""Drawings of symbols: Graphviz's language, and SVG with the operators in rows behind what they read."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from burnish.array.symbol import Symbol, reachable

WIDTH, HEIGHT, GAP_X, GAP_Y = 150, 34, 20, 34  # pixels
_FILL = {"variable": "#dbeafe", "state": "#fef3c7", "constant": "#f3f4f6", "operator": "#dcfce7", "loss": "#fee2e2"}


def nodes_of(heads: Sequence[Symbol]) -> tuple[list[Symbol], list[tuple[int, int]]]:
    """One symbol for each application, in order, and the edges between them by number."""
    number: dict[object, int] = {}
    shown: list[Symbol] = []
    edges: dict[tuple[int, int], None] = {}
    for symbol in reachable(heads):
        if symbol.node not in number:
            number[symbol.node] = len(shown)
            shown.append(symbol)
        operands = () if symbol.kind in ("variable", "state") else symbol.inputs
        below = [*operands, *(value for _, value in symbol.updates)]
        for source in below:
            edges[number[source.node], number[symbol.node]] = None
    return shown, [edge for edge in edges if edge[0] != edge[1]]


def label(symbol: Symbol) -> tuple[str, str]:
    """Label of a symbol in a drawing: its name, and what it is."""
    if symbol.kind in ("operator", "loss"):
        attrs = ", ".join(f"{key}={value}" for key, value in symbol.attrs.items())
        return symbol.name, f"{symbol.operator}({attrs})" if attrs else symbol.operator
    shape = "" if symbol.shape is None else f" [{', '.join(str(getattr(d, 'axis', d)) for d in symbol.shape)}]"
    return symbol.name, f"{symbol.kind}{shape}"


def dot(heads: Sequence[Symbol]) -> str:
    """A drawing in Graphviz's language."""
    shown, edges = nodes_of(heads)
    lines = ["digraph symbols {", "  rankdir=BT;", "  node [shape=box, style=filled];"]
    for at, symbol in enumerate(shown):
        text = "\\n".join(part.replace("\\", "\\\\").replace('"', '\\"') for part in label(symbol))
        lines.append(f'  n{at} [label="{text}", fillcolor="{_FILL.get(symbol.kind, "#ffffff")}"];')
    lines += [f"  n{a} -> n{b};" for a, b in edges]
    return "\n".join([*lines, "}"]) + "\n"


def svg(heads: Sequence[Symbol]) -> str:
    """A drawing as SVG: what is read stands above what reads it."""
    shown, edges = nodes_of(heads)
    row = [0] * len(shown)
    for a, b in sorted(edges, key=lambda edge: edge[1]):
        row[b] = max(row[b], row[a] + 1)
    column, used = [0] * len(shown), dict[int, int]()
    for at in range(len(shown)):
        column[at] = used.get(row[at], 0)
        used[row[at]] = column[at] + 1
    x = [GAP_X + c * (WIDTH + GAP_X) for c in column]
    y = [GAP_Y + r * (HEIGHT + GAP_Y) for r in row]
    width = max(x, default=0) + WIDTH + GAP_X
    height = max(y, default=0) + HEIGHT + GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">'
    ]
    for a, b in edges:
        parts.append(
            f'<line x1="{x[a] + WIDTH // 2}" y1="{y[a] + HEIGHT}" x2="{x[b] + WIDTH // 2}" y2="{y[b]}" '
            'stroke="#6b7280"/>'
        )
    for at, symbol in enumerate(shown):
        name, what = (escape(text[:24]) for text in label(symbol))
        fill = _FILL.get(symbol.kind, "#ffffff")
        parts.append(
            f'<rect x="{x[at]}" y="{y[at]}" width="{WIDTH}" height="{HEIGHT}" rx="4" fill="{fill}" stroke="#374151"/>'
            f'<text x="{x[at] + 6}" y="{y[at] + 14}" font-weight="bold">{name}</text>'
            f'<text x="{x[at] + 6}" y="{y[at] + 28}">{what}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
