"""Dropout of PyTorch in training: torch's decompositions remove it from networks in eval mode, but for a while."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from burnish.errors import UnsupportedOperator
from burnish.frontend.torch.context import Context, Ref, Translator

NAMES = ("dropout", "feature_dropout")
REFUSED = ("alpha_dropout", "feature_alpha_dropout")


@contextlib.contextmanager
def kept_dropout(program: Any) -> Iterator[None]:
    """The exported program with operators of ours in place of its dropout, which decompositions keep; then as it was.

    Raises UnsupportedOperator for kinds of dropout that have no translation.
    """
    import torch

    before: list[tuple[Any, Any]] = []
    aten = {getattr(torch.ops.aten, name).default: name for name in (*NAMES, *REFUSED)}
    try:
        for node in program.graph.nodes:
            name = aten.get(node.target) if node.op == "call_function" else None
            if name is None or node.args[1] == 0:
                continue
            if name in REFUSED:
                where = f"aten.{name} ('{node.name}')"
                raise UnsupportedOperator(f"{where}: p: found {node.args[1]}; allowed: 0 in training")
            before.append((node, node.target))
            node.target = _operators()[name]
        yield
    finally:
        for node, target in before:
            node.target = target


def warn_of_attention(network: Any) -> None:
    """Warns of dropout inside of attention, which a network in eval mode does not show."""
    import torch

    found = [n for n, m in network.named_modules() if isinstance(m, torch.nn.MultiheadAttention) and m.dropout > 0]
    if found:
        words = ", ".join(f"'{name}'" for name in found[:4]) + ", …" * (len(found) > 4)
        warnings.warn(f"train: dropout of attention weights is left out, in {words}", stacklevel=4)


@lru_cache(maxsize=1)
def _operators() -> Mapping[str, Any]:
    """Operators that torch knows to return a tensor like their first, and no more."""
    import torch

    library = torch.library.Library("burnish", "FRAGMENT")
    for name in NAMES:
        library.define(f"{name}(Tensor x, float p, bool train) -> Tensor")
        library.impl(name, lambda x, p, train: x.clone(), "CompositeExplicitAutograd")
    found = {name: getattr(torch.ops.burnish, name).default for name in NAMES}
    return {**found, "": library}  # which lasts as long as this is kept


def _dropout(c: Context, x: Ref, p: float, train: bool) -> Ref:
    return c.add("mul", x, c.scalar(0, x)) if p == 1 else c.dropout(x, p)  # of 1 nothing stays


def _feature_dropout(c: Context, x: Ref, p: float, train: bool) -> Ref:
    """Whole channels are dropped."""
    if p == 1:
        return _dropout(c, x, p, train)
    shape = (*c.shape(x)[:2], *[1] * (c.rank(x) - 2))
    return c.add("mul", x, c.dropout(c.expand(c.scalar(1, x), shape), p))


def _inference(c: Context, input: Ref, p: float, train: bool) -> Ref:
    """In a graph that is not exported: torch.compile's."""
    return input if not train or p == 0 else c.refuse("train", True, "False: random numbers are not supported")


TRANSLATORS: Mapping[str, Translator] = {
    "burnish.dropout": _dropout, "burnish.feature_dropout": _feature_dropout,
    **{f"aten.{name}": _inference for name in (*NAMES, *REFUSED)},
}  # fmt: skip
