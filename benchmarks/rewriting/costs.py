"""Roofline costs of operators: the machines of the papers, by which searches for substitutions are compared."""

from __future__ import annotations

from dataclasses import dataclass

from burnish.rewrite.search.cost import FREE, arithmetic, traffic
from burnish.rewrite.search.table import CostedOperator


@dataclass(frozen=True)
class RooflineCost:
    """``launch`` seconds an operator, and the longer of its arithmetic and its traffic. ReLU behind a convolution or a
    product is computed with it, as in the papers; views are free, joins are copies.
    """

    flops: float  # operations a second
    bandwidth: float  # bytes a second
    launch: float  # seconds

    def __call__(self, operation: CostedOperator) -> float:
        """Seconds of one operator."""
        if operation.op in FREE or (operation.op == "relu" and operation.makers[0] in ("conv2d", "matmul")):
            return 0.0
        return self.launch + max(arithmetic(operation) / self.flops, traffic(operation) / self.bandwidth)


GPU_LIKE = RooflineCost(5e12, 1e15, 8e-6)  # 5 TFLOP/s, 8 µs an operator, traffic not counted
CPU_LIKE = RooflineCost(100e9, 10e9, 0.0)
