"""Costs: rooflines are the slowest of what goes on together, and no other module divides by the rates of a target."""

import ast
from pathlib import Path

import pytest

import burnish
from burnish.graph import costs
from burnish.graph.estimates import window_of
from burnish.graph.graph import TensorType
from burnish.loops.sizes import dim
from burnish.machines.target import target

PLAIN, TILES = target("x86-64-v4"), target("sapphirerapids")
RATES = {"cache_bandwidth", "memory_bandwidth", "matrix_flops"}
OWNERS = {  # beside the packages of machines, which say them; presets say what devices of plans have
    "machines/target.py", "graph/costs.py", "parallel/model/presets.py",
    "kernels/gpu/product_time.py", "kernels/gpu/vector_product.py",  # waves of blocks, of which costs know nothing
}  # fmt: skip
HOUSE = Path(burnish.__file__).parent


def test_a_roofline_is_the_slowest_of_arithmetic_weights_and_traffic() -> None:
    n = 1e9
    assert costs.roofline_seconds(n, 0, PLAIN, 0.5) == 2 * n / PLAIN.flops
    assert costs.roofline_seconds(0, n, PLAIN, 0.5) == n / PLAIN.cache_bandwidth
    assert costs.roofline_seconds(0, n, PLAIN, 0.5, weights=n) == n / PLAIN.memory_bandwidth
    assert costs.copy_seconds(n, 2 * n, PLAIN) == costs.cache_seconds(3 * n, PLAIN)


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ((16, 64), (64, 32), True),
        ((8, 64), (64, 32), False),  # half a tile of rows
        ((16, 16), (16, 32), False),
        ((16, 64), (64, 8), False),
        ((2, 3, 16, 64), (64, 32), False),  # blocks of rows would cross the ends of several axes
        ((1, 2, 16, 64), (64, 32), True),
        ((16, 64), (2, 64, 32), False),
        ((64,), (64, 32), False),
        ((dim("rows", 1, 64, hint=32), 64), (64, 32), True),
        ((dim("rows", 1, 64, hint=4), 64), (64, 32), False),
    ],
)
def test_products_in_parts(left: tuple[int, ...], right: tuple[int, ...], found: bool) -> None:
    assert costs.product_in_parts(left, right, TILES) == found
    assert not costs.product_in_parts(left, right, PLAIN)


def test_a_window_is_that_of_the_hints() -> None:
    x, out = ((dim("batch", 1, 8, hint=4), 16, 9, 11), (dim("batch", 1, 8, hint=4), 32, 5, 6))
    types = TensorType(x, "float32"), TensorType((32, 8, 3, 3), "float32"), TensorType(out, "float32")
    w = window_of(*types, {"strides": (2, 2), "groups": 2})
    assert (w.batch, w.channels, w.outputs, w.depth, w.kernel) == (4, 16, 32, 8, (3, 3))
    assert (w.strides, w.size, w.out) == ((2, 2), (9, 11), (5, 6))


def test_rates_of_a_target_become_seconds_in_one_module() -> None:
    readers = set()
    for file in HOUSE.rglob("*.py"):
        name = str(file.relative_to(HOUSE))
        if name.startswith("machines/") or name in OWNERS:
            continue
        text = file.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text)) if any(rate in text for rate in RATES) else ()
        if any(isinstance(node, ast.Attribute) and node.attr in RATES for node in nodes):
            readers.add(name)
    assert readers == set()
