"""Parts of operators against cuts of the whole: boxes of outputs, terms of sums, the boxes of inputs that they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from burnish.graph.evaluate import evaluate_node
from burnish.graph.graph import Node
from burnish.ops import operator_named
from burnish.ops.part import Box, attributes_of, extents_of, part_reads, sum_of
from burnish.ops.reads import defined

RANDOM = np.random.default_rng(3)


def cut(array: np.ndarray, box: Box) -> np.ndarray:
    return np.ascontiguousarray(array[tuple(slice(*span) for span in box)]).reshape(extents_of(box))


def part(
    op: str, arrays: list[np.ndarray], box: Box, reduced: Box = (), output: int = 0, **attrs: Any
) -> tuple[np.ndarray, Any]:
    """The part, computed from the boxes that it says it reads, and these."""
    operator = operator_named(op)
    attributes, types = attributes_of(operator, attrs), tuple((a.shape, str(a.dtype)) for a in arrays)
    reads = part_reads(operator_named, op, attributes, types, output, box, reduced)
    given = [cut(a, b) for a, b in zip(arrays, reads.boxes, strict=True) if b is not None]
    own = {"operator": op, "attributes": attributes, "types": types, "output": output, "box": box, "reduced": reduced}
    (found,) = evaluate_node(Node("output_part", tuple("abcd"[: len(given)]), ("y",), own), given)
    if reads.plain:
        (plain,) = evaluate_node(Node(op, tuple("abcd"[: len(given)]), ("y",), attrs), given)
        assert np.array_equal(plain, found)
    return found, reads


def drawn(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape)


CASES: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
    ("relu", [drawn(4, 6)], {}),
    ("add", [drawn(4, 6), drawn(6)], {}),
    ("matmul", [drawn(4, 5), drawn(5, 6)], {}),
    ("matmul", [drawn(2, 4, 5), drawn(2, 6, 5)], {"transpose_b": True}),
    ("conv2d", [drawn(2, 3, 7, 6), drawn(4, 3, 3, 3), drawn(4)], {"pads": (1, 1, 1, 1)}),
    ("conv2d", [drawn(2, 4, 8, 7), drawn(6, 2, 3, 3)], {"strides": (2, 1), "pads": (1, 0, 2, 1), "groups": 2}),
    ("conv2d_transpose", [drawn(2, 3, 4, 4), drawn(3, 2, 3, 3)], {"strides": (2, 2)}),
    ("max_pool2d", [drawn(2, 3, 8, 8)], {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ("softmax", [drawn(3, 4, 5)], {"axis": 1}),
    ("reshape", [drawn(4, 6)], {"shape": (2, 2, 3, 2)}),
    ("transpose", [drawn(2, 3, 4)], {"perm": (2, 0, 1)}),
    ("concat", [drawn(2, 3), drawn(4, 3)], {"axis": 0}),
    ("slice", [drawn(6, 7)], {"starts": (5, 1), "extents": (3, 3), "steps": (-2, 2)}),
    ("reduce_sum", [drawn(3, 4, 5)], {"axes": (1,)}),
    ("reduce_max", [drawn(3, 4, 5)], {"axes": (0, 2)}),
    ("gather", [drawn(9, 4), RANDOM.integers(0, 9, (5,))], {"axis": 0}),
    ("lstm_cell", [drawn(4, 12), drawn(4, 3), drawn(4, 3), drawn(4, 3, 3)], {}),
]


@pytest.mark.parametrize(("op", "arrays", "attrs"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_parts_are_cuts_of_the_whole(op: str, arrays: list[np.ndarray], attrs: dict[str, Any]) -> None:
    names = tuple(f"x{i}" for i in range(len(arrays)))
    operator = operator_named(op)
    tensors = defined(
        operator_named, op, attributes_of(operator, attrs), tuple((a.shape, str(a.dtype)) for a in arrays)
    )
    wholes = evaluate_node(Node(op, names, tuple(f"y{i}" for i in range(len(tensors))), attrs), arrays)
    for output, whole in enumerate(wholes):
        for _ in range(6):
            starts = [int(RANDOM.integers(0, n)) for n in whole.shape]
            box = tuple((a, int(RANDOM.integers(a, n)) + 1) for a, n in zip(starts, whole.shape, strict=True))
            found, _ = part(op, arrays, box, (), output, **attrs)
            np.testing.assert_allclose(found, cut(whole, box), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("op", "arrays", "attrs"), [case for case in CASES if case[0] in ("matmul", "conv2d", "reduce_sum")]
)
def test_terms_of_a_sum_add_up(op: str, arrays: list[np.ndarray], attrs: dict[str, Any]) -> None:
    if len(arrays) > 2:
        arrays = arrays[:2]  # a bias is no term: what it is added to is not split
    operator = operator_named(op)
    (tensor,) = defined(
        operator_named, op, attributes_of(operator, attrs), tuple((a.shape, str(a.dtype)) for a in arrays)
    )
    extents = sum_of(tensor).extents
    assert extents
    (whole,) = evaluate_node(Node(op, ("a", "b")[: len(arrays)], ("y",), attrs), arrays)
    box = tuple((0, n) for n in whole.shape)
    rest = tuple((0, n) for n in extents[1:])
    middle = extents[0] // 2
    terms = [part(op, arrays, box, ((a, b), *rest), **attrs)[0] for a, b in ((0, middle), (middle, extents[0]))]
    np.testing.assert_allclose(terms[0] + terms[1], whole, rtol=1e-12, atol=1e-12)


def test_a_sum_with_an_epilogue_is_not_split() -> None:
    types = (((2, 3, 7, 6), "float32"), ((4, 3, 3, 3), "float32"), ((4,), "float32"))
    (tensor,) = defined(operator_named, "conv2d", (), types)
    assert not sum_of(tensor).extents


def test_a_convolution_reads_a_halo_and_no_padding() -> None:
    arrays = [drawn(1, 2, 8, 8), drawn(3, 2, 3, 3)]
    _, reads = part("conv2d", arrays, ((0, 1), (0, 3), (2, 4), (0, 8)), pads=(1, 1, 1, 1))
    assert reads.boxes[0] == ((0, 1), (0, 2), (1, 5), (0, 8))
    _, reads = part("conv2d", arrays, ((0, 1), (1, 2), (0, 2), (0, 8)), pads=(1, 1, 1, 1))
    assert reads.boxes == (((0, 1), (0, 2), (0, 3), (0, 8)), ((1, 2), (0, 2), (0, 3), (0, 3)))


def test_parts_by_samples_and_channels_are_the_operator_itself() -> None:
    arrays = [drawn(4, 2, 8, 8), drawn(6, 2, 3, 3)]
    assert part("conv2d", arrays, ((2, 4), (0, 3), (0, 8), (0, 8)), pads=(1, 1, 1, 1))[1].plain
    assert not part("conv2d", arrays, ((0, 4), (0, 6), (4, 8), (0, 8)), pads=(1, 1, 1, 1))[1].plain
    assert part("matmul", [drawn(4, 5), drawn(5, 6)], ((0, 2), (3, 6)), ((1, 3),))[1].plain
