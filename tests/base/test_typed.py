"""Arguments are checked by their annotations: what is none of their types is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import burnish as bn
from burnish.base.arguments import typed
from burnish.errors import ParameterError


@typed
def bake(
    heat: float, times: int = 1, *, flour: str | Path | None = None, dry: bool = False, missing: float = float("nan"),
    pans: Sequence[Sequence[str]] = (), size: tuple[float, float] = (1, 2), how: Literal["slow", "fast"] = "slow",
    names: Mapping[str, int] | None = None, array: np.ndarray | None = None, anything: Any = None, **rest: Any,
) -> tuple[float, int]:  # fmt: skip
    """Bakes."""
    return heat, times


@typed
@dataclass(frozen=True)
class Loaf:
    """A loaf."""

    crust: float = 0.5
    seeds: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ParameterError."""
        if self.crust > 1:
            raise ParameterError("crust: found too much")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heat": "hot"}, "heat: found 'hot'; allowed: a number"), ({"heat": float("nan")}, "heat: found nan"),
        ({"heat": True}, "heat: found True"), ({"times": 1.5}, "times: found 1.5; allowed: an integer"),
        ({"flour": 3}, "flour: found 3; allowed: a text or a path or None"),
        ({"dry": 1}, "dry: found 1; allowed: True or False"),
        ({"pans": [1]}, r"pans: found \[1\]; allowed: a sequence"), ({"pans": "ab"}, "pans: found 'ab'"),
        ({"size": (1,)}, r"size: found \(1,\); allowed: a sequence of 2"), ({"how": "so"}, "allowed: 'slow', 'fast'"),
        ({"names": [("a", 1)]}, "names: found .*; allowed: a mapping or None"),
    ],
)  # fmt: skip
def test_what_is_none_of_the_types_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        bake(**{"heat": 1.0, **given})


def test_what_fits_passes() -> None:
    assert bake(np.float32(3), np.int64(2), flour=Path("a"), missing=3, pans=[["a"], ("b",)], other=3) == (3, 2)
    bake(1, missing=bake.__wrapped__.__kwdefaults__["missing"], array=np.ones(3), anything=[1], names={"a": 1})


def test_a_class_says_first_what_it_refuses_by_itself() -> None:
    assert Loaf(0.25) == Loaf(crust=0.25, seeds=())
    for given, message in (({"crust": 2}, "found too much"), ({"crust": "a"}, "Loaf: crust: found 'a'"),
                           ({"seeds": 3}, "Loaf: seeds: found 3; allowed: a sequence")):  # fmt: skip
        with pytest.raises(ParameterError, match=message):
            Loaf(**given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda graph: bn.plan(graph, seed=-1), "seed: found -1; allowed: an integer from 0"),
        (lambda graph: bn.plan(graph, seed="1"), "seed: found '1'; allowed: an integer"),
        (lambda graph: bn.plan(graph, measure="yes"), "measure: found 'yes'"),
        (lambda graph: bn.gnn.network("gat", 8, 4, heads=0), "heads: found 0; allowed: an integer from 1"),
        (lambda graph: bn.gnn.network("gcn", -1, 4), "features: found -1"),
        (lambda graph: bn.gnn.block_model(40, 160, 4, seed=-1), "seed: found -1"),
        (lambda graph: bn.gnn.block_model(40, 160, 4, splits=(0.5,)), "splits: found"),
        (lambda graph: bn.gnn.equal_vertices(40, "two"), "parts: found 'two'"),
        (lambda graph: bn.compile_paged(graph, "1MB", exact=1), "exact: found 1; allowed: True or False"),
        (lambda graph: bn.compile_paged(graph, "1MB", folder=3), "folder: found 3"),
        (lambda graph: bn.gradients(graph, 3, ["x"]), "of: found 3; allowed: a text or a sequence"),
        (lambda graph: bn.Train(parameters=3), "Train: parameters: found 3"),
        (lambda graph: bn.SGD(0.1, nesterov=3), "SGD: nesterov: found 3; allowed: True or False"),
        (lambda graph: bn.PlanObjective(slots=1.5), "PlanObjective: slots: found 1.5"),
        (lambda graph: bn.fit(graph, {}, bn.Train(), epochs=1, timeout="long"), "timeout: found 'long'"),
        (lambda graph: bn.boost.predict(None, np.ones((2, 2)), rounds=3), "rounds: found 3"),
    ],
)
def test_public_options_are_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call(bn.sym.graph(bn.sym.relu(bn.sym.variable("x")), {"x": (3,)}))
