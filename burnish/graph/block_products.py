"""Products with constant matrices of few bits in blocks, whose words are unpacked where they are multiplied.

    matmul(x, block_dequantize(w, s, z))  →  block_matmul(x, words of w, s, z)    on targets with dot products of bytes

Those that multiply unsigned bytes below 128 alone do so of at most 4 bits, where rows are few: their floats are faster
once a row does not wait for its weights. Elsewhere, and where rounding must not change, the matrix is dequantized when
a model is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from burnish.graph.costs import product_in_parts
from burnish.graph.graph import Graph, Node
from burnish.graph.halves import HALVES
from burnish.graph.rewrite import Rewrite, rewrite
from burnish.loops.sizes import dims_of, hinted
from burnish.machines.target import Target
from burnish.ops.blocks import pack_words

WHOLE = 16  # elements of which a block is made, so that it is whole words and vectors
EXACT = 1 << 24  # sums of a block's products below are float32 numbers
LOW_BITS = 4  # of numbers whose bytes are below 128
FEW_ROWS = 1  # for which dot products of low bytes, of three digits, are faster than floats
DIGITS = 3  # bytes that hold what float32 holds of a number


def multiply_blocks(graph: Graph, target: Target) -> Graph:
    """``graph`` with products of packed words, where ``target`` has dot products of bytes."""
    driver = target.driver
    dots = driver.has(driver.machine.dialect.dots_bytes) or driver.multiplies_low_bytes
    if not dots or all(n.op != "block_dequantize" for n in graph.nodes):
        return graph
    return rewrite(graph, lambda new, node: _rule(new, node, driver))


@dataclass(frozen=True)
class _Blocks:
    """A matrix [K, N] of integers in blocks along K, and the node that dequantizes it."""

    integers: str
    scale: str
    zero: str
    node: Node
    swapped: bool


def _rule(new: Rewrite, node: Node, target: Target) -> Sequence[str] | None:
    if node.op != "matmul" or node.attrs.get("transpose_a", False):
        return None
    x, depth = node.inputs[0], new.types[node.inputs[0]].shape[-1:]
    found = _blocks(new, node.inputs[1], bool(node.attrs.get("transpose_b", False)))
    dtype = new.types[x].dtype
    if found is None or len(new.types[x].shape) < 2 or dims_of(depth) or dtype not in ("float32", *HALVES):
        return None
    attrs = found.node.attrs
    bits, block = attrs["bits"], attrs["block"]
    assert isinstance(bits, int)
    assert isinstance(block, int)
    if block % WHOLE or (1 << bits + 7) * block > EXACT:
        return None
    (extent,) = depth
    if not target.has(target.machine.dialect.dots_bytes):
        rows = prod(hinted(e) for e in new.types[x].shape[:-1])
        if bits > LOW_BITS or (rows > FEW_ROWS and not attrs.get("bytewise", False)):
            return None
    bytewise = attrs.get("bytewise", False)
    columns = new.types[node.inputs[1]].shape[0 if node.attrs.get("transpose_b", False) else 1]
    if not bytewise and product_in_parts(new.types[x].shape, (extent, columns), target):
        return None  # a matrix unit multiplies halves of floats faster
    words, zero = _words(new, found, bits, block, extent), _zero(new, found, bits)
    scale = new.derived(found.scale, f"rows{found.swapped}", lambda v: np.ascontiguousarray(_rows(v, found)))
    if dtype in HALVES:
        x = new.add("cast", x, to="float32", node=node.name)
    if extent % block:
        rank = len(new.types[x].shape)
        x = new.add("pad", x, pads=(*[0] * (2 * rank - 1), -extent % block), node=node.name)
    digits = 1 if bytewise else DIGITS
    operands = (x, words, scale, zero)
    sizes: dict[str, Any] = {"bits": bits, "block": block, "digits": digits}
    if dtype not in HALVES:
        return new.replace(node, "block_matmul", *operands, **sizes)
    return new.replace(node, "cast", new.add("block_matmul", *operands, node=node.name, **sizes), to=dtype)


def _blocks(new: Rewrite, name: str, swapped: bool) -> _Blocks | None:
    """A matrix of constants that is dequantized in blocks of its rows, or transposed of its columns."""
    node = new.producer(name)
    while node is not None and node.op in ("transpose", "cast"):
        if node.op == "cast" and node.attrs["to"] not in HALVES:
            return None
        swapped ^= node.op == "transpose" and node.attrs.get("perm", (1, 0)) == (1, 0)
        node = new.producer(node.inputs[0])
    if node is None or node.op != "block_dequantize" or node.attrs.get("axis", 0) != int(swapped):
        return None
    constants = all(new.value(each) is not None for each in node.inputs)
    integers, scale, zero = node.inputs
    return _Blocks(integers, scale, zero, node, swapped) if constants else None


def _rows(value: np.ndarray, found: _Blocks) -> np.ndarray:
    """The matrix with the depth first."""
    return value.T if found.swapped else value


def _least(new: Rewrite, found: _Blocks, bits: int) -> int:
    """The least integer: what words hold as 0."""
    return -(1 << bits - 1) if new.types[found.integers].dtype == "int8" else 0


def _words(new: Rewrite, found: _Blocks, bits: int, block: int, depth: int) -> str:
    least = _least(new, found, bits)

    def words(value: np.ndarray) -> np.ndarray:
        own = _rows(value, found).astype(np.int16) - least
        padded = np.pad(own.astype(np.uint8), [(0, -depth % block), (0, 0)])
        return pack_words(padded, bits)

    return new.derived(found.integers, f"words{found.swapped}.{block}", words)


def _zero(new: Rewrite, found: _Blocks, bits: int) -> str:
    """Zero points as words mean them: one number, bytes, or floats."""
    least = _least(new, found, bits)

    def zeros(value: np.ndarray) -> np.ndarray:
        moved = np.ascontiguousarray(_rows(value, found)) - np.float32(least)
        if moved.size and np.all(moved == moved.flat[0]):
            return moved.reshape(-1)[:1].reshape(1, 1)
        whole = np.all((moved == np.rint(moved)) & (moved >= 0) & (moved <= 255))
        return moved.astype(np.uint8) if whole else moved

    return new.derived(found.zero, f"zeros{found.swapped}.{least}", zeros)
