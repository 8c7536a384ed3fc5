import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from burnish.boost.importance import importance_by_name
from burnish.boost.model import Model
from burnish.boost.render import picture
from burnish.errors import MissingDependencyError, ParameterError
from tests.boost.trees import random_model


class Axes:
    """What is drawn, for machines without matplotlib."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.drawn.append((name, args))

    def all(self, name: str) -> list[tuple[Any, ...]]:
        return [args for found, args in self.drawn if found == name]


@pytest.fixture
def model() -> Model:
    return replace(random_model(np.random.default_rng(0), 3, 4, 4), feature_names=("a", "b", "c", "d"))


@pytest.fixture
def axes(monkeypatch: pytest.MonkeyPatch) -> Axes:
    found = Axes()
    package, pyplot = ModuleType("matplotlib"), ModuleType("matplotlib.pyplot")
    pyplot.subplots = lambda **options: (None, found)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", package)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", pyplot)
    return found


def test_every_node_of_a_tree_is_drawn_below_its_parent(model: Model, axes: Axes) -> None:
    tree = model.trees[1]
    assert model.plot_tree(1) is axes
    assert len(axes.all("plot")) == tree.size - 1
    texts = [args[2] for args in axes.all("text")]
    assert sum(text.startswith("value") for text in texts) == tree.leaves
    boxes, lines, (width, height) = picture(model, 1)
    assert all(0 < x < width and 0 < y < height for x, y, _, _ in boxes)
    assert all(begin[1] < end[1] for begin, end, _ in lines)
    assert len({(x, y) for x, y, _, _ in boxes}) == tree.size
    with pytest.raises(ParameterError, match="tree is 9"):
        model.plot_tree(9)


@pytest.mark.parametrize("kind", ["gain", "weight", "total_cover"])
def test_the_most_important_features_are_bars(model: Model, axes: Axes, kind: str) -> None:
    model.plot_importance(kind, most=2, ax=axes)
    ((names, scores),) = axes.all("barh")
    assert dict(zip(names, scores, strict=True)) == dict(list(importance_by_name(model, kind).items())[:2])
    with pytest.raises(ParameterError, match="most"):
        model.plot_importance(most=0)


def test_the_extra_is_named_without_matplotlib(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    class Nothing:
        def find_spec(self, name: str, *rest: Any) -> None:
            if name.partition(".")[0] == "matplotlib":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Nothing(), *sys.meta_path])
    with pytest.raises(MissingDependencyError, match=r"burnish\[plot\]"):
        model.plot_tree()
