"""Training data: batches of arrays, files, loaders and iterables, and the place from which they go on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from burnish.errors import DataError, ParameterError
from burnish.fitting.data import ArrayBatches, Loader, bound, read_npz, source
from burnish.runtime.steps import TensorSpec

INPUTS = (TensorSpec("x", (4, 3), "float32"), TensorSpec("label", (4,), "int64"))
DATA = {"label": np.arange(10), "x": np.arange(30, dtype="f4").reshape(10, 3)}


def test_every_epoch_has_its_own_order_of_whole_rows() -> None:
    found = source(DATA, INPUTS, seed=3)
    assert found.batches == 3
    epochs = [[bound(b, INPUTS) for b in found.epoch(number)] for number in (0, 1, 0)]
    labels = [np.concatenate([b[1] for b in epoch]) for epoch in epochs]
    assert len(set(labels[0])) == 10 and len(epochs[0][-1][1]) == 2 and not np.array_equal(labels[0], labels[1])
    assert np.array_equal(labels[0], labels[2])
    for epoch in epochs:
        for batch in epoch:
            assert np.array_equal(batch[0][:, 0], 3 * batch[1])
    later = [bound(b, INPUTS) for b in found.epoch(1, skip=1)]
    assert len(later) == 2
    assert np.array_equal(later[0][1], epochs[1][1][1])
    plain = source((DATA["x"], DATA["label"]), INPUTS, shuffle=False)
    assert [bound(b, INPUTS)[1].tolist() for b in plain.epoch(5)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_tensors_are_rows_as_arrays_are() -> None:
    tensors = {name: torch.from_numpy(value).clone().requires_grad_(name == "x") for name, value in DATA.items()}
    expected = [bound(b, INPUTS) for b in source(DATA, INPUTS, seed=3).epoch(1)]
    for given in (tensors, (tensors["x"], tensors["label"]), (tensors["x"], DATA["label"])):
        made = [bound(b, INPUTS) for b in source(given, INPUTS, seed=3).epoch(1)]
        assert all(np.array_equal(a, b) for m, e in zip(made, expected, strict=True) for a, b in zip(m, e, strict=True))
    with pytest.raises(DataError, match="data: found 1 arrays; allowed: x: float32"):
        source((tensors["x"],), INPUTS)


def test_files_of_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **DATA)
    assert source(tmp_path / "data.npz", INPUTS).facts() == source(DATA, INPUTS).facts()
    np.save(tmp_path / "one.npy", DATA["x"])
    (tmp_path / "text.npz").write_text("no archive")
    whole = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "part.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("one.npy", "text.npz", "part.npz"):
        with pytest.raises(DataError, match=name):
            read_npz(tmp_path / name)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"objects\.npz"):
        read_npz(tmp_path / "objects.npz")


def test_batches_are_made_to_fit_or_refused() -> None:
    x, label = np.ones((4, 3)), np.arange(4, dtype=np.int32)
    fitted = bound((x, label), INPUTS)
    assert [a.dtype.name for a in fitted] == ["float32", "int64"]
    assert np.array_equal(bound({"label": label, "x": x}, INPUTS)[1], label)
    assert [len(a) for a in bound((x[:3], label[:3]), INPUTS)] == [3, 3]
    for batch, message in (
        ((x, label.astype("f4")), "'label': found dtype float32; allowed: int64"),
        ((x, label[:3]), r"'label': found shape \[3\]; allowed: \[4\]"),
        ((x[:, :2], label), r"'x': found shape \[4, 2\]"), ((x,), "found 1 arrays; allowed: x, label"),
        ({"x": x, "y": label}, r"found arrays \['x', 'y'\]; allowed: x, label"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            bound(batch, INPUTS)


def test_what_gives_no_batches_is_refused() -> None:
    with pytest.raises(DataError, match="found 0 rows; allowed: 1 or more"):
        source({"x": np.ones((0, 3)), "label": np.ones(0)}, INPUTS)
    with pytest.raises(DataError, match=r"found rows \{'x': 5, 'label': 4\}"):
        source({"x": np.ones((5, 3)), "label": np.ones(4)}, INPUTS)
    with pytest.raises(DataError, match="found 1 arrays"):
        source((np.ones((5, 3)),), INPUTS)
    with pytest.raises(ParameterError, match="an iterable that can be iterated for each epoch"):
        source((batch for batch in ()), INPUTS)
    with pytest.raises(DataError, match="allowed for arrays of rows"):
        source(DATA, (TensorSpec("x", (4, 3), "float32"), TensorSpec("label", (8,), "int64")))


class Drawn:
    """Batches made of all random generators that a data set may use."""

    def __iter__(self) -> Iterator[np.ndarray]:
        for _ in range(5):
            yield np.array([random.gauss(0, 1), np.random.normal(), random.random()])


def test_an_iterable_goes_on_where_it_was() -> None:
    random.seed(5)
    random.gauss(0, 1)  # leaves the second number of a pair behind
    np.random.seed(5)
    np.random.normal()
    loader = Loader(Drawn())
    begun = loader.random()
    whole = [np.asarray(b) for b in loader.epoch(0)]
    random.seed(99)
    np.random.seed(99)
    loader.restore(begun)
    rest = [np.asarray(b) for b in loader.epoch(0, skip=2)]
    assert np.array_equal(rest, whole[2:])


@pytest.mark.parametrize("own", [False, True])
def test_a_loader_of_torch_goes_on_where_it_was(own: bool) -> None:
    import torch

    tensors = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(12, 1), torch.arange(12))
    more: dict[str, Any] = {"generator": torch.Generator().manual_seed(4)} if own else {}
    loader = source(torch.utils.data.DataLoader(tensors, batch_size=4, shuffle=True, **more), INPUTS)
    assert loader.batches == 3
    torch.manual_seed(1)
    [*loader.epoch(0)]
    begun = loader.random()
    whole = [label.tolist() for _, label in loader.epoch(1)]  # type: ignore[union-attr]
    torch.manual_seed(2)
    [*loader.epoch(0)]
    loader.restore(begun)
    assert [label.tolist() for _, label in loader.epoch(1, skip=1)] == whole[1:]  # type: ignore[union-attr]


def test_arrays_say_what_they_are() -> None:
    assert ArrayBatches(DATA, 4, seed=2).facts() == {"rows": 10, "batch": 4, "seed": 2, "shuffle": True}
