"""Programs of devices against the single process: random splits of all kinds of networks, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.errors import PlanError
from burnish.graph.graph import Graph, GraphBuilder
from burnish.parallel.model.placement import TensorSplit
from burnish.parallel.model.redistribute import TensorTransfer
from burnish.parallel.programs.program import check_order, programs
from tests.marks import slow_except
from tests.parallel.networks import (
    NETWORKS,
    batch_of,
    random_splits,
    step_of,
    trained_alone,
    trained_apart,
    weight,
    worst_error,
)

STEPS = 3
NEAR = 1e-6


def check_random(name: str, seed: int) -> None:
    """Three steps by random splits: of the model's tensors or, every third time, of those of the whole step."""
    model, ranks = NETWORKS[name](), 2 + 2 * (seed % 2)
    step = step_of(model)
    nodes = (step if seed % 3 == 0 else model).nodes
    splits = random_splits(step, [node.outputs[0] for node in nodes], ranks, seed)
    batch = batch_of(step)
    made = programs(step, splits, ranks, bucket=1 << (seed % 20))
    found = trained_apart(made, batch, STEPS)
    assert worst_error(made, found, trained_alone(step, batch, STEPS)) <= NEAR


@pytest.mark.parametrize("seed", slow_except(range(8), 1))
@pytest.mark.parametrize("name", NETWORKS)
def test_random_splits_train_to_the_same_weights(name: str, seed: int) -> None:
    check_random(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_many_random_splits_train_to_the_same_weights(name: str) -> None:
    for seed in range(200):
        check_random(name, seed)


def data_parallel(model: Graph, ranks: int) -> dict[str, TensorSplit]:
    """Every tensor of the model split by samples."""
    made = {}
    for node in model.nodes:
        for name in node.outputs:
            shape = model.types[name].shape
            made[name] = TensorSplit((ranks, *(1 for _ in shape[1:])), tuple(range(ranks)))
    return made


def test_data_parallelism_sends_gradients_in_one_bucket() -> None:
    model = NETWORKS["mlp"]()
    for program in programs(step_of(model), data_parallel(model, 2), 2):
        assert len(program.sends) == 2  # terms of the loss; all gradients
        sizes = sorted(program.graph.types[message.tensor].size for message in program.sends)
        assert sizes == [1, 6 * 12 + 12 + 12 * 4]


def test_data_parallelism_of_four_is_a_reduce_scatter_and_an_all_gather() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 64))
    w = b.constant(np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32), "w")
    model = b.build(b.add("matmul", x, w, name="y"))
    made = programs(step_of(model), data_parallel(model, 4), 4)
    sizes = [made[0].graph.types[m.tensor].size for m in made[0].sends]
    assert sorted(sizes) == [1] * 3 + [64 * 128 // 4] * 6
    batch = batch_of(step_of(model))
    batch["label"] %= 4
    wanted = trained_alone(step_of(model), batch, 2)
    assert worst_error(made, trained_apart(made, batch, 2), wanted) <= NEAR


def test_bucket_size_says_when_gradients_are_sent() -> None:
    model = NETWORKS["mlp"]()
    (first, _) = programs(step_of(model), data_parallel(model, 2), 2, bucket=1)
    assert len(first.sends) == 1 + 3  # the loss, and each gradient by itself


def test_replicas_of_a_weight_stay_equal_to_the_bit() -> None:
    model = NETWORKS["cnn"]()
    step = step_of(model)
    made = programs(step, data_parallel(model, 4), 4)
    states = trained_apart(made, batch_of(step), STEPS)
    for name in ("w1", "w2", "w3", "w1.velocity"):
        for other in states[1:]:
            assert np.array_equal(states[0][name], other[name])


def test_the_backward_pass_of_a_layer_is_where_its_forward_pass_is() -> None:
    """A layer on one device reads parts of two: its weight's gradient is there, and what it sends back are adjoints."""
    b = GraphBuilder()
    x = b.input("x", (8, 16))
    h = b.add("relu", b.add("matmul", x, weight(b, "w1", 16, 24), name="h0"), name="h")
    y = b.add("relu", b.add("matmul", h, weight(b, "w2", 24, 20), name="y0"), name="y")
    model = b.build(b.add("matmul", y, weight(b, "w3", 20, 4), name="z"))
    halves, one = TensorSplit((2, 1), (0, 1)), TensorSplit((1, 1), (1,))
    splits = {"h0": halves, "h": halves, "y0": one, "y": one, "z": halves}
    step = step_of(model)
    first, second = programs(step, splits, 2)
    made = {first.graph.types[name].shape for node in first.graph.nodes for name in node.outputs}
    assert "w2" not in first.states and (24, 20) not in made
    sent = sorted(second.graph.types[m.tensor].shape for m in second.sends)
    assert (4, 24) in sent and (4, 20) in sent  # the adjoint of h, and y, for device 0's half each
    batch = batch_of(step)
    wanted = trained_alone(step, batch, STEPS)
    assert worst_error((first, second), trained_apart((first, second), batch, STEPS), wanted) <= NEAR


def test_gradients_of_parted_parameters_are_where_their_parts_are() -> None:
    b = GraphBuilder()
    x = b.input("x", (6, 8))
    h = b.add("matmul", x, weight(b, "w1", 8, 16), name="h")
    model = b.build(b.add("matmul", h, weight(b, "w2", 16, 4), name="y"))
    splits = {
        "h": TensorSplit((1, 1), (0,)),
        "y": TensorSplit((1, 1), (0, 1), (2,)),
    }  # y is a sum of two devices' terms
    step = step_of(model)
    made = programs(step, splits, 2)
    for program in made:
        assert program.states["w2"] in (((0, 8), (0, 4)), ((8, 16), (0, 4)))
        sizes = [program.graph.types[m.tensor].shape for m in program.sends]
        assert (8, 4) not in sizes and (16, 4) not in sizes  # no gradient of w2 is sent
    batch = batch_of(step)
    assert worst_error(made, trained_apart(made, batch, STEPS), trained_alone(step, batch, STEPS)) <= NEAR


def test_halo_is_what_a_window_reaches_beyond_its_part() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 1, 8, 8))
    y = b.add("relu", x, name="r")
    w = b.constant(np.ones((1, 1, 3, 3), np.float32), "w")
    model = b.build(b.add("conv2d", y, w, pads=(1, 1, 1, 1), name="c"))
    rows = TensorSplit((1, 1, 2, 1), (0, 1))
    first, second = programs(model, {"r": rows, "c": rows}, 2)
    assert [first.graph.types[m.tensor].shape for m in first.sends] == [(1, 1, 1, 8)]
    halo, result = (second.graph.types[m.tensor].shape for m in second.sends)
    assert halo == (1, 1, 1, 8)
    assert result == (1, 1, 4, 8)  # its half of the output, to device 0


def test_uneven_parts_differ_by_one_element() -> None:
    b = GraphBuilder()
    x = b.input("x", (7, 5))
    model = b.build(b.add("matmul", x, b.constant(np.ones((5, 4), np.float32), "w"), name="y"))
    step = step_of(model)
    made = programs(step, {"y": TensorSplit((3, 1), (0, 1, 1))}, 2)
    assert made[0].inputs["x"] == ((0, 2), (0, 5))
    batch = batch_of(step)
    assert worst_error(made, trained_apart(made, batch, STEPS), trained_alone(step, batch, STEPS)) <= NEAR


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"z": TensorSplit((1, 1), (0,))}, "found tensor 'z'"),
        ({"y": TensorSplit((1, 1), (2,))}, "'y' is on device 2; allowed: 0 to 1"),
        ({"y": TensorSplit((1, 5), (0, 1, 0, 1, 0))}, r"'y': found degrees \[1, 5\]"),
        ({"y": TensorSplit((2,), (0, 1))}, r"'y': found degrees \[2\]"),
    ],
)
def test_splits_that_do_not_fit_are_refused_by_name(splits: dict[str, TensorSplit], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        programs(step_of(NETWORKS["mlp"]()), splits, 2)


def test_a_split_has_a_device_for_each_task() -> None:
    with pytest.raises(PlanError, match="a device for each of 4 tasks"):
        TensorSplit((2, 2), (0, 1))


def test_devices_that_wait_for_each_other_are_found() -> None:
    model = NETWORKS["mlp"]()
    made = list(programs(step_of(model), data_parallel(model, 2), 2))
    check_order(made)
    lost = made[0].receipts[0]
    object.__setattr__(made[0], "receipts", (TensorTransfer(lost.tensor, lost.peer, 99), *made[0].receipts[1:]))
    with pytest.raises(PlanError, match="devices"):
        check_order(made)
