"""Compiled models of every kind answer the same questions the same way; what one cannot do is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import burnish as bn
from burnish.boost import Dataset
from burnish.boost import train as train_trees
from burnish.comm import Comm, launch
from burnish.driver.open_module import OpenModule
from burnish.driver.segmented import SegmentedModule
from burnish.errors import ClosedError, InputError, UnknownStateError, UnsupportedMethod
from burnish.gnn.model.models import FEATURES, FIRST, network
from burnish.gnn.model.program import build
from burnish.gnn.run.blocked import BlockedStep
from burnish.gnn.run.feeds import labels_of
from burnish.gnn.run.outofcore import shared_of
from burnish.gnn.run.train import recipe_of
from burnish.graph.graph import Graph, GraphBuilder
from burnish.loops.sizes import dim
from burnish.machines.target import target
from burnish.parallel.model.placement import TensorSplit
from burnish.parallel.programs.execute import RankStep
from burnish.parallel.programs.plans import TensorSplits
from burnish.parallel.programs.ranks import compile_ranks
from burnish.runtime.module import Module
from burnish.train.step import training_graph
from tests.gnn.references import small
from tests.parallel.networks import batch_of, mlp, step_of

QUESTIONS = [name for name in vars(bn.CompiledModel) if not name.startswith("_")] + ["__call__", "__enter__"]
Case = tuple[bn.CompiledModel, list[np.ndarray]]
X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def dense(rows: Any = 4) -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", (rows, 8)), b.constant(np.eye(8, 3, dtype=np.float32), "w")
    return b.build(b.add("relu", b.add("matmul", x, w), name="y"))


def onnx_model(nodes: list[Any], rows: Any) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [rows, 8]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def module() -> Case:
    return bn.compile(dense(), rewrite=False), [X]


def torch_module() -> Case:
    import torch

    return bn.compile(torch.nn.Linear(8, 3), (torch.zeros(4, 8),), rewrite=False), [X]


def segmented() -> Case:
    """Branches of two shapes, of which values decide."""
    branches = [
        helper.make_graph([helper.make_node(op, ["x", "x"], [out])], out, [], [
            helper.make_tensor_value_info(out, TensorProto.FLOAT, None)
        ])
        for op, out in (("Add", "t"), ("Concat", "e"))
    ]  # fmt: skip
    branches[1].node[0].attribute.append(helper.make_attribute("axis", 0))
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]  # fmt: skip
    made = bn.compile(onnx_model(nodes, 4))
    assert isinstance(made, SegmentedModule)
    return made, [X]


def open_first() -> Case:
    made = bn.compile(onnx_model([helper.make_node("Relu", ["x"], ["y"])], "N"), rewrite=False)
    assert isinstance(made, OpenModule)
    np.testing.assert_array_equal(made(X), np.maximum(X, 0))  # of another size than the code that a file holds
    return made, [X[:1]]


def trees() -> Case:
    model = train_trees({"max_depth": 2}, Dataset.of(np.abs(X), label=X[:, 0]), 3)
    return bn.compile(model), [np.abs(X)]


def training() -> Case:
    step = bn.compile(dense(), train=bn.Train("mse", bn.SGD(0.1)))
    return step, [X, np.ones((4, 3), np.float32)]


def paged() -> Case:
    return bn.compile(dense(), memory_budget="10KB"), [X]


def paged_torch() -> Case:
    import torch

    return bn.compile(torch.nn.Linear(8, 3), (torch.zeros(4, 8),), memory_budget="10KB"), [X]


def paged_sizes() -> Case:
    return bn.compile(dense(dim("rows", 1, 8)), memory_budget="10KB"), [X]


def planned() -> Case:
    return bn.plan(dense(dim("rows", 1, 8)), seconds=0.05, bound=False).compile(), [X]


def planned_training() -> Case:
    train = bn.Train("mse", bn.SGD(0.1))
    found = bn.plan(dense(), train=train, seconds=0.05, bound=False, pipelines=False)
    return found.compile(), [X, np.ones((4, 3), np.float32)]


def blocked() -> Case:
    graph, net = small(64), network("gcn", 12, 4, hidden=4)
    shared = shared_of(net, graph, 32)
    recipe = recipe_of(None, net, False)
    program = build(training_graph(shared.model(), recipe), shared.share, FIRST, ("label",))
    return BlockedStep(program, shared.share, FEATURES, FIRST), [labels_of(graph, graph.train)]


KINDS = (
    module, torch_module, segmented, open_first, trees, training, paged, paged_torch, paged_sizes, planned,
    planned_training, blocked,
)  # fmt: skip


def results(found: Any) -> list[np.ndarray]:
    return list(found) if isinstance(found, tuple) else [found]


@contextmanager
def kept_state(model: bn.CompiledModel) -> Iterator[None]:
    """Gives states their values back: also how a state is set."""
    before = dict(model.state)
    yield
    for name, value in before.items():
        model.state[name] = value


def refused(model: bn.CompiledModel, method: str, call: Callable[[], Any]) -> bool:
    """Whether the model refuses a method, which names it and what to do instead; else it has been called."""
    if method not in model.unsupported:  # type: ignore[attr-defined]
        call()
        return False
    with pytest.raises(UnsupportedMethod, match=rf"{type(model).__name__}\.{method}: not supported; allowed: \w"):
        call()
    return True


def ask(model: bn.CompiledModel, args: list[np.ndarray], path: Path, load: Callable[[Path], bn.CompiledModel]) -> None:
    """All questions; the model is closed then."""
    assert not [name for name in QUESTIONS if not hasattr(model, name)] and not model.closed
    assert [spec.name for spec in model.inputs] and len(model.inputs) == len(args)
    assert model.memory and all(type(n) is int and n >= 0 for n in model.memory.values())
    kind, text = type(model).__name__, repr(model)
    assert text.startswith(f"{kind}({model.inputs[0]}") and " -> " in text
    with kept_state(model):
        wanted = results(model(*args))
    assert len(wanted) == len(model.outputs)
    with kept_state(model):
        by_name = results(model(**{spec.name: array for spec, array in zip(model.inputs, args, strict=True)}))
    with kept_state(model):
        later = results(model.run_async(*args).result(60))
    with kept_state(model):
        into = [np.empty_like(array) for array in wanted]
        model.run_into(args, into)
    for a, *others in zip(wanted, by_name, later, into, strict=True):
        for b in others:
            np.testing.assert_array_equal(a, b)
    with pytest.raises(InputError):
        model(*args, *args)
    with pytest.raises(InputError):
        model.run_async(*args, *args).result(60)
    assert model.calls_at_once == 1 or not dict(model.state)
    with pytest.raises(InputError):
        model.run_into(args, [*into, *into])
    with kept_state(model):
        rows = model.profile(*args, repeat=1)
        assert rows and sum(row.share for row in rows) == pytest.approx(1)
    states = {name: value.copy() for name, value in model.state.items()}
    given = {spec.name: array for spec, array in zip(model.inputs, args, strict=True)}
    page = model.report(path.with_suffix(".html"), given)
    assert page == path.with_suffix(".html") and page.read_bytes().startswith(b"<!doctype html>")
    for name, value in states.items():
        np.testing.assert_array_equal(model.state[name], value)
    with pytest.raises(UnknownStateError, match="state: found 'no such'"):
        model.state["no such"]
    for name, value in model.state.items():
        with pytest.raises(InputError, match=f"state '{name}' is float16"):
            model.state[name] = np.zeros((7, 7), np.float16)
        value[...] = 0  # a copy
        break
    if not refused(model, "save", lambda: model.save(path)):
        loaded = load(path)
        for a, b in zip(wanted, results(loaded(*args)), strict=True):
            np.testing.assert_array_equal(a, b)
    with model as entered:
        assert entered is model
    model.close()  # again
    assert model.closed and repr(model) == f"{kind}(closed)"
    questions: dict[str, Callable[[], Any]] = {
        "call": lambda: model(*args),
        "run_async": lambda: model.run_async(*args).result(60),
        "run_into": lambda: model.run_into(args, into), "state": lambda: model.state,
        "profile": lambda: model.profile(*args), "memory": lambda: model.memory, "report": lambda: model.report(page),
    }  # fmt: skip
    for question in questions.values():
        with pytest.raises(ClosedError, match=f"{kind}: it is closed; allowed: calls before close"):
            question()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", KINDS)
def test_every_kind_answers_every_question(make: Callable[[], Case], tmp_path: Path) -> None:
    model, args = make()
    ask(model, args, tmp_path / "model.bn", bn.load)


def ask_rank(comm: Comm, executable: Any, batch: dict[str, np.ndarray], folder: Path) -> bool:
    step = RankStep(Module(executable, 1, comm=comm), comm)
    args = [batch[spec.name] for spec in step.inputs]

    def load(path: Path) -> RankStep:
        module = bn.load(path, 1, comm=comm)
        assert isinstance(module, Module)
        return RankStep(module, comm)

    ask(step, args, folder / f"{comm.rank}.bn", load)
    return step.closed


def test_every_rank_answers_every_question(tmp_path: Path) -> None:
    graph = step_of(mlp())
    splits = TensorSplits({"h0": TensorSplit((2, 1), (0, 1)), "y": TensorSplit((2, 1), (0, 1))})
    made = compile_ranks(graph, splits, 2, target("cpu"))
    orders = [(executable, batch_of(graph), tmp_path) for executable in made]
    assert launch(ask_rank, orders) == [True, True]


def test_calls_with_state_that_are_made_later_keep_their_order() -> None:
    step, args = training()
    with kept_state(step):
        wanted = [results(step(*args))[0] for _ in range(20)]
    found = [later.result(60) for later in [step.run_async(*args) for _ in range(20)]]
    np.testing.assert_array_equal([results(each)[0] for each in found], wanted)


def test_copies_outlive_the_module_that_was_closed() -> None:
    import copy

    model, args = module()
    wanted, twin = model(*args), copy.copy(model)
    model.close()
    np.testing.assert_array_equal(twin(*args), wanted)


def test_steps_within_a_stack_are_closed() -> None:
    model, _ = module()
    with ExitStack() as stack:
        stack.enter_context(model)
    assert model.closed and not hasattr(model, "__array__")
