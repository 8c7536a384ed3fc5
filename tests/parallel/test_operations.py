"""Operations and their axes: table 3.1, halos, folding, weights that are shared."""

import numpy as np
import pytest

from burnish.errors import PlanError
from burnish.graph.graph import GraphBuilder
from burnish.parallel.model.operations import micro_batches, operations


def built(op, *shapes, weights=(), **attrs):
    b = GraphBuilder()
    names = [b.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    names += [b.constant(np.zeros(shape, np.float32), f"w{i}") for i, shape in enumerate(weights)]
    return operations(b.build(b.add(op, *names, **attrs))).operations[0]


def roles(op):
    return {axis.name: axis.role for axis in op.axes}


def test_table_3_1():
    """Parallelizable dimensions of the thesis' examples; one dimension is a height of 1, which has no axis."""
    pool = built("max_pool2d", (4, 8, 1, 16), kernel=(1, 2), strides=(1, 2))
    assert list(roles(pool).values()) == ["sample", "attribute", "attribute"]  # channel, length
    conv1 = built("conv2d", (4, 8, 1, 16), weights=[(6, 8, 1, 3)])
    assert [r for r in roles(conv1).values() if r != "reduction"] == ["sample", "parameter", "attribute"]
    conv2 = built("conv2d", (4, 8, 16, 16), weights=[(6, 8, 3, 3)])
    assert [r for r in roles(conv2).values() if r != "reduction"] == ["sample", "parameter", "attribute", "attribute"]
    product = built("matmul", (4, 8), weights=[(8, 6)])
    assert list(roles(product).values()) == ["sample", "parameter", "reduction"]


def test_a_part_of_a_convolution_reads_a_halo():
    op = built("conv2d", (4, 8, 16, 16), weights=[(6, 8, 3, 3)], pads=(1, 1, 1, 1))
    spans = op.full(2)
    row = [axis.dim for axis in op.axes].index(2)
    spans[row][0][:], spans[row][1][:] = [0, 8], [8, 16]
    (box,) = op.regions(spans)["x0"]
    assert box.low[2].tolist() == [0, 7]
    assert box.high[2].tolist() == [9, 16]


def test_a_part_of_a_cell_reads_its_columns_of_every_gate():
    b = GraphBuilder()
    x, h, c = (b.input(n, (2, 8)) for n in "xhc")
    gates = b.add("matmul", x, b.constant(np.zeros((8, 32), np.float32), "w"))
    new = b.add_many("lstm_cell", gates, h, c, b.constant(np.zeros((4, 8, 8), np.float32), "r"))
    (op,) = operations(b.build(*new), groups=[[gates, new[0]]]).operations
    assert list(roles(op).values()) == ["sample", "parameter"]
    spans = op.full(1)
    spans[1][1][:] = 4
    columns = sorted((int(box.low[1, 0]), int(box.high[1, 0])) for box in op.regions(spans)["w"])
    assert columns == [(0, 4), (8, 12), (16, 20), (24, 28)]


def chain():
    b = GraphBuilder()
    x = b.input("x", (4, 3, 8, 8))
    w = [b.constant(np.zeros(s, np.float32), f"w{i}") for i, s in enumerate([(6, 3, 3, 3), (6,), (216, 5), (5,)])]
    y = b.add("relu", b.add("conv2d", x, w[0], w[1]))
    z = b.add("matmul", b.add("reshape", y, shape=(4, 216)), w[2])
    return b.build(b.add("relu", b.add("add", z, w[3])))


def test_elementwise_nodes_join_their_producer_and_views_their_reader():
    model = operations(chain())
    assert [[n.op for n in op.nodes] for op in model.operations] == [
        ["conv2d", "relu"],
        ["reshape", "matmul", "add", "relu"],
    ]
    assert [(e.producer, e.consumer) for e in model.edges] == [(0, 1)]


def test_micro_batches_share_parameters():
    model = micro_batches(operations(chain()), 3)
    assert len(model.operations) == 6
    assert model.readers["w0"] == (0, 2, 4)
    assert [(e.producer, e.consumer) for e in model.edges] == [(0, 1), (2, 3), (4, 5)]
    with pytest.raises(PlanError, match="0 micro-batches"):
        micro_batches(model, 0)


def test_groups_are_checked():
    graph = chain()
    with pytest.raises(PlanError, match="node 'none'"):
        operations(graph, groups=[["none"]])
    with pytest.raises(PlanError, match="parameter 'none'"):
        operations(graph, parameters=["none"])
