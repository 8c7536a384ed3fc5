"""Boosted trees from a file to predictions, with a picture of learning. `python examples/boost_walkthrough.py`"""

import csv
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from burnish import boost
from burnish.boost import importance, readers

ROWS, ROUNDS = (1_000, 60) if "--quick" in sys.argv else (4_000, 400)
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce")


def write_houses(path: Path, rows: int, seed: int) -> None:
    """Prices of houses that were never built: numbers, a category, and values that nobody wrote down."""
    random = np.random.default_rng(seed)
    area, age = random.gamma(9, 12, rows), random.integers(0, 120, rows)
    street = random.choice(["avenue", "lane", "mews", "square"], rows)
    price = 3.0 * area * (1 + 0.4 * (street == "square")) - 0.8 * np.minimum(age, 60) * (street != "mews")
    price += random.normal(0, 25, rows)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["area", "age", "street", "price"])
        for house in zip(area.round(1), age, street, price.round(), strict=True):
            writer.writerow(
                [value if place in (0, 3) or random.random() < 0.95 else "" for place, value in enumerate(house)]
            )


def learning_curve(history: Mapping[str, Sequence[float]], title: str, width: int = 640, height: int = 360) -> str:
    """A line for each series of a positive value by round, as the text of an SVG file; the best rounds are marked."""
    left, right, top, bottom = 64, 96, 36, 44
    low = min(min(values) for values in history.values())
    high = max(max(values) for values in history.values())
    rounds = max(len(values) for values in history.values())

    def x(number: float) -> float:
        return left + (width - left - right) * number / max(rounds - 1, 1)

    def y(value: float) -> float:
        return top + (height - top - bottom) * math.log(high / value) / (math.log(high / low) or 1.0)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        ' font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20" font-size="14">{title}</text>',
    ]
    for step in range(5):
        value = low * (high / low) ** (step / 4)  # the axis is logarithmic
        parts.append(f'<path d="M{left} {y(value):.1f}H{width - right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>')
        number = round((rounds - 1) * step / 4)
        parts.append(f'<text x="{x(number):.1f}" y="{height - bottom + 18}" text-anchor="middle">{number + 1}</text>')
    parts.append(f'<text x="{x((rounds - 1) / 2):.1f}" y="{height - 8}" text-anchor="middle">round</text>')
    for line, ((name, values), colour) in enumerate(zip(history.items(), COLOURS, strict=False)):
        points = " ".join(f"{x(number):.1f},{y(value):.1f}" for number, value in enumerate(values))
        best = int(np.argmin(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{x(best):.1f}" cy="{y(values[best]):.1f}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{width - right + 8}" y="{top + 4 + 18 * line}" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, seed in (("train", 0), ("valid", 1)):
            write_houses(home / f"{name}.csv", ROWS, seed)

        # The category's values stay with the data, and then with the model; streets it has not seen will be missing.
        train = readers.read(home / "train.csv", label="price", categorical=["street"], policy="missing")
        valid = readers.read(home / "valid.csv", label="price", categories=train.categories, policy="missing")
        print(f"{train.rows} rows, features {', '.join(train.feature_names)}, streets {train.categories[2]}")

        history: dict[str, dict[str, list[float]]] = {}
        model = boost.train(
            {"objective": "reg:squarederror", "max_depth": 5, "learning_rate": 0.1, "eval_metric": "rmse"},
            train,
            rounds=ROUNDS,
            validation_data={"train": train, "valid": valid},
            early_stopping_rounds=30,
            history=history,
        )
        assert model.best_iteration is not None
        best = model.best_iteration
        error = history["valid"]["rmse"][best]
        print(f"{model.rounds} rounds; the best is round {best + 1}: error {error:.2f}, of which 25 is noise")

        picture = Path("learning_curve.svg")
        curves = {name: metrics["rmse"] for name, metrics in history.items()}
        picture.write_text(learning_curve(curves, "root mean squared error by round"), encoding="utf-8")
        print(f"{picture}: the learning curve")

        for name, gain in importance.importance_by_name(model, "total_gain").items():
            print(f"  {name:8} gain {gain:.3g}")

        model.save(home / "model.json")
        again = boost.Model.load(home / "model.json")
        houses = np.array([[120.0, 10, "square"], [120.0, None, "lane"], [120.0, 10, "boulevard"]], object)
        prices = boost.predict(again, houses)
        np.testing.assert_array_equal(prices, boost.predict(model, houses))
        for house, price in zip(houses.tolist(), prices, strict=True):
            print(f"  {house}: {price:.0f}")


if __name__ == "__main__":
    main()
