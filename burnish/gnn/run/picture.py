"""Picture of a partition: the vertices of each worker, its in-edges, and the rows that it reads of others, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

import numpy as np

from burnish.gnn.data.csr import CSR
from burnish.gnn.data.halo import halo_sizes

_WIDTH, _ROW, _GAP = 760, 22, 26
_COLORS = ("#1f4e8c", "#b9c7dc")


def partition_facts(csr: CSR, cuts: Sequence[int]) -> list[dict[str, int]]:
    """By worker: where its vertices begin and end, its vertices, in-edges, and the rows of its halo."""
    halo = halo_sizes(csr, np.asarray(cuts, np.int64))
    return [
        {
            "begin": int(begin), "end": int(end), "vertices": int(end - begin),
            "edges": int(csr.offsets[end] - csr.offsets[begin]), "halo": int(halo[k]),
        }
        for k, (begin, end) in enumerate(pairwise(cuts))
    ]  # fmt: skip


def partition_picture(facts: Sequence[dict[str, int]]) -> str:
    """One bar each for vertices, edges and halos, cut into workers, with numbers."""
    drawn, top = [], 4
    for what in ("vertices", "edges", "halo"):
        total = sum(f[what] for f in facts)
        drawn.append(f'<text x="0" y="{top + 12}">{escape(what)}: {total:,}</text>')
        top += 18
        at = 0.0
        for k, found in enumerate(facts):
            width = _WIDTH * found[what] / total if total else 0.0
            fill = _COLORS[k % 2]
            title = f"worker {k}: {found[what]:,} {what}"
            drawn.append(
                f'<rect x="{at:.1f}" y="{top}" width="{width:.1f}" height="{_ROW}" fill="{fill}">'
                f"<title>{escape(title)}</title></rect>"
            )
            at += width
        top += _ROW + _GAP
    return f'<svg width="{_WIDTH}" height="{top}">{"".join(drawn)}</svg>'
