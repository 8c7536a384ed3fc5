"""An operator under another name, whose stages have other names too, gets the same template and the same code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from burnish.kernels.constants import split_constants
from burnish.kernels.task import Task
from burnish.kernels.templates import first_match
from burnish.loops.layout import layout
from burnish.loops.tensor import placeholder
from burnish.ops import OPERATORS
from burnish.target import target

BLOCKED = "ABCD16b"
IMAGE = {"x": (1, 32, 16, 16), "w": (32, 32, 3, 3)}
OPERATIONS = {  # template: operator, shapes, attributes, whether images are blocked
    "direct_conv2d": ("conv2d", IMAGE, {}, True),
    "depthwise_conv2d": ("conv2d", {"x": (1, 32, 9, 9), "w": (32, 1, 3, 3)}, {"groups": 32}, True),
    "depthwise_rows": ("conv2d", {"x": (1, 8, 32, 32), "w": (8, 1, 3, 3)}, {"groups": 8}, False),
    "grouped_conv2d": ("conv2d", {"x": (1, 32, 9, 9), "w": (32, 4, 3, 3)}, {"groups": 8}, True),
    "pointwise_conv2d": ("conv2d", {"x": (1, 64, 1, 3136), "w": (64, 64, 1, 1)}, {}, False),
    "conv2d_transpose_phases": (
        "conv2d_transpose", {"x": (1, 32, 8, 8), "w": (32, 32, 4, 4)}, {"strides": (2, 2)}, True,
    ),
    "conv2d_transpose_pixel": ("conv2d_transpose", {"x": (1, 32, 1, 1), "w": (32, 32, 4, 4)}, {}, True),
    "pool2d": ("max_pool2d", {"x": (1, 32, 16, 16)}, {"kernel": (3, 3)}, True),
    "pool_rows": ("avg_pool2d", {"x": (1, 4, 32, 32)}, {"kernel": (2, 2), "strides": (2, 2)}, False),
    "neighbouring_channels": ("lrn", {"x": (1, 32, 8, 8)}, {"size": 5}, True),
    "winograd_conv2d": ("winograd_conv2d", {"x": (1, 32, 16, 16), "w": (6, 6, 32, 32)}, {}, True),
    "polyphase_conv2d": (
        "polyphase_conv2d", {"x": (1, 3, 32, 32), "w": (6, 5, 3, 2, 32)}, {"kernel_w": 5, "strides": (2, 2)}, False,
    ),
    "matmul": ("matmul", {"x": (64, 64), "w": (64, 64)}, {}, False),
    "recurrent": ("lstm_cell", {"x": (1, 256), "h": (1, 64), "c": (1, 64), "w": (4, 64, 64)}, {}, False),
}  # fmt: skip


def task_of(template: str, label: str, stage: str) -> Task:
    """The task of an operator called ``label``, whose output, and what its inner stages begin with, is ``stage``."""
    op, shapes, attrs, blocked = OPERATIONS[template]
    tensors = [placeholder(shape, name=name) for name, shape in shapes.items()]
    renamed = replace(OPERATORS[op], name=label)
    outputs = renamed.define(stage, tensors, attrs)
    inputs, outputs, _ = split_constants(tensors, list(outputs), {"w"})
    own = {t.name: layout(BLOCKED) for t in (*inputs, *outputs) if blocked and t.name in ("x", stage)}
    constants = frozenset(t.name for t in inputs if t.name not in shapes or t.name == "w")
    return Task("kernel", tuple(inputs), tuple(outputs), label, own, constants)


@pytest.mark.parametrize("template", OPERATIONS)
def test_another_name_is_the_same_template_and_code(template: str) -> None:
    machine = target("x86-64-v4")
    own = first_match(task_of(template, OPERATIONS[template][0], "y"), machine)
    other = first_match(task_of(template, "unheard_of", "q7"), machine)
    assert own.name == other.name == template
    assert own.space == other.space
    texts = [str(match.apply(match.space.default).program) for match in (own, other)]
    assert texts[0] == texts[1].replace("q7", "y")
