"""The kinds of cost models by the names that their dumps carry."""

import importlib
from collections.abc import Mapping
from typing import Any

from burnish.errors import DataError
from burnish.tune.models.base import CostModel, opened

KINDS = {
    "trees": ("trees", "TreeModel"),
    "forest": ("forest", "ForestModel"),
    "ensemble": ("ensemble", "BootstrapEnsemble"),
    "transfer": ("transfer", "TransferModel"),
    "neural": ("neural", "TreeGRUModel"),
}  # a name: module and class, imported when they are needed, because some models hold others


def load_model(document: Mapping[str, Any]) -> CostModel:
    """The model that `dump` of any kind gave. Raises DataError for what is none, or was altered."""
    kind, _, _ = opened(document)
    if kind not in KINDS:
        raise DataError(f"cost model: kind is {kind!r}; allowed: {', '.join(map(repr, KINDS))}")
    module, name = KINDS[kind]
    try:
        model: CostModel = getattr(importlib.import_module(f"burnish.tune.models.{module}"), name).load(document)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"cost model of kind {kind!r}: a part is missing, or has the wrong type: {error}") from None
    return model
