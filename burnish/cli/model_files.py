"""Model files of the boost commands: Burnish's own and XGBoost's."""

import json
from pathlib import Path

from burnish.boost import Model
from burnish.boost.formats.xgboost_format import loads_xgboost
from burnish.boost.model import loads
from burnish.files import read_regular

READING = "reading"  # the model's attribute that keeps how its training files were read, as JSON


def load(path: Path) -> Model:
    """A model from either format, by what the file holds. Raises DataError for what is neither."""
    text = read_regular(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None  # `loads` says what is wrong
    if isinstance(document, dict) and "learner" in document:
        return loads_xgboost(text, str(path))
    return loads(text, str(path))
