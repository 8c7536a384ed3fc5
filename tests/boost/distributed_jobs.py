"""An objective that kills its worker, and what is trained with it; worker processes import it by name."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np

from burnish.boost.data import Dataset
from burnish.boost.params import Params

Floats = np.ndarray[Any, np.dtype[np.float32]]

MARK = 7777.0  # label of the last row, by which the last worker knows itself
_calls = 0


def table(rows: int = 1600, seed: int = 0) -> tuple[Floats, Floats]:
    """Features with ties, skew and missing values, and labels 0 and 1."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, 6)).astype(np.float32)
    x[:, 1] = random.integers(0, 9, rows)
    x[:, 2] = np.exp(4 * x[:, 2])
    x[:, 3] *= random.random(rows) < 0.3
    label = (x[:, 0] + np.sin(x[:, 1]) + 0.1 * np.log(x[:, 2]) + 0.3 * random.standard_normal(rows) > 0.5).astype(
        np.float32
    )
    x[random.random((rows, 6)) < np.array([0.0, 0.1, 0.0, 0.0, 0.4, 0.2])] = np.nan
    return x, label


def marked() -> Dataset:
    """Data whose last row has the mark for its label."""
    x, label = table(1000)
    label[-1] = MARK
    return Dataset.of(x, label)


def fatal(margin: Floats, dataset: Dataset) -> tuple[Floats, Floats]:
    """Squared error without the marked row; at its eighth call the worker that holds that ends as a file says."""
    global _calls
    assert dataset.label is not None
    last = dataset.label == MARK
    _calls += int(last.any())
    order = Path(os.environ.get("BURNISH_TEST_FATAL", "/nonexistent"))
    if last.any() and _calls >= 8 and order.exists():
        how = order.read_text()
        order.unlink()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(how)
    gradient = np.where(last, 0, margin - dataset.label).astype(np.float32)
    return gradient, np.where(last, 0, 1).astype(np.float32)


FATAL = Params(objective=fatal, rounds=13, max_depth=3, subsample=0.8, colsample_bynode=0.7, max_bin=32)
