"""Out-of-core training (§2.3.3, §2.5.5): data of four budgets, the memory it took, and what each technique costs."""

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from benchmarks.boosting.datasets import higgs_like
from benchmarks.boosting.report import Row, row
from burnish.boost import booster
from burnish.boost.data import Dataset
from burnish.boost.external import ExternalGrower, train_external
from burnish.boost.grower import HistGrower
from burnish.boost.metric import area_under_curve
from burnish.boost.model import Model
from burnish.boost.outofcore import spool
from burnish.boost.outofcore.ingest import ingest
from burnish.boost.outofcore.store import ColumnStore
from burnish.boost.params import Params
from burnish.boost.sampling import EVERY_COLUMN
from burnish.runtime.threads import Workers

FEATURES, CHUNK, BUDGET = 28, 100_000, 256 << 20
PACE = 30e6  # bytes a second of a slow disk, as each folder of a paced store is read
ALLOWANCE = 300 << 20  # for the interpreter and its libraries
PARAMS = {"objective": "binary:logistic", "max_depth": 8, "learning_rate": 0.1, "threads": 2}
HELD_OUT = 1_000_000_007  # a seed that no chunk has
PAPER = "26–29 %"


def measure(quick: bool = False) -> list[Row]:
    """Rows of the report: memory and AUC of one training beyond the budget, and seconds a tree of each technique."""
    budget = BUDGET // 8 if quick else BUDGET
    rows = (2 if quick else 4) * budget // (4 * FEATURES) // CHUNK * CHUNK + CHUNK
    rounds = 2 if quick else 4
    with tempfile.TemporaryDirectory() as folder:
        outside = child("train", rows=rows, rounds=rounds, budget=budget, folder=folder)
        inside = child("train", rows=rows, rounds=rounds, budget=0, folder=folder)
        timing = child("time", rows=100_000 if quick else 400_000, budget=0, rounds=rounds, folder=folder)
    size = 4 * FEATURES * rows
    report = [
        row("peak resident memory, MB", outside["peak"] / 2**20, {}, f"<= {(budget + ALLOWANCE) >> 20}",
            f"budget {budget >> 20} MB, {rows} × {FEATURES} float32 are {size / budget:.1f} budgets; in memory "
            f"{inside['peak'] / 2**20:.0f} MB"),
        row("held-out AUC", outside["auc"], {}, f"= {inside['auc']:.6f}", "that of training in memory"),
        row("stored / float32", outside["ratio"], {}, "-", f"paper: {PAPER}; bins of the compressor alone: "
            f"{outside['compressed']:.2f}, {outside['pieces']:.0%} of the pieces compressed"),
        row("whole training, s", outside["seconds"], {}, "-", f"in memory {inside['seconds']:.1f} s, {rounds} rounds"),
    ]  # fmt: skip
    memory, ratio, chosen = timing["memory"], timing.pop("stored / float32"), timing.pop("codecs")
    report.append(row("stored / float32, half the columns of few values", ratio, {}, "-", f"paper: {PAPER}"))
    report.append({**row("codecs that auto chose", len(set(chosen.values())), {}, "-", str(chosen)), "codecs": chosen})
    for name, seconds in timing.items():
        report.append(row(f"ms a tree, {name}", 1000 * seconds, {}, "-", f"{seconds / memory:.2f} × in memory"))
    return report


def child(job: str, **options: Any) -> dict[str, Any]:
    """Runs a job in a process of its own, whose memory is its own."""
    command = [sys.executable, "-m", "benchmarks.boosting.external", job, json.dumps(options)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def chunks(rows: int, features: int = FEATURES) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """The data in parts, generated as they are asked for."""
    chunk = CHUNK * FEATURES // features
    for seed, first in enumerate(range(0, rows, chunk)):
        yield higgs_like(min(chunk, rows - first), features, seed)


def whole(rows: int, features: int = FEATURES) -> Dataset:
    """The same data in one table."""
    x, y, done = np.empty((rows, features), np.float32), np.empty(rows, np.float32), 0
    for part, label in chunks(rows, features):
        x[done : done + len(label)], y[done : done + len(label)] = part, label
        done += len(label)
    return Dataset.of(x, y)


def train(
    rows: int,
    rounds: int,
    budget: int,
    folder: str,
    features: int = FEATURES,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Trains within a budget, or in memory if it is 0; then tests on held-out rows."""
    began, cpu, before = time.perf_counter(), time.process_time(), peak_memory()
    found: dict[str, Any] = {"before": before}
    params = {**PARAMS, **options}
    if budget:
        store_folder, source = Path(folder) / "store", chunks(rows, features)
        model = train_external(params, source, rounds, folders=store_folder, memory_budget=budget, keep=True)
        with ColumnStore.open(store_folder) as store:
            found |= {} if options else sizes(store)
    else:
        model = booster.train(params, whole(rows, features), rounds)
    found |= {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu, "peak": peak_memory()}
    return found | {"auc": held_out(model, features)}


def sizes(store: ColumnStore) -> dict[str, float]:
    """Compression ratios of the columns: in all, and the compressor's part of it."""
    columns = store.pieces[:, : store.pieces.shape[1] - len(store.header["row_arrays"])]
    stored, raw = int(columns["stored"].sum()), int(columns["raw"].sum())
    share = float(columns["compressed"].mean())
    return {"ratio": stored / store.header["source_bytes"], "compressed": stored / raw, "pieces": share}


def held_out(model: Model, features: int = FEATURES) -> float:
    """AUC on rows that training has not seen."""
    x, y = higgs_like(200_000 * FEATURES // features, features, HELD_OUT)
    return area_under_curve(model.predict_margin(x)[0], y > 0)


def peak_memory() -> int:
    """The most memory, in bytes, that was resident in this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


class PacedStore(ColumnStore):
    """A store whose folders are read at ``PACE`` each, as slow disks are: who reads waits until its turn is over."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lock, self._free = threading.Lock(), [0.0] * len(self.folders)

    def read(self, block: int, piece: int, into: NDArray[np.uint8], scratch: bytearray) -> None:
        """Reads a column as a store does, and waits for the disk's turn."""
        folder = block % len(self.folders)
        with self._lock:
            until = max(self._free[folder], time.monotonic()) + int(self.pieces[block, piece]["stored"]) / PACE
            self._free[folder] = until
        time.sleep(max(0.0, until - time.monotonic()))
        super().read(block, piece, into, scratch)


def time_trees(rows: int, rounds: int, budget: int, folder: str) -> dict[str, Any]:
    """Median seconds of a tree in memory and from disk: by codec, one or two folders, from the system's cache, from the
    disk, and from paced disks, for which "auto" is given their pace.
    """
    workers, params = Workers(2), Params.of(PARAMS)
    # Every other four columns (those of one piece) of few values, as counts have: there is something to compress.
    data = [(np.where(np.arange(FEATURES) // 4 % 2, x, np.round(x)), y) for x, y in chunks(rows)]
    growers: dict[str, Any] = {
        "memory": HistGrower(Dataset.of(np.concatenate([x for x, _ in data])), params, workers),
    }
    stores: dict[str, ColumnStore] = {}
    codecs: dict[str, str] = {}
    for compression in ("none", "zlib", "auto"):
        for shards in (1, 2):
            name = f"{compression}, {shards} folder{'s' * (shards > 1)}"
            for paced in (False, True):
                own = f"{name}, paced" if paced else name
                folders = [Path(folder) / f"{compression}{shards}{k}{paced}" for k in range(shards)]
                rate = mock.patch.object(spool, "disk_rate", lambda *_: PACE) if paced else contextlib.nullcontext()
                with rate:
                    store = ingest(data, folders, params.max_bin, workers, memory=256 << 20, compression=compression)
                codecs |= {own: store.header["compression"]} if compression == "auto" else {}
                stores[own] = PacedStore.open(folders) if paced else store
                growers[own] = ExternalGrower(stores[own], params, workers)
    label = np.concatenate([y for _, y in data])
    hessian = np.random.default_rng(0).uniform(0.1, 0.25, rows).astype(np.float32)
    gradient = (0.5 - label) * hessian
    times: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for name, grower in growers.items():
            for cold in (False, True) if name in stores and not isinstance(stores[name], PacedStore) else (False,):
                if cold:
                    stores[name].forget()
                began = time.perf_counter()
                grower.grow(gradient, hessian, EVERY_COLUMN)
                if turn:
                    times.setdefault(name + ", cache dropped" * cold, []).append(time.perf_counter() - began)
    found = {name: median(values) for name, values in times.items()}
    return found | {"stored / float32": sizes(stores["zlib, 1 folder"])["ratio"], "codecs": codecs}


def main() -> None:
    """A child's job."""
    job = {"train": train, "time": time_trees}[sys.argv[1]]
    print(json.dumps(job(**json.loads(sys.argv[2]))))


if __name__ == "__main__":
    main()
