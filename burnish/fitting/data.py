"""Training data: batches from arrays, .npz files, PyTorch's DataLoader and other iterables, at a place to go on from.

The last batch of an epoch may be smaller than the others.
"""

from __future__ import annotations

import random
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from burnish.base.arguments import check_count, check_flag, refusal
from burnish.base.files import open_regular
from burnish.errors import DataError
from burnish.loops.sizes import greatest
from burnish.runtime.buffers import numpy_dtype
from burnish.runtime.steps import TensorSpec

DEFAULT_BATCH = 32  # rows, where neither the model nor the caller says how many
Batch = Sequence[Any] | Mapping[str, Any]


class Source(Protocol):
    """Where batches come from, epoch after epoch."""

    @property
    def batches(self) -> int | None:
        """Batches in an epoch; None if that is not known before."""

    def facts(self) -> dict[str, Any]:
        """Facts that must be equal on resuming for the same batches to follow; JSON."""

    def random(self) -> dict[str, np.ndarray]:
        """The random state that the next epoch begins with, of generators outside of this source."""

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Sets the random state that :meth:`random` has returned."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, the first ``skip`` left out. Raises DataError."""


@dataclass(frozen=True)
class ArrayBatches:
    """Rows of NumPy arrays, all with as many, in batches of ``batch``; the order is that of ``seed`` and the epoch.

    ``arrays``: by the names of the step's inputs, or in their order, the labels last.
    """

    arrays: Mapping[str, np.ndarray] | tuple[np.ndarray, ...]
    batch: int
    shuffle: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ParameterError and DataError."""
        check_count("Arrays: batch", self.batch, 1)
        check_flag("Arrays: shuffle", self.shuffle)
        check_count("Arrays: seed", self.seed, 0)
        rows = {name: a.shape[0] if a.ndim else 0 for name, a in self._named()}
        if not rows or len(set(rows.values())) > 1:
            raise DataError(f"data: found rows {rows or 'of no arrays'}; allowed: as many in all arrays")
        if not self.rows:
            raise DataError("data: found 0 rows; allowed: 1 or more")

    @property
    def rows(self) -> int:
        """Rows of each array."""
        return int(self._named()[0][1].shape[0])

    @property
    def batches(self) -> int:
        """Batches in an epoch, the last of which may be smaller."""
        return -(-self.rows // self.batch)

    def facts(self) -> dict[str, Any]:
        """Rows, batch, seed and whether they are shuffled."""
        return {"rows": self.rows, "batch": self.batch, "seed": self.seed, "shuffle": self.shuffle}

    def random(self) -> dict[str, np.ndarray]:
        """None: the order follows from seed and epoch."""
        return {}

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Nothing is to be set."""

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Batches in the epoch's order."""
        order = np.arange(self.rows)
        if self.shuffle:
            order = np.random.default_rng((self.seed, number)).permutation(self.rows)
        for place in range(skip, self.batches):
            chosen = order[place * self.batch : (place + 1) * self.batch]
            taken = {name: array[chosen] for name, array in self._named()}
            yield taken if isinstance(self.arrays, Mapping) else tuple(taken.values())

    def _named(self) -> list[tuple[Any, np.ndarray]]:
        named = self.arrays.items() if isinstance(self.arrays, Mapping) else enumerate(self.arrays)
        return [(name, np.asarray(a)) for name, a in named]


@dataclass(frozen=True)
class Loader:
    """Batches of an iterable that can be iterated anew for each epoch, such as PyTorch's DataLoader.

    To go on within an epoch, the random state of its beginning is set and the batches before are drawn again: those of
    Python, of NumPy's legacy functions, of PyTorch and of the loader's own ``generator``.
    """

    iterable: Iterable[Any]

    @property
    def batches(self) -> int | None:
        """Number of batches by ``len``; None for an iterable without it."""
        try:
            return len(self.iterable)  # type: ignore[arg-type]
        except TypeError:
            return None

    def facts(self) -> dict[str, Any]:
        """The number of batches."""
        return {"batches": self.batches}

    def random(self) -> dict[str, np.ndarray]:
        """The state of each generator, as integers."""
        _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        version, numbers, gauss = random.getstate()
        found = {
            "python": np.array([version, *numbers], np.uint64), "python.gauss": np.array(_present(gauss)),
            "numpy": np.array([*keys, position, has_gauss], np.uint64), "numpy.gauss": np.array(cached),
        }  # fmt: skip
        torch = sys.modules.get("torch")
        if torch is not None:
            found["torch"] = torch.get_rng_state().numpy()
        own = getattr(self.iterable, "generator", None)
        if own is not None and hasattr(own, "get_state"):
            found["loader"] = own.get_state().numpy()
        return found

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Sets the generators back."""
        version, *numbers = found["python"].tolist()
        gauss = float(found["python.gauss"])
        random.setstate((version, tuple(numbers), None if np.isnan(gauss) else gauss))
        *keys, position, has_gauss = found["numpy"].tolist()
        words = np.array(keys, np.uint32)
        np.random.set_state(("MT19937", words, position, has_gauss, float(found["numpy.gauss"])))
        torch = sys.modules.get("torch")
        if torch is not None and "torch" in found:
            torch.set_rng_state(torch.from_numpy(found["torch"].copy()))
        own = getattr(self.iterable, "generator", None)
        if own is not None and "loader" in found:
            assert torch is not None, "a generator is torch's"
            own.set_state(torch.from_numpy(found["loader"].copy()))

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """The batches as they come."""
        for place, batch in enumerate(self.iterable):
            if place >= skip:
                yield batch


def source(data: Any, inputs: Sequence[TensorSpec], *, shuffle: bool = True, seed: int = 0) -> Source:
    """Batches for a step with these ``inputs``, the label last, from what is given as data.

    A path of an .npz file, a mapping or a tuple of arrays or tensors is cut into batches of the inputs' first extent; a
    :class:`Source` is taken as it is; another iterable gives batches itself, and is iterated once an epoch. Raises
    DataError and ParameterError.
    """
    arrays = arrays_of(data)
    if arrays is None:
        return _batches_of(data)
    if isinstance(arrays, Mapping):
        arrays = _by_name(arrays, inputs)
    elif len(arrays) != len(inputs):
        raise DataError(f"data: found {len(arrays)} arrays; allowed: {', '.join(map(str, inputs))}")
    return ArrayBatches(arrays, _batch_of(inputs), shuffle, seed)


def default_batch(data: Any, multiple: int = 1) -> int:
    """Rows of a batch for a model that leaves them open: 32, or all there are if fewer, a multiple of ``multiple``.

    Of data that come in batches it is the rows of the first. Raises DataError, ParameterError and OSError.
    """
    arrays = arrays_of(data)
    if arrays is not None:
        rows = min(DEFAULT_BATCH, rows_of(arrays))
        return max(rows - rows % multiple, multiple)
    batches = _batches_of(data)
    random = batches.random()
    try:
        return max(next(map(rows_of, batches.epoch(0)), 1), 1)
    finally:
        batches.restore(random)


def arrays_of(data: Any) -> dict[str, np.ndarray] | tuple[np.ndarray, ...] | None:
    """Arrays of rows, by name or in order, of what is given as data or of its file; None where it gives batches.

    Raises DataError and OSError.
    """
    if isinstance(data, (str, Path)):
        return read_npz(Path(data))
    if isinstance(data, Mapping):
        return {name: _as_numpy(value) for name, value in data.items()}
    listed = isinstance(data, (tuple, list)) and data
    if listed and all(isinstance(a, np.ndarray) or (is_tensor(a) and isinstance(data, tuple)) for a in data):
        return tuple(map(_as_numpy, data))
    return None


def rows_of(batch: Batch) -> int:
    """The first extent of the first array of a batch, 0 where there is none."""
    values = [*batch.values()] if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else [batch]
    shape = np.shape(values[0]) if values else ()
    return int(shape[0]) if shape else 0


def _batches_of(data: Any) -> Source:
    """Batches as they are given. Raises ParameterError for data that give none, or once alone."""
    if callable(getattr(data, "epoch", None)):
        found: Source = data
        return found
    if isinstance(data, Iterable) and not isinstance(data, Iterator):  # which draws no numbers of a loader
        return Loader(data)
    allowed = "arrays, the path of an .npz file, a DataLoader, or an iterable that can be iterated for each epoch"
    raise refusal("data", data, allowed)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name. Raises DataError, naming the file, and OSError."""
    with open_regular(path) as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: found a single array; allowed: an .npz file with arrays by name")
            with archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path}: found no readable .npz file: {error}") from error


def bound(batch: Batch, inputs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """A batch as arrays in the order of the step's inputs, with their dtypes. It may have fewer rows, one or more.

    Raises DataError for missing arrays, other shapes, and dtypes that would lose more than precision.
    """
    names = [spec.name for spec in inputs]
    if isinstance(batch, Mapping):
        values = [*_by_name(batch, inputs).values()]
    else:
        values = [*batch] if isinstance(batch, (tuple, list)) else [batch]
    if len(values) != len(inputs):
        raise DataError(f"batch: found {len(values)} arrays; allowed: {', '.join(names)}")
    arrays = [_array(value, spec) for value, spec in zip(values, inputs, strict=True)]
    rows, size = {a.shape[0] if a.ndim else 0 for a in arrays}, greatest(inputs[0].shape[0]) if inputs[0].shape else 0
    if len(rows) == 1 and 0 < (found := rows.pop()) < size and _alike(arrays, inputs, found):
        return arrays
    for array, spec in zip(arrays, inputs, strict=True):
        whole = tuple(map(greatest, spec.shape))
        if array.shape != whole:
            raise DataError(f"batch: '{spec.name}': found shape {list(array.shape)}; allowed: {list(whole)}")
    return arrays


def _alike(arrays: Sequence[np.ndarray], inputs: Sequence[TensorSpec], rows: int) -> bool:
    return all(a.shape == (rows, *s.shape[1:]) for a, s in zip(arrays, inputs, strict=True))


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch."""
    return hasattr(value, "detach")


def _as_numpy(value: Any) -> np.ndarray:
    """An array or a tensor of the CPU as an array that shares its memory."""
    return np.asarray(value.detach().numpy() if is_tensor(value) else value)


def _array(value: Any, spec: TensorSpec) -> np.ndarray:
    found = _as_numpy(value)
    dtype = numpy_dtype(spec.dtype)
    if found.dtype == dtype:
        return np.asarray(found)
    if not np.can_cast(found.dtype, dtype, "same_kind"):
        raise DataError(f"batch: '{spec.name}': found dtype {found.dtype}; allowed: {spec.dtype}")
    return np.asarray(found.astype(dtype))


def _by_name(given: Mapping[str, Any], inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Arrays by name, in the order of the inputs. Raises DataError for other names."""
    names = [spec.name for spec in inputs]
    if sorted(given) != sorted(names):
        raise DataError(f"data: found arrays {sorted(given)}; allowed: {', '.join(names)}")
    return {name: given[name] for name in names}


def _batch_of(inputs: Sequence[TensorSpec]) -> int:
    """The first extent of the inputs, which is a batch's, and the most of it where it is open."""
    extents = {spec.shape[0] if spec.shape else 0 for spec in inputs}
    if len(extents) != 1 or 0 in extents:
        raise DataError(
            f"data: found inputs {', '.join(map(str, inputs))}; allowed for arrays of rows: inputs and labels with the "
            "same first extent, the batch; for others give an iterable of batches"
        )
    return greatest(extents.pop())


def _present(value: float | None) -> float:
    return float("nan") if value is None else value
