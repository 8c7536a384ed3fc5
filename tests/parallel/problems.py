"""Small models to plan: a network with branches and shared weights, and a chain of equal layers."""

import numpy as np

from burnish.graph.graph import GraphBuilder
from burnish.parallel.model.operations import operations


def weight(b, *shape):
    """A parameter without memory."""
    return b.constant(np.broadcast_to(np.float32(0), shape), b.fresh("w"))


def branches(batch=8):
    """Convolutions, a tensor joined with itself, dense layers, two steps of a cell that share weights."""
    b = GraphBuilder()
    x = b.input("x", (batch, 3, 16, 16))
    y = b.add("relu", b.add("conv2d", x, weight(b, 8, 3, 3, 3), pads=(1, 1, 1, 1)))
    z = b.add("max_pool2d", y, kernel=(2, 2), strides=(2, 2))
    y = b.add("conv2d", y, weight(b, 8, 8, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    y = b.add("concat", b.add("add", y, z), z, z, axis=1)
    y = b.add("matmul", b.add("reshape", y, shape=(batch, 24 * 64)), weight(b, 24 * 64, 32))
    h, c = b.input("h", (batch, 32)), b.input("c", (batch, 32))
    shared = weight(b, 32, 128), weight(b, 4, 32, 32)
    groups = []
    for _ in range(3):
        gates = b.add("matmul", y, shared[0])
        h, c = b.add_many("lstm_cell", gates, h, c, shared[1])
        groups.append([gates, h])
    return operations(b.build(b.add("matmul", h, weight(b, 32, 12)), c), groups=groups)


def layers(count, batch=8, width=16):
    """Equal dense layers, one after the other."""
    b = GraphBuilder()
    x = b.input("x", (batch, width))
    for _ in range(count):
        x = b.add("relu", b.add("matmul", x, weight(b, width, width)))
    return operations(b.build(x))
