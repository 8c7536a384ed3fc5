"""Dropout of PyTorch in training: torch's decompositions remove it from networks in eval mode, but for a while."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from burnish.errors import UnsupportedOperator
from burnish.frontend.torch.context import Ref, TorchContext, Translator

NAMES = ("dropout", "feature_dropout")
REFUSED = ("alpha_dropout", "feature_alpha_dropout")


@contextlib.contextmanager
def kept_dropout(program: Any, own: bool) -> Iterator[None]:
    """The exported program with operators of ours in place of its dropout, which decompositions keep; then as it was.

    Dropout in eval mode stays, unless no module has a mode of its ``own``. Raises UnsupportedOperator for kinds of
    dropout that have no translation.
    """
    import torch

    before: list[tuple[Any, Any]] = []
    aten = {getattr(torch.ops.aten, name).default: name for name in (*NAMES, *REFUSED)}
    try:
        for node in program.graph.nodes:
            name = aten.get(node.target) if node.op == "call_function" else None
            if name is None or node.args[1] == 0 or (own and not node.args[2]):
                continue
            if name in REFUSED:
                where = f"aten.{name} ('{node.name}')"
                raise UnsupportedOperator(f"{where}: p: found {node.args[1]}; allowed: 0 in training")
            before.append((node, node.target))
            node.target = _operators()[name]
        for node in [n for n in program.graph.nodes if n.target in _draws()]:
            if [*node.args[0].users] != [node]:
                words = "allowed: with only its result read"
                raise UnsupportedOperator(
                    f"aten.bernoulli_ ('{node.name}'): found a tensor that is read itself; {words}"
                )
            warnings.warn(
                f"train: '{node.name}' draws random numbers of the step's own seed, not torch's", stacklevel=6
            )
            before.append((node, node.target))
            node.target = _operators()["bernoulli"]
        yield
    finally:
        for node, target in before:
            node.target = target


@lru_cache(maxsize=1)
def _operators() -> Mapping[str, Any]:
    """Operators that torch knows to return a tensor like their first, and no more."""
    import torch

    library = torch.library.Library("burnish", "FRAGMENT")
    for name in NAMES:
        library.define(f"{name}(Tensor x, float p, bool train) -> Tensor")
        library.impl(name, lambda x, p, train: x.clone(), "CompositeExplicitAutograd")
    library.define("bernoulli(Tensor x, float p=0.5) -> Tensor")
    library.impl("bernoulli", lambda x, p=0.5: torch.zeros_like(x), "CompositeExplicitAutograd")
    found = {name: getattr(torch.ops.burnish, name).default for name in (*NAMES, "bernoulli")}
    return {**found, "": library}  # which lasts as long as this is kept


def _draws() -> tuple[Any, ...]:
    """Operators that fill a tensor with zeros and ones by chance."""
    import torch

    return torch.ops.aten.bernoulli_.float, torch.ops.aten.bernoulli.p


def _bernoulli(c: TorchContext, x: Ref, p: float) -> Ref:
    """Ones, of which a share of ``1 - p`` is dropped."""
    one, zero = (c.expand(c.scalar(value, x), c.shape(x)) for value in (1, 0))
    if p == 0:
        return zero
    return c.add("where", c.add("greater", c.dropout(one, 1 - p), c.scalar(0, x)), one, zero)


def _dropout(c: TorchContext, x: Ref, p: float, train: bool) -> Ref:
    return c.add("mul", x, c.scalar(0, x)) if p == 1 else c.dropout(x, p)  # of 1 nothing stays


def _feature_dropout(c: TorchContext, x: Ref, p: float, train: bool) -> Ref:
    """Whole channels are dropped."""
    if p == 1:
        return _dropout(c, x, p, train)
    shape = (*c.shape(x)[:2], *[1] * (c.rank(x) - 2))
    return c.add("mul", x, c.dropout(c.expand(c.scalar(1, x), shape), p))


def _inference(c: TorchContext, input: Ref, p: float, train: bool) -> Ref:
    """Dropout of torch.compile's graphs, which are not exported: refused in training."""
    return input if not train or p == 0 else c.refuse("train", True, "False: random numbers are not supported")


TRANSLATORS: Mapping[str, Translator] = {
    "burnish.bernoulli": _bernoulli, "burnish.dropout": _dropout, "burnish.feature_dropout": _feature_dropout,
    **{f"aten.{name}": _inference for name in (*NAMES, *REFUSED)},
}  # fmt: skip
