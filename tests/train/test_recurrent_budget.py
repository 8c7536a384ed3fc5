"""Recurrent layers within a memory budget: divided along time, with the gradients of the whole, up to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.graph.graph import Graph, GraphBuilder
from burnish.runtime.sized import plan_at
from tests.marks import slow_except

STEPS, ROWS, UNITS = 16, 32, 16


def lstm(layers: int = 2) -> Graph:
    """LSTM layers, each with one product for the inputs of all steps, and a softmax at every step."""
    b, r = GraphBuilder(), np.random.default_rng(0)

    def weight(name: str, *shape: int) -> str:
        return b.constant((r.normal(size=shape) / 4).astype("f4"), name)

    x = b.input("x", (STEPS * ROWS, UNITS))
    for layer in range(layers):
        gates = b.add("matmul", x, weight(f"w{layer}", UNITS, 4 * UNITS))
        h = c = b.constant(np.zeros((ROWS, UNITS), "f4"))
        own, hidden = weight(f"u{layer}", 4, UNITS, UNITS), []
        for t in range(STEPS):
            given = b.add("slice", gates, starts=(t * ROWS, 0), extents=(ROWS, 4 * UNITS))
            h, c = b.add_many("lstm_cell", given, h, c, own)
            hidden.append(h)
        x = b.add("concat", *hidden, axis=0)
    return b.build(b.add("matmul", x, weight("head", UNITS, 5)))


def batches(count: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    r = np.random.default_rng(1)
    rows = STEPS * ROWS
    return [(r.normal(size=(rows, UNITS)).astype("f4"), r.integers(0, 5, rows)) for _ in range(count)]


def compiled(model: Any, budget: Any, *example: Any, **how: Any) -> bn.Module:
    train = bn.Train(optimizer=bn.SGD(0.5), memory_budget=budget)
    return bn.compile(model, *example, train=train, threads=1, **how)


def close(module: bn.Module, plain: bn.Module, given: list[Any]) -> None:
    losses = [[float(of(*one)) for one in given] for of in (module, plain)]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for name in plain.state:
        np.testing.assert_allclose(module.state[name], plain.state[name], rtol=1e-4, atol=2e-6)


def check_segments(
    module: bn.Module, plain: bn.Module, given: list[Any], share: float, repeated: int, path: Path
) -> None:
    """A step with a budget takes less than ``share`` of what a plain one takes, by more than ``repeated`` calls that
    are made again; trains as that does; and is saved and goes on.
    """
    assert module.memory["arena"] < share * plain.memory["arena"]
    assert module.executable.info["recomputation"]["repeated"] > repeated
    close(module, plain, given[:2])
    module.save(path)
    again = bn.load(path)
    assert again.memory["arena"] == module.memory["arena"]
    assert float(again(*given[2])) == float(module(*given[2]))


@pytest.mark.slow
def test_segments_of_steps_are_computed_again(tmp_path: Path) -> None:
    graph = lstm()
    plain, module = compiled(graph, None), compiled(graph, "sublinear")
    check_segments(module, plain, batches(), 0.5, STEPS, tmp_path / "step.bn")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("how", [{}, {"batch_first": True}, {"bidirectional": True}, {"dropout": 0.3}])
def test_layers_of_pytorch_are_divided(kind: str, how: dict[str, Any]) -> None:
    import torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = getattr(torch.nn, kind)(UNITS, UNITS, 2, **how)
            self.head = torch.nn.Linear(UNITS * (2 if how.get("bidirectional") else 1), 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(x)[0])

    torch.manual_seed(0)
    net = Net().train()
    r, extents = np.random.default_rng(0), (ROWS, STEPS) if how.get("batch_first") else (STEPS, ROWS)
    given = [(r.normal(size=(*extents, UNITS)).astype("f4"), r.integers(0, 5, extents)) for _ in range(2)]
    example = (torch.zeros(*extents, UNITS),)
    plain, module = compiled(net, None, example), compiled(net, "sublinear", example)
    close(module, plain, given)
    share = module.memory["arena"] / plain.memory["arena"]
    assert share < (1.0 if "bidirectional" in how else 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [STEPS, 80])
def test_an_open_batch_is_trained_within_a_budget(steps: int) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LSTM(UNITS, UNITS), First(), torch.nn.Linear(UNITS, 5)).train()
    example = (torch.zeros(steps, 8, UNITS),)
    shapes = {"input": {1: "n"}, "n": (1, 16)}
    plain, module = (compiled(net, budget, example, dynamic=shapes) for budget in (None, "sublinear"))
    r = np.random.default_rng(0)
    given = [(r.normal(size=(steps, n, UNITS)).astype("f4"), r.integers(0, 5, (steps, n))) for n in (3, 16)]
    close(module, plain, given)
    assert plan_at(module.executable, {"n": 16}).arena_bytes < (1.01 if steps == STEPS else 0.8) * (
        plan_at(plain.executable, {"n": 16}).arena_bytes
    )


LONG = 80  # steps, which are rounds of one body


@pytest.mark.parametrize("kind", slow_except(["LSTM", "GRU", "RNN"], "LSTM"))
def test_rounds_of_pytorch_layers_are_computed_again_by_segments(kind: str, tmp_path: Path) -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(getattr(torch.nn, kind)(UNITS, UNITS, 2), First(), torch.nn.Linear(UNITS, 5)).train()
    r, example = np.random.default_rng(0), (torch.zeros(LONG, 8, UNITS),)
    given = [(r.normal(size=(LONG, 8, UNITS)).astype("f4"), r.integers(0, 5, (LONG, 8))) for _ in range(3)]
    plain, module = compiled(net, None, example), compiled(net, "sublinear", example)
    share = 0.8 if kind == "RNN" else 0.5
    check_segments(module, plain, given, share, 20, tmp_path / "step.bn")


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"batch_first": True}, {"bidirectional": True}, {"dropout": 0.3}])
def test_rounds_of_arranged_layers_are_divided(how: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(0)
    width = UNITS * (2 if "bidirectional" in how else 1)
    net = torch.nn.Sequential(torch.nn.LSTM(UNITS, UNITS, 2, **how), First(), torch.nn.Linear(width, 5)).train()
    r, extents = np.random.default_rng(0), (8, LONG) if "batch_first" in how else (LONG, 8)
    given = [(r.normal(size=(*extents, UNITS)).astype("f4"), r.integers(0, 5, extents)) for _ in range(2)]
    example = (torch.zeros(*extents, UNITS),)
    plain, module = compiled(net, None, example), compiled(net, "sublinear", example)
    close(module, plain, given)
    assert module.memory["arena"] < (0.9 if "bidirectional" in how else 0.6) * plain.memory["arena"]


def onnx_layer(op: str, steps: int, lengths: bool = False) -> Any:
    """A recurrent layer of X [steps, 8, UNITS] as an ONNX model; ``lengths``: how many of the steps each row has."""
    from onnx import TensorProto, helper, numpy_helper

    gates, r = {"LSTM": 4, "GRU": 3, "RNN": 1}[op] * UNITS, np.random.default_rng(0)
    shapes = {"W": (1, gates, UNITS), "R": (1, gates, UNITS), "B": (1, 2 * gates)}
    arrays = {name: (r.normal(size=shape) / 4).astype("f4") for name, shape in shapes.items()}
    arrays |= {"lens": r.integers(1, steps + 1, 8).astype("i4")} if lengths else {}
    node = helper.make_node(op, ["X", "W", "R", "B", *(["lens"] if lengths else [])], ["Y"], hidden_size=UNITS)
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, [steps, 8, UNITS])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in arrays.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "lengths"), [("LSTM", True), ("GRU", False), ("RNN", False)])
def test_rounds_of_onnx_layers_are_computed_again_by_segments(op: str, lengths: bool) -> None:
    model, r = onnx_layer(op, LONG, lengths), np.random.default_rng(1)
    given = [(r.normal(size=(LONG, 8, UNITS)).astype("f4"), r.normal(size=(LONG, 1, 8, UNITS)).astype("f4"))] * 2
    steps = []
    for budget in (None, "sublinear"):
        train = bn.Train("mse", bn.SGD(0.5), memory_budget=budget)
        steps.append(bn.compile(model, train=train, threads=1))
    close(steps[1], steps[0], given)
    assert steps[1].memory["arena"] < 0.7 * steps[0].memory["arena"]
    least = bn.Train("mse", bn.SGD(0.5), memory_budget=steps[1].memory["arena"])
    assert bn.compile(model, train=least, threads=1).memory["arena"] <= steps[1].memory["arena"]


def First() -> Any:  # noqa: N802
    """The first result of a recurrent layer."""
    import torch

    class Chosen(torch.nn.Module):
        def forward(self, found: tuple[torch.Tensor, Any]) -> torch.Tensor:
            return found[0]

    return Chosen()
