"""Aggregations over neighbours by blocks of sources, where that is estimated to be faster than vertex by vertex.

A sum or mean of dense graphs gathers each source many times. With the edges in order of blocks of sources that stay in
the second-level cache, it gathers from there; every block then costs a pass over the sums.
"""

from __future__ import annotations

from math import prod

from burnish.graph.costs import cache_seconds, memory_seconds
from burnish.graph.graph import Graph, Node, TensorType
from burnish.loops.expr import ITEM_BYTES
from burnish.machines.target import Target
from burnish.ops import infer

LANES = 32  # features of a panel: two vectors of 64 bytes, whose sums do not wait for each other
# Bytes of a panel of a block of sources. More blocks cost more passes over the sums, and what leaves a second-level
# cache of 1 MB (Zen with AVX-512) comes from the third; with 2 MB (Sapphire Rapids) the best block is as large.
BLOCK_BYTES = 3 << 19
CACHE_RATE = 3.0  # of a gather from the second-level cache, over one from the third: measured on Zen, AVX-512
DTYPES = ("float32", "bfloat16")  # of rows; bfloat16 is summed in float32
MOST_SIZE = 64  # features of a head, of which a panel holds whole ones
VISIT_SECONDS = 8e-9  # of a vertex in a block, of one panel: two offsets, a branch, a row of sums


def block_aggregations(graph: Graph, target: Target) -> Graph:
    """``graph`` with the sums and means over neighbours that gain by it in blocks. Structures that are constant, or
    computed by anything but operators on structures, stay as they are, and so do graphs with open dimensions.
    """
    if graph.dims:
        return graph
    types = dict(graph.types)
    made: dict[tuple[str, str, int], tuple[str, str]] = {}
    ordered: dict[tuple[str, str, int, str], str] = {}
    nodes: list[Node] = []
    inputs = {*graph.inputs} - {*graph.states}
    for node in graph.nodes:
        operands = _operands(node)
        rows = block_rows(graph, node, target) if operands and inputs.issuperset(operands[1:]) else 0
        if not rows:
            nodes.append(node)
            continue
        x, offsets, sources, *weights = operands
        more = node.inputs[1:5] if node.op == "attention_sum" else ()
        extent = graph.types[x].shape[0]
        key = offsets, sources, extent
        if key not in made:
            made[key] = pointers, places = f"{sources}.pointers{extent}", f"{sources}.places{extent}"
            attrs = {"extent": extent, "rows": rows}
            nodes.append(_structure("csr_block_pointers", (offsets, sources), pointers, attrs, types))
            nodes.append(_structure("csr_block_places", (offsets, sources, pointers), places, attrs, types))
        for weight in weights:
            if (*key, weight) not in ordered:
                ordered[*key, weight] = f"{weight}.by_block{extent}"
                given, attrs = (offsets, sources, made[key][0], weight), {"extent": extent, "rows": rows}
                nodes.append(_structure("csr_block_weights", given, ordered[*key, weight], attrs, types))
        read = (x, *more, offsets, *made[key], *(ordered[*key, weight] for weight in weights))
        op = "attention_sum_blocks" if more else "aggregate_blocks"
        nodes.append(Node(op, read, node.outputs, {**node.attrs, "rows": rows}, node.name))
    return graph.with_nodes(nodes, types=types) if made else graph


def _operands(node: Node) -> tuple[str, ...]:
    """The rows, offsets and sources of a sum or mean over neighbours, and its weights if there are; none of others."""
    if node.op == "aggregate":
        return node.inputs[:3]
    if node.op == "aggregate_weighted":
        return (node.inputs[0], *node.inputs[2:4], node.inputs[1])
    if node.op == "attention_sum":
        return (node.inputs[0], *node.inputs[5:7])
    return ()


def _structure(
    op: str, inputs: tuple[str, ...], output: str, attrs: dict[str, int], types: dict[str, TensorType]
) -> Node:
    ((shape, dtype),) = infer(op, [(types[n].shape, types[n].dtype) for n in inputs], attrs)
    types[output] = TensorType(shape, dtype)
    return Node(op, inputs, (output,), dict(attrs))


def block_rows(graph: Graph, node: Node, target: Target) -> int:
    """Sources of a block for an aggregation; 0 where it is estimated to be faster vertex by vertex."""
    source, result = graph.types[node.inputs[0]], graph.types[node.outputs[0]]
    edges = graph.types[_operands(node)[2]].shape[0]
    if node.attrs.get("reduction", "sum") == "max" or source.dtype not in DTYPES or edges >= 1 << 31:
        return 0
    (count, *sizes), vertices = source.shape, result.shape[0]
    width = prod(sizes)
    if len(sizes) > 1 and sizes[-1] > MOST_SIZE:
        return 0
    size = ITEM_BYTES[source.dtype]
    rows = min(BLOCK_BYTES, target.l2_bytes * 3 // 2) // (LANES * size)
    if count * width * size <= target.l2_bytes or not vertices or rows < 1:
        return 0
    blocks, panels = -(-count // rows), -(-width // LANES)
    gathered = edges * max(width, 16) * size
    resident = count * width * size <= target.l3_bytes
    slow = cache_seconds(gathered, target) if resident else memory_seconds(gathered, target)
    visits = VISIT_SECONDS * vertices * blocks * panels / target.cores
    streamed = memory_seconds(2 * vertices * prod(result.shape[1:]) * 4 * blocks, target)
    return rows if cache_seconds(gathered, target) / CACHE_RATE + visits + streamed < slow else 0
