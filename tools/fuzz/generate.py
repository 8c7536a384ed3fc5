"""A random model and its inputs, by seed alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from tools.fuzz.families import FAMILIES, THEME_WEIGHTS, THEMES
from tools.fuzz.sketch import FLOATS, INTS, Sketch

OPSETS = (9, 10, 11, 12, 13, 13, 14, 15, 16, 17, 17, 18, 18, 19, 20, 21, 21, 22, 23, 23, 24)
ATTEMPTS = 6  # draws for each node that is wanted


@dataclass(frozen=True, eq=False)
class Sample:
    """A valid model with feeds, the seed that made it, and the theme it was drawn under."""

    seed: int
    theme: str
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    special: bool = False


def is_valid(model: onnx.ModelProto) -> bool:
    """Whether onnx's checker and its shape inference find nothing: they differ from the oracles in corners."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def generate(seed: int, only: str | None = None, pages: bool = False) -> Sample:
    """The model of a seed. ``only``: of one family. ``pages``: where integers and gathers are frequent."""
    random = np.random.default_rng(seed)
    names = sorted(THEME_WEIGHTS)
    weights = np.array([THEME_WEIGHTS[name] * (6 if pages and name == "integers" else 1) for name in names])
    theme = str(random.choice(names, p=weights / weights.sum()))
    shares = {only: 1.0, "elementwise": 0.15, "movement": 0.15} if only else dict(THEMES[theme])
    families = sorted(shares)
    chances = np.array([shares[name] for name in families]) / sum(shares.values())
    while True:
        s = Sketch(
            random, opset=int(random.choice(OPSETS)),
            dtype=str(random.choice(FLOATS, p=[0.76, 0.12, 0.09, 0.03])), integer=str(random.choice(INTS)),
            special=bool(random.random() < 0.06),
        )  # fmt: skip
        if random.random() < 0.5:
            s.integer = str(random.choice(["int64", "int32"]))
        wanted = int(random.integers(1, 13))
        for _ in range(wanted * ATTEMPTS):
            family = FAMILIES[str(random.choice(families, p=chances))]
            s.attempt(family[s.choose(sorted(family))])
            if len(s.nodes) >= wanted:
                break
        if s.nodes:
            model, feeds = s.finish()
            if not is_valid(model):
                continue
            return Sample(seed, only or theme, model, feeds, s.special)
