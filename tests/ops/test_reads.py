"""Read analysis against enumeration of what the elements of a box read."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from burnish.loops.expr import Const, Expr, Var, cast, select, wrap
from burnish.loops.simplify import simplify
from burnish.loops.tensor import compute, placeholder
from burnish.loops.traverse import substitute
from burnish.ops import operator_named
from burnish.ops.reads import (
    Interval,
    accesses,
    bodies,
    boxes_between,
    hull,
    interval,
    read_map,
    read_regions,
    stage_boxes,
)

CASES: list[tuple[str, list[tuple[int, ...]], dict[str, Any], list[tuple[int, int]]]] = [
    ("matmul", [(4, 5), (5, 6)], {}, [(1, 3), (2, 5)]),
    ("conv2d", [(1, 2, 7, 6), (3, 2, 3, 2)], {"pads": (1, 0, 1, 1), "strides": (2, 1)},
     [(0, 1), (1, 2), (0, 3), (4, 6)]),
    ("slice", [(6, 7)], {"starts": (5, 1), "extents": (3, 3), "steps": (-2, 2)}, [(1, 3), (0, 2)]),
    ("softmax", [(3, 4, 5)], {"axis": 1}, [(1, 2), (0, 2), (3, 5)]),
    ("transpose", [(2, 3, 4)], {"perm": (2, 0, 1)}, [(1, 3), (0, 2), (2, 3)]),
]  # fmt: skip


def spans(*pairs: tuple[int, int]) -> list[Interval]:
    return [(np.array([a]), np.array([b])) for a, b in pairs]


@pytest.mark.parametrize(("name", "shapes", "attrs", "box"), CASES, ids=lambda value: str(value)[:12])
def test_boxes_are_around_all_that_is_read(
    name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], box: list[tuple[int, int]]
) -> None:
    types = tuple((shape, "float32") for shape in shapes)
    known = read_map(operator_named, name, tuple(attrs.items()), types)
    low, high = (np.array([span[end] for span in box])[:, None] for end in (0, 1))
    found = read_regions(known, shapes, {0: (boxes_between(low, high),)}, {})
    stages = stage_boxes(known.outputs[0], boxes_between(low, high))
    read: dict[int, list[tuple[int, ...]]] = {i: [] for i in range(len(shapes))}
    variables = {**dict(zip(known.axes[0], box, strict=True)), **{v: (0, n) for v, n in known.extents.items()}}
    for access in known.accesses:
        names = [v for v in variables if any(v in index.variables for index in access.indices)]
        for point in product(*(range(*variables[v]) for v in names)):
            at: dict[str, Expr] = {v: wrap(k) for v, k in zip(names, point, strict=True)}
            place = tuple(value_of(substitute(index, at)) for index in access.indices)
            if all(0 <= k < n for k, n in zip(place, shapes[access.operand], strict=True)):
                read[access.operand].append(place)
    for operand, places in read.items():
        for around in (hull(found[operand]), stages[f"x{operand}"]):
            assert around.low[:, 0].tolist() == np.min(places, axis=0).tolist()
            assert around.high[:, 0].tolist() == (np.max(places, axis=0) + 1).tolist()
        assert hull(found[operand]).volume[0] == len({*places}) or name == "slice"


def value_of(index: Expr) -> int:
    known = simplify(index, {})
    assert isinstance(known, Const)
    return int(known.value)


def test_intervals_of_indices() -> None:
    i, table = Var("i"), placeholder((4,), "uint8", "t")
    at = {"i": (np.array([2, 9]), np.array([5, 11]))}

    def of(e: Expr) -> list[list[int]] | None:
        found = interval(e, at)
        return None if found is None else [end.tolist() for end in found]

    assert of(i * -3 + 1) == [[-11, -29], [-4, -25]]
    assert of((i + 1) % 8) == [[3, 2], [6, 4]]
    assert of(i // 4) == [[0, 2], [2, 3]]
    assert of(select(i < 3, i + 10, wrap(0))) == [[0, 0], [15, 21]]
    assert of(cast("int64", table[i])) == [[0, 0], [256, 256]]
    assert of(cast("int64", placeholder((4,), "int32", "t")[i])) is None


def test_bodies_of_inner_stages_stand_where_they_are_read() -> None:
    x = placeholder((6,), "float32", "x")
    inner = compute((5,), lambda i: x[i] * cast("float32", i), "y.inner")
    y = compute((4,), lambda i: inner[i + 1] + 1.0, "y")
    assert [str(index) for a in accesses(y) for index in a.indices] == ["(i + 1)"]
    assert ["i" in body.variables for body in bodies(y)] == [True, True]
    assert str(bodies(y)[1]) == "(x[(i + 1)] * float32((i + 1)))"
