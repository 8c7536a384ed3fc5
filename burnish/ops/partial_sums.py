"""Partial sums of any product: an operator of which one names another, whose sum it leaves in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from burnish.loops.contraction import is_sum_of_products, partial_sums
from burnish.loops.expr import Cast, Load
from burnish.loops.tensor import Tensor, stages
from burnish.ops.operator import Ints, Nested, Operator, Refused, differentiated, named_operator, require

Find = Callable[[str], Operator]


def product_of(result: Tensor) -> Tensor | None:
    """The sum of products that an operator's result is, but for a conversion; None of others."""
    body = result.body.value if isinstance(result.body, Cast) else result.body
    sums = [t for t in stages([result]) if is_sum_of_products(t)]
    if len(sums) != 1 or (result is not sums[0] and body != Load(sums[0].buffer, result.axes)):
        return None
    return sums[0]


def partial_sums_of(find: Find) -> Operator:
    """The operator ``partial_sums`` over the operators that ``find`` knows by name."""

    def split(name: str, *given: Tensor, operator: str, attributes: Nested, count: int, order: Ints) -> Tensor:
        """The sum of products that ``operator`` with ``attributes`` computes of ``given``, over ``count`` equal parts
        of its longest axis: [count, ...], the other dimensions in ``order``, in the type in which it is summed.

        Added up, turned back and converted, they are what the operator computes.
        """
        results = find(operator).define(f"{name}.of", given, dict(attributes))
        product = product_of(results[0]) if len(results) == 1 else None
        require(product is not None, "attribute 'operator'", operator, "one whose only result is a sum of products")
        assert product is not None
        ranks = [*range(len(product.shape))]
        require(sorted(order) == ranks, "attribute 'order'", list(order), f"{ranks} in any order")
        sums = partial_sums(product, count, name)
        require(sums is not None, "attribute 'count'", count, "a divisor of the longest axis")
        assert sums is not None
        shape, axes = (product.shape[d] for d in order), (product.axes[d] for d in order)
        return replace(sums, buffer=sums.buffer.with_(shape=(count, *shape)), axes=(sums.axes[0], *axes))

    made = differentiated(Refused("partial sums of an operator, which are made after differentiation"))
    return made(named_operator("partial_sums", split))
