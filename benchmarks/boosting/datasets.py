"""Synthetic training data of the shapes that the tree-boosting chapter measures on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Table(NamedTuple):
    """Features (rows, features) float32 in C order, and labels (rows,) float32."""

    features: NDArray[np.float32]
    label: NDArray[np.float32]


def higgs_like(rows: int = 1_000_000, features: int = 28, seed: int = 0) -> Table:
    """Binary labels from smooth, interacting and thresholded effects; an AUC of 0.9 can be reached (Higgs, §2.5)."""
    random = np.random.default_rng(seed)
    fixed = np.random.default_rng(2016)  # the concept; the same for every seed
    x = random.standard_normal((rows, features), dtype=np.float32)
    score = x[:, : features // 2] @ fixed.standard_normal(features // 2).astype(np.float32) * 0.5
    for _ in range(12):
        first, second, third = fixed.choice(features, 3, replace=False)
        a, b = fixed.standard_normal(2).astype(np.float32)
        score += a * x[:, first] * x[:, second] + 1.5 * b * np.sin(2 * x[:, third]) * (x[:, first] > a)
    probability = 1 / (1 + np.exp(-score))
    label = (random.random(rows, dtype=np.float32) < probability).astype(np.float32)
    return Table(x, label)


def wide(rows: int = 200_000, features: int = 704, seed: int = 0) -> Table:
    """Binary labels over many columns, of which one in eight matters (the shape of §2.5's Yahoo LTRC)."""
    random = np.random.default_rng(seed)
    fixed = np.random.default_rng(2017)
    x = random.standard_normal((rows, features), dtype=np.float32)
    x[:, 1::4] = np.round(x[:, 1::4] * 8) / 8  # some columns of few values, as features of documents have
    useful = fixed.choice(features, features // 8, replace=False)
    score = x[:, useful] @ fixed.standard_normal(len(useful)).astype(np.float32) * 0.3
    for first, second in fixed.choice(useful, (16, 2)):
        score += x[:, first] * (x[:, second] > 0)
    label = (random.random(rows, dtype=np.float32) < 1 / (1 + np.exp(-score))).astype(np.float32)
    return Table(x, label)


def clicks(rows: int = 1_000_000, seed: int = 0) -> Table:
    """Clicks by 13 skewed counts, some missing, and of each of 27 categories its share of clicks and its frequency.

    As Criteo's after such preprocessing (§2.5), 67 columns.
    """
    random, fixed = np.random.default_rng(seed), np.random.default_rng(2020)
    x = np.empty((rows, 67), np.float32)
    scale = fixed.uniform(0.5, 2.0, 13).astype(np.float32)
    x[:, :13] = np.floor(np.exp(random.standard_normal((rows, 13), dtype=np.float32) * scale))
    score = np.log1p(x[:, :13]) @ (0.3 * fixed.standard_normal(13)).astype(np.float32) - 2.0
    for place in range(27):
        size = int(10 ** fixed.uniform(0.7, 4.5))
        effect = fixed.standard_normal(size).astype(np.float32)
        seen = fixed.pareto(1.2, size).astype(np.float32) * 100 + 1
        chosen = (random.random(rows, dtype=np.float32) ** 3 * size).astype(np.int64)
        noise = random.standard_normal(rows, dtype=np.float32) / np.sqrt(seen[chosen])
        x[:, 13 + 2 * place] = 0.05 * np.exp(0.5 * effect[chosen] + noise)
        x[:, 14 + 2 * place] = np.log1p(seen[chosen])
        score += 0.25 * effect[chosen]
    label = (random.random(rows, dtype=np.float32) < 1 / (1 + np.exp(-score))).astype(np.float32)
    absent = random.random((rows, 13), dtype=np.float32) < fixed.uniform(0.0, 0.4, 13).astype(np.float32)
    x[:, :13][absent] = np.nan
    return Table(x, label)


class SparseTable(NamedTuple):
    """Compressed rows, with the fields of `burnish.boost.Sparse`, and labels (rows,) float32."""

    start: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: NDArray[np.float32]
    label: NDArray[np.float32]


def one_hot(rows: int = 100_000, columns: int = 4227, density: float = 0.01, seed: int = 0) -> SparseTable:
    """One-hot columns of categorical fields of skewed sizes, one entry a field and row (§2.5, Allstate)."""
    fixed = np.random.default_rng(2018)
    random = np.random.default_rng(seed)
    fields = max(1, round(columns * density))
    share = fixed.pareto(1.0, fields) + 0.5
    sizes = np.maximum(1, (share / share.sum() * (columns - fields)).astype(np.int64))
    sizes[np.argmax(sizes)] += columns - sizes.sum()
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    effect = fixed.standard_normal(columns).astype(np.float32) * 0.5
    # A square favours the low categories of a field, as real categories are of unequal frequency.
    chosen = (random.random((rows, fields), dtype=np.float32) ** 2 * sizes).astype(np.int32) + first.astype(np.int32)
    score = effect[chosen].sum(axis=1)
    for a, b in fixed.choice(fields, (8, 2)):
        score += effect[chosen[:, a]] * effect[chosen[:, b]] * 8
    label = (random.random(rows, dtype=np.float32) < 1 / (1 + np.exp(-score))).astype(np.float32)
    start = np.arange(rows + 1, dtype=np.int64) * fields
    return SparseTable(start, chosen.ravel(), np.ones(rows * fields, np.float32), label)


class Flights(NamedTuple):
    """A table like the airline data: categories as codes (rows, fields) int32, numbers (rows, 2) float32, labels."""

    codes: NDArray[np.int32]
    numbers: NDArray[np.float32]
    label: NDArray[np.float32]


FIELDS = {"month": 12, "day": 31, "weekday": 7, "carrier": 22, "origin": 300, "destination": 300}


def flights(rows: int = 1_000_000, seed: int = 0) -> Flights:
    """Whether a flight is late, by month, day, weekday, carrier, skewed airports, time of day and distance."""
    random = np.random.default_rng(seed)
    fixed = np.random.default_rng(2019)
    codes = np.empty((rows, len(FIELDS)), np.int32)
    for place, size in enumerate(FIELDS.values()):
        weight = np.ones(size)
        if size == 22:
            weight = fixed.pareto(2.0, size) + 0.2
        elif size == 300:
            weight = 1 / (fixed.permutation(size) + 2.0)
        codes[:, place] = random.choice(size, rows, p=weight / weight.sum()).astype(np.int32)
    numbers = np.empty((rows, 2), np.float32)
    numbers[:, 0] = np.floor(random.beta(2.5, 2.0, rows) * 1440)  # minute of departure
    numbers[:, 1] = np.round(np.exp(random.normal(6.4, 0.6, rows)))  # miles
    month, day, weekday, carrier, origin, destination = codes.T
    effect = {name: fixed.standard_normal(size) for name, size in FIELDS.items()}
    hour = numbers[:, 0] / 60
    score = -1.0 + 0.5 * effect["month"][month] + 0.2 * effect["day"][day] + 0.4 * effect["weekday"][weekday]
    score += 0.6 * effect["carrier"][carrier] + 0.7 * effect["origin"][origin]
    score += 0.7 * effect["destination"][destination]
    score += 0.8 * fixed.standard_normal((22, 300))[carrier, origin]
    score += 0.5 * fixed.standard_normal((12, 300))[month, destination]
    score += 0.5 * fixed.standard_normal((7, 24))[weekday, hour.astype(np.int64)]
    score += 0.25 * (hour - 12) * (0.6 + 0.4 * effect["origin"][origin]) + 0.3 * np.sin(numbers[:, 1] / 300)
    label = (random.random(rows) < 1 / (1 + np.exp(-score))).astype(np.float32)
    return Flights(codes, numbers, label)
