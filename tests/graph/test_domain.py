"""Domains of a model's inputs, through the operators between them and where they are used."""

from __future__ import annotations

from math import inf

import numpy as np

from burnish.graph.domain import input_domains
from burnish.graph.graph import GraphBuilder


def test_indices_divisors_and_roots() -> None:
    b = GraphBuilder()
    table = b.constant(np.zeros((10, 4), np.float32))
    ids, deep, n, d, x, free = (
        b.input(name, (4,), dtype)
        for name, dtype in (
            ("ids", "int64"), ("deep", "int32"), ("n", "int32"), ("d", "int32"), ("x", "float32"), ("free", "int8"))
    )  # fmt: skip
    rows = b.add("gather", table, ids)
    hot = b.add("one_hot", b.add("cast", deep, to="int64"), b.constant(np.array([0, 1], np.float32)), depth=7)
    rest = b.add("mod", n, d)
    outputs = (rows, hot, rest, b.add("sqrt", x), b.add("add", free, free))
    assert input_domains(b.build(*outputs)) == {"ids": (0, 9), "deep": (0, 6), "d": (1, inf), "x": (0.5, inf)}


def test_positions_that_the_model_computes() -> None:
    b = GraphBuilder()
    data = b.input("data", (12, 3))
    one, other = b.input("one", (2, 3), "int64"), b.input("other", (2, 3), "int64")
    moved = b.add("add", b.add("transpose", b.add("concat", one, other, axis=0), perm=(1, 0)), b.constant(4))
    picked = b.add("gather_elements", data, b.add("transpose", moved, perm=(1, 0)), axis=0)
    sums = b.add("gather", data, b.add("cumsum", b.input("mask", (4,), "int64"), axis=0))
    found = input_domains(b.build(picked, sums))
    assert found == {"one": (-4, 7), "other": (-4, 7), "mask": (0, 2)}


def test_what_networks_do_with_floats_leaves_them_free() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8))
    y = b.add("log_softmax", b.add("layer_norm", x, axis=-1))
    assert input_domains(b.build(y)) == {}
