"""Model files of the boost commands: Burnish's own, XGBoost's and LightGBM's."""

from pathlib import Path

from burnish.boost import Model

READING = "reading"  # the model's attribute that keeps how its training files were read, as JSON


def load(path: Path) -> Model:
    """A model from any format that ``Model.load`` knows, by what the file holds. Raises DataError, OSError."""
    return Model.load(path)
