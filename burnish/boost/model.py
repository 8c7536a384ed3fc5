"""A boosted model: trees that predict, are drawn, saved and loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from burnish.base.files import read_regular
from burnish.boost.ensemble import Ensemble
from burnish.boost.formats.files import loads_any, save_as
from burnish.boost.formats.own_format import dumps_own as dumps
from burnish.boost.formats.own_format import loads_own
from burnish.boost.plots import plot_importance, plot_tree

__all__ = ["Model", "dumps", "loads"]


@dataclass(frozen=True, eq=False, repr=False)
class Model(Ensemble):
    """A model as training makes it: an ensemble with its files and pictures."""

    @staticmethod
    def of(ensemble: Ensemble) -> Model:
        """The model of an ensemble, which is checked already."""
        model = object.__new__(Model)
        vars(model).update(vars(ensemble))
        return model

    def plot_tree(self, tree: int = 0, ax: Any = None) -> Any:
        """Draws a tree by matplotlib: see :func:`burnish.boost.plots.plot_tree`."""
        return plot_tree(self, tree, ax)

    def plot_importance(self, kind: str = "gain", most: int = 20, ax: Any = None) -> Any:
        """Draws importances by matplotlib: see :func:`burnish.boost.plots.plot_importance`."""
        return plot_importance(self, kind, most, ax)

    def save(self, path: str | Path, format: str | None = None) -> None:
        """Writes the model file, whole or not at all: our JSON, or `format` "xgboost" (JSON) or "xgboost-ubj".

        A name that ends in ``.ubj`` is XGBoost's UBJ, with `format` "xgboost" too. Raises OSError, ParameterError for
        another format, and DataError for a part that the format cannot hold.
        """
        save_as(self, path, format)

    @staticmethod
    def load(path: str | Path) -> Model:
        """The model in a file of ours, of XGBoost (JSON or UBJ) or of LightGBM (text), detected by its content.

        Raises DataError for a file that is not whole, not valid or of another kind, OSError.
        """
        return Model.of(loads_any(read_regular(path), str(path)))


def loads(text: str | bytes, source: str = "model") -> Model:
    """The model that `dumps` wrote. Raises DataError, naming `source` and what is wrong with it."""
    return Model.of(loads_own(text, source))
