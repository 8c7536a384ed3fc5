"""The pipeline of graph passes that every model goes through before layout and fusion."""

from __future__ import annotations

from functools import partial

from burnish.base import dump
from burnish.graph.affine import fold_affine
from burnish.graph.bands import compute_masks
from burnish.graph.block_products import multiply_blocks
from burnish.graph.canonical import canonicalize
from burnish.graph.decompose import decompose
from burnish.graph.eliminate import eliminate
from burnish.graph.fold import fold
from burnish.graph.graph import Graph
from burnish.graph.halves import widen_images
from burnish.graph.integer_products import multiply_integers
from burnish.graph.outputs import own_outputs
from burnish.graph.share import share_constants
from burnish.graph.siblings import merge_products
from burnish.graph.unit_axes import keep_unit_axes
from burnish.machines.target import Target


def optimize(graph: Graph, exact: bool = False, target: Target | None = None) -> Graph:
    """``graph`` folded, cleaned and in canonical form. ``exact`` forbids rewrites that change how a value is rounded
    beyond what folding constants into weights does. ``target``: the machine that it is for, where that is known.
    """
    canonical = partial(canonicalize, exact=exact)
    dump.form("import", graph)
    if target is not None and not exact:
        graph = widen_images(multiply_integers(multiply_blocks(graph, target), target), target)
    steps = (
        fold,
        decompose,
        eliminate,
        keep_unit_axes,
        eliminate,
        canonical,
        fold,
        fold_affine,
        share_constants,
        eliminate,
        own_outputs,
    )
    graph = dump.through(graph, steps)
    return graph if target is None else merge_products(compute_masks(graph, target), target)
