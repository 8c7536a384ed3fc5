"""Combinations of capabilities, each tried: `python -m tools.matrix [--only PATTERN] [--write docs/combinations.md]`.

{ONNX, PyTorch} × {inference, training} × {fixed, open batch} × {this CPU, an ARM CPU, a GPU} × {tuned, within a memory
budget, by a plan of two ranks, saved and loaded}: a small convolutional network is compiled, called, and compared with
PyTorch in float64. Code for machines that are not here runs in emulators. A cell is right, or refused with a reason, or
wrong; a refusal counts only if it is an error that Burnish raises on purpose.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import burnish as bn
from burnish.boards.leasing import Devices
from burnish.boards.pool import DevicePool
from burnish.boards.table import BoardEntry
from burnish.driver.api import tuned
from burnish.errors import BurnishError
from burnish.frontend.onnx import to_onnx
from burnish.frontend.torch.export import import_torch
from burnish.machines.target import target
from burnish.simulators.emulator import CpuEmulator
from burnish.simulators.emulator import emulated as emulated_cpu
from burnish.simulators.gpu.emulator import GridEmulator
from burnish.simulators.gpu.emulator import emulated as emulated_gpu

SOURCES = ("ONNX", "PyTorch")
USES = ("inference", "training")
SIZES = ("fixed", "open")
BOARDS = ("aarch64-cortex-a53",)  # those that tuners time on boards
EMULATORS: dict[str, Any] = {"aarch64-cortex-a53": CpuEmulator, "cuda:sm_90a": GridEmulator}
TARGETS: dict[str, bn.Target] = {  # those that are not here with an emulator in their place
    "cpu": target("cpu"),
    "aarch64-cortex-a53": emulated_cpu(target("aarch64-cortex-a53")),
    "cuda:sm_90a": emulated_gpu(target("cuda:sm_90a")),
}
WAYS = ("tuned", "memory budget", "plan of two ranks", "saved and loaded")
BATCH, ROWS = 4, (1, 3, 4)  # of examples; of calls where the batch is open
MOST = 8  # rows of an open batch
RATE = 0.1
STEPS = 3
TOLERANCE = 2e-5
BUDGET = "2MB"


@dataclass(frozen=True)
class Cell:
    """One combination."""

    source: str
    use: str
    size: str
    target: str
    way: str

    def __str__(self) -> str:
        return ", ".join((self.source, self.use, self.size, self.target, self.way))


def network() -> torch.nn.Module:
    """Convolution, relu, mean over pixels, product; weights by a fixed seed."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
        torch.nn.Linear(8, 4),
    )  # fmt: skip


def batch(rows: int, step: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels."""
    rng = np.random.default_rng((rows, step))
    return rng.standard_normal((rows, 2, 6, 6)).astype("float32"), rng.integers(0, 4, rows)


def answer(rows: int) -> np.ndarray:
    """The network's outputs in float64."""
    with torch.no_grad():
        return np.asarray(network().double()(torch.from_numpy(batch(rows)[0]).double()))


def losses(sizes: Sequence[int]) -> list[float]:
    """The losses of steps of stochastic gradient descent in float64, each on a batch of its own size."""
    net, found = network().double(), []
    optimizer = torch.optim.SGD(net.parameters(), RATE)
    for step, rows in enumerate(sizes):
        x, y = batch(rows, step)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x).double()), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        found.append(float(loss))
    return found


def cells() -> Iterator[Cell]:
    """All combinations."""
    return itertools.starmap(Cell, itertools.product(SOURCES, USES, SIZES, TARGETS, WAYS))


def attempt(cell: Cell, folder: Path) -> str:
    """Returns "right", or why it is refused. Raises AssertionError for a wrong answer, and what is no refusal."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (_trained if cell.use == "training" else _inferred)(cell, folder)
    except BurnishError as error:
        return f"refused: {type(error).__name__}: {error}"
    return "right"


def _model(cell: Cell) -> tuple[Any, Any, dict[str, Any]]:
    """The model, example inputs or None, and the arguments that say which extents stay open."""
    net, example = network().train(cell.use == "training"), (torch.from_numpy(batch(BATCH)[0]),)
    if cell.source == "PyTorch":
        return net, example, {"dynamic": {"batch": (1, MOST)}} if cell.size == "open" else {}
    opened = {"batch": (1, MOST)} if cell.size == "open" else None
    model = to_onnx(import_torch(net, example, opened, training=False).graph)
    name = model.graph.input[0].name
    return model, None, {"shapes": {name: ("batch", 2, 6, 6), "batch": (1, MOST)}} if cell.size == "open" else {}


def _train(cell: Cell) -> bn.Train:
    budget = BUDGET if cell.way == "memory budget" else None
    return bn.Train(bn.CrossEntropy(), bn.SGD(RATE), memory_budget=budget)


def _compiled(cell: Cell, folder: Path) -> Callable[..., Any]:
    """The compiled model or step, called here."""
    model, example, arguments = _model(cell)
    arguments |= {"target": TARGETS[cell.target], "threads": 1, "cache_dir": folder}
    if cell.use == "training":
        arguments["train"] = _train(cell)
    elif cell.way == "memory budget":
        arguments["memory_budget"] = BUDGET
    if cell.way == "tuned" and cell.target in BOARDS:
        made = _tuned_on_a_board(cell, folder)
    elif cell.way == "tuned":
        arguments |= {"tune": bn.Tune(trials=2), "records": folder / "records.jsonl"}
        made = bn.compile(model, example, **arguments)
    else:
        made = bn.compile(model, example, **arguments)
    if cell.way != "saved and loaded" and not (cell.way == "tuned" and cell.target in BOARDS):
        return made
    made.save(folder / "m.bn")
    device = EMULATORS.get(cell.target)
    return bn.load(folder / "m.bn", device=None if device is None else device())


def _tuned_on_a_board(cell: Cell, folder: Path) -> bn.CompiledModel:
    """Module tuned on a board, as by `burnish tune --devices`: a pool of one board, which is an emulator with a clock
    that counts.
    """
    model, example, arguments = _model(cell)
    if cell.source == "PyTorch":
        dynamic, trains = arguments.pop("dynamic", None), cell.use == "training"
        model = import_torch(model, example, dynamic, training=trains).graph
    with DevicePool([BoardEntry("board", cell.target, "emulator")]) as pool:
        return tuned(
            model, bn.Tune(trials=2), target=cell.target, threads=1, cache_dir=folder, records=folder / "records.jsonl",
            train=_train(cell) if cell.use == "training" else None, devices=Devices(pool, cell.target, "matrix"),
            **arguments,
        ).module  # fmt: skip


def _inferred(cell: Cell, folder: Path) -> None:
    made = _by_plan(cell, folder) if cell.way == "plan of two ranks" else _compiled(cell, folder)
    for rows in ROWS if cell.size == "open" else (BATCH,):
        found = np.asarray(made(batch(rows)[0]))
        _compare(f"{rows} rows", found, answer(rows))


def _trained(cell: Cell, folder: Path) -> None:
    sizes = ROWS if cell.size == "open" else (BATCH,) * STEPS
    if cell.way == "plan of two ranks" and cell.size == "fixed":
        found: Sequence[float] = _fitted(cell, sizes, folder)
    else:
        step = _by_plan(cell, folder) if cell.way == "plan of two ranks" else _compiled(cell, folder)
        found = [float(np.asarray(step(*batch(rows, number)))) for number, rows in enumerate(sizes)]
    _compare("losses", np.array(found), np.array(losses(sizes)))


def _plan(cell: Cell) -> bn.Plan:
    model, example, arguments = _model(cell)
    train = _train(cell) if cell.use == "training" else None
    return bn.plan(model, example, train, devices="host:2", seconds=0.2, **arguments)


def _by_plan(cell: Cell, folder: Path) -> Callable[..., Any]:
    """The model, or its step, on two ranks of this process."""
    return _plan(cell).compile(target=TARGETS[cell.target], cache_dir=folder)


def _fitted(cell: Cell, sizes: Sequence[int], folder: Path) -> Sequence[float]:
    """Losses of training by a plan, by ``bn.fit``."""
    model, example, _ = _model(cell)
    batches = [batch(rows, number) for number, rows in enumerate(sizes)]
    data = tuple(np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    done = bn.fit(
        model, data, _train(cell), plan=_plan(cell), worker_kind="thread", epochs=1, shuffle=False,
        target=TARGETS[cell.target], cache_dir=folder, example_inputs=example,
    )  # fmt: skip
    return list(done.report.losses)


def _compare(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape, f"{name}: found shape {found.shape}, wanted {wanted.shape}"
    error = float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))
    assert error <= TOLERANCE, f"{name}: off by {error:.1e} of the largest"


def table(outcomes: dict[Cell, str]) -> str:
    """Markdown: a row a source, use, size and target, a column a way; refusals are numbered below."""
    reasons: dict[str, int] = {}
    lines = [
        "# Combinations",
        "",
        "Written by `python -m tools.matrix --write docs/combinations.md`; `tests/tools/test_matrix.py` holds it. A",
        "small convolutional network, compared with PyTorch in float64; code for other machines ran in emulators.",
        "",
        f"| model | use | batch | target | {' | '.join(WAYS)} |",
        "|---" * (4 + len(WAYS)) + "|",
    ]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for cell, outcome in outcomes.items():
        mark = outcome
        if outcome.startswith("refused"):
            reason = outcome.removeprefix("refused: ")
            mark = f"no ({reasons.setdefault(reason, len(reasons) + 1)})"
        rows.setdefault((cell.source, cell.use, cell.size, cell.target), {})[cell.way] = mark
    lines += [f"| {' | '.join((*row, *(marks.get(way, '') for way in WAYS)))} |" for row, marks in rows.items()]
    refused = sum(outcome.startswith("refused") for outcome in outcomes.values())
    lines += ["", f"{len(outcomes)} combinations, {refused} refused:", ""]
    lines += [f"{number}. {reason}" for reason, number in reasons.items()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line; 1 where a combination is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("--only", default="*", help="a pattern of cells, such as 'ONNX, training*'")
    parser.add_argument("--write", type=Path, help="the page to write")
    arguments = parser.parse_args()
    outcomes, wrong = {}, 0
    for cell in cells():
        if not fnmatch.fnmatch(str(cell), arguments.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[cell] = attempt(cell, Path(folder))
            except Exception as error:
                outcomes[cell] = f"WRONG: {type(error).__name__}: {error}"
                wrong += 1
        print(f"{cell}: {outcomes[cell]}", flush=True)
    if arguments.write:
        arguments.write.write_text(table(outcomes), encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
