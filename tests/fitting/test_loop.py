"""The training loop: epochs and steps, evaluation, early stopping, checkpoints that go on bit for bit."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import CheckpointError, DataError, DivergenceError, ParameterError
from burnish.fitting.loop import TrainingLimits
from burnish.fitting.progress import shown
from burnish.fitting.report import TrainingProgress
from burnish.fitting.single import LoopOptions, prepare
from burnish.graph.evaluate import evaluate
from burnish.graph.graph import GraphBuilder
from tests.train.networks import perceptron, rows

TRAIN = bn.Train(optimizer=bn.AdamW(0.01), schedule=bn.WarmUp(3, bn.CosineDecay(50)), clip_norm=1.0)
DATA, VALID = rows(100), rows(48, seed=1)


def fit(**more: Any) -> Any:
    return bn.fit(
        more.pop("model", None) or perceptron(), more.pop("data", DATA), more.pop("train", TRAIN), threads=1, **more
    )


def test_epochs_lower_the_loss_and_are_reported() -> None:
    seen: list[TrainingProgress] = []
    done = fit(epochs=8, validation_data=VALID, metrics=["accuracy"], progress=seen.append)
    report = done.report
    assert report.stop_reason == "epochs" and report.epochs == 8
    assert report.calls == report.updates == len(report.losses) == 8 * 7  # of 16 rows, the last of 4
    assert [e.call for e in report.evaluations] == [7 * n for n in range(1, 9)]
    assert report.evaluations[-1].rows == 48 and report.best in report.evaluations
    assert report.losses[-7:].mean() < 0.6 * report.losses[:7].mean()
    assert report.evaluations[-1].metrics["accuracy"] > 0.6
    assert [p.call for p in seen if p.evaluation is None] == [*range(1, 57)] and seen[0].calls == 56
    assert report.live and max(report.live) <= report.memory["arena"]
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["losses"] == report.losses.tolist() and plain["best"]["loss"] == report.best.loss


def test_the_trained_model_is_the_one_that_was_evaluated() -> None:
    done = fit(steps=20, validation_data=VALID, metrics=["accuracy"])
    assert done.report.stop_reason == "steps" and done.report.calls == 20
    model = done.compile(threads=1, rewrite=False)
    logits = np.concatenate([model(VALID["x"][i : i + 16]) for i in range(0, 48, 16)])
    assert np.mean(logits.argmax(1) == VALID["label"]) == pytest.approx(done.report.evaluations[-1].metrics["accuracy"])
    assert not np.array_equal(done.model.constants["w1"], perceptron().constants["w1"])
    name = done.model.outputs[0]
    np.testing.assert_allclose(evaluate(done.model, {"x": VALID["x"][:16]})[name], logits[:16], atol=1e-5)


@pytest.mark.parametrize("stop", [9, 12])  # in an epoch and at its end
def test_going_on_gives_the_same_losses_bit_for_bit(tmp_path: Path, stop: int) -> None:
    more: dict[str, Any] = {"epochs": 5, "validation_data": VALID, "save_every": 3}
    whole = fit(**more)
    fit(**more, steps=stop, checkpoint=tmp_path)
    rest = fit(**more, checkpoint=tmp_path, resume=True)
    assert rest.report.resumed == stop
    assert rest.report.losses.tobytes() == whole.report.losses.tobytes()
    assert rest.report.evaluations[-1] == whole.report.evaluations[-1]
    for name in whole.step.state:
        assert np.array_equal(rest.step.state[name], whole.step.state[name])
    assert rest.report.checkpoint is not None and (tmp_path / "best.safetensors").exists()


KILLED = """
import os, sys
from pathlib import Path
from tests.train.killing import die_at
from tests.fitting.test_loop import fit

fit(steps=1)  # what it compiles, the children find compiled
for moment in sys.argv[2:]:
    folder = os.path.join(sys.argv[1], moment)
    child = os.fork()
    if not child:
        die_at(int(moment), folder)
        fit(steps=9, save_every=1, checkpoint=Path(folder))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
"""


@pytest.mark.slow
def test_training_that_is_killed_while_it_writes_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    """At 20 drawn moments of its checkpoints, one a step; where none was whole yet, it begins again."""
    whole, resumed = fit(steps=9), set()
    moments = [str(n) for n in np.random.default_rng(5).choice(np.arange(1, 46), 20, replace=False)]
    script = [sys.executable, "-c", KILLED, str(tmp_path), *moments]
    printed = subprocess.run(script, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert printed.stdout.split() == ["9"] * 20, "each was killed by its own hand"
    for moment in moments:
        rest = fit(steps=9, checkpoint=tmp_path / moment, resume=True)
        resumed.add(rest.report.resumed)
        assert rest.report.losses.tobytes() == whole.report.losses.tobytes()
        assert all(np.array_equal(rest.step.state[name], whole.step.state[name]) for name in whole.step.state)
    assert len(resumed) > 4


def test_accumulated_and_scaled_training_goes_on(tmp_path: Path) -> None:
    train = bn.Train(optimizer=bn.SGD(0.1, momentum=0.9), accumulation_steps=4, precision="float16")
    whole = fit(train=train, steps=11)
    fit(train=train, steps=6, checkpoint=tmp_path)  # in the middle of four
    rest = fit(train=train, steps=11, checkpoint=tmp_path, resume=True)
    assert rest.report.losses.tobytes() == whole.report.losses.tobytes()
    assert whole.report.updates + whole.report.skipped == 3 and whole.report.calls_left == 0  # of 4, 4 and 3 calls
    assert all(np.array_equal(rest.step.state[name], whole.step.state[name]) for name in whole.step.state)


def test_a_loader_of_torch_goes_on(tmp_path: Path) -> None:
    import torch

    def loader() -> Any:
        torch.manual_seed(3)
        tensors = torch.utils.data.TensorDataset(torch.tensor(DATA["x"]), torch.tensor(DATA["label"]))
        return torch.utils.data.DataLoader(tensors, batch_size=16, shuffle=True)

    whole = fit(data=loader(), steps=16)
    fit(data=loader(), steps=9, checkpoint=tmp_path)
    rest = fit(data=loader(), steps=16, checkpoint=tmp_path, resume=True)
    assert rest.report.losses.tobytes() == whole.report.losses.tobytes()


def test_evaluation_draws_no_numbers_that_training_would(tmp_path: Path) -> None:
    class Noisy:
        def __init__(self, data: Any) -> None:
            self._data = data

        def __iter__(self) -> Iterator[Any]:
            for begin in range(0, 96, 16):
                x, label = self._data["x"], self._data["label"]
                rows = np.arange(begin, begin + 16) % len(x)
                yield x[rows] + np.random.normal(size=(16, 12)), label[rows]

    more: dict[str, Any] = {"data": Noisy(DATA), "validation_data": Noisy(VALID), "evaluate_every": 2}
    np.random.seed(1)
    whole = fit(**more, steps=10)
    np.random.seed(1)
    assert fit(data=Noisy(DATA), steps=10).report.losses.tobytes() == whole.report.losses.tobytes()
    np.random.seed(1)
    fit(**more, steps=8, checkpoint=tmp_path)
    rest = fit(**more, steps=10, checkpoint=tmp_path, resume=True)
    assert rest.report.losses.tobytes() == whole.report.losses.tobytes()
    assert rest.report.evaluations == whole.report.evaluations


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    wild = bn.Train(optimizer=bn.SGD(1.5, momentum=0.9))
    done = fit(epochs=6, train=wild, validation_data=VALID, checkpoint=tmp_path)
    best = done.restore(tmp_path / "best.safetensors")
    first = bn.fit(best.model, DATA, bn.Train(optimizer=bn.SGD(0.0)), steps=1, validation_data=VALID, threads=1)
    assert first.report.evaluations[0].loss == done.report.best.loss
    with pytest.raises(CheckpointError, match="found one of another model"):
        fit(steps=1, model=perceptron(hidden=8)).restore(tmp_path / "best.safetensors")


@pytest.mark.slow
def test_a_network_of_torch_gets_its_weights_back() -> None:
    import torch

    nn = torch.nn
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    x = torch.tensor(DATA["x"][:16])
    done = bn.fit(
        network,
        (DATA["x"], DATA["label"]),
        TRAIN,
        epochs=3,
        example_inputs=x,
        validation_data=(VALID["x"], VALID["label"]),
        threads=1,
    )
    before = network.eval()(x)
    done.copy_to(network)
    after = network.eval()(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(done.compile(threads=1, rewrite=False)(x), after, atol=1e-5, rtol=1e-5)
    value = done.report.evaluations[-1].loss
    logits = network(torch.tensor(VALID["x"]))
    assert abs(nn.functional.cross_entropy(logits, torch.tensor(VALID["label"])).item() - value) < 1e-4


def test_early_stopping() -> None:
    still = bn.Train(optimizer=bn.SGD(0.0))
    report = fit(train=still, epochs=50, validation_data=VALID, patience=3).report
    assert report.stop_reason == "early stop" and len(report.evaluations) == 4
    report = fit(steps=20, progress=lambda now: now.call == 5).report
    assert report.stop_reason == "callback" and report.calls == 5


def test_a_loss_that_is_not_finite_names_the_step_and_loses_nothing(tmp_path: Path) -> None:
    bad = {"x": DATA["x"].copy(), "label": DATA["label"]}
    bad["x"][20] = np.nan
    with pytest.raises(
        DivergenceError, match=r"step 2: .* after 1 updates; the last check.*'x' in batch 2 of epoch 1: nan at \[4, 0\]"
    ) as raised:
        fit(data=bad, epochs=1, shuffle=False, checkpoint=tmp_path)
    assert raised.value.step == 2
    module = raised.value.module
    assert isinstance(module, bn.Module) and np.isfinite(module.state["w1"]).all()
    one = fit(data=bad, steps=1, shuffle=False)
    assert all(np.array_equal(module.state[name], one.step.state[name]) for name in one.step.state)
    with pytest.raises(DivergenceError, match="step 2"):  # the same batch again
        fit(data=bad, epochs=1, shuffle=False, checkpoint=tmp_path, resume=True)


def test_a_label_that_is_no_class_names_the_batch_and_loses_nothing(tmp_path: Path) -> None:
    bad = {"x": DATA["x"], "label": DATA["label"].copy()}
    bad["label"][20] = 9
    words = (
        r"data: batch 2 of epoch 1: input 'label': found label 9 at \[4\], 1 such in all; allowed: the 5 classes 0 to 4"
    )
    with pytest.raises(DataError, match=rf"{words}.*the last checkpoint is '.*step-0000000001"):
        fit(data=bad, epochs=1, shuffle=False, checkpoint=tmp_path)
    with pytest.raises(DataError, match=words):  # the same batch again
        fit(data=bad, epochs=1, shuffle=False, checkpoint=tmp_path, resume=True)
    with pytest.raises(DataError, match=r"validation_data: batch 2: input 'label': found label 9 at \[4\]"):
        fit(epochs=1, validation_data=bad)


def test_ctrl_c_ends_after_the_call_with_a_checkpoint(tmp_path: Path) -> None:
    def interrupt(now: TrainingProgress) -> None:
        if now.call == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    report = fit(epochs=3, progress=interrupt, checkpoint=tmp_path).report
    assert report.stop_reason == "interrupted" and report.calls == 4
    assert report.checkpoint == tmp_path / "step-0000000004.safetensors"
    assert signal.getsignal(signal.SIGINT) is before
    assert (
        fit(epochs=3, checkpoint=tmp_path, resume=True).report.losses.tobytes() == fit(epochs=3).report.losses.tobytes()
    )


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    fit(steps=3, checkpoint=tmp_path)
    with pytest.raises(
        ParameterError, match=r"checkpoint: found checkpoints in .*; allowed: an empty folder, or resume"
    ):
        fit(steps=3, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"data: found .*'rows': 48.*; allowed: .*'rows': 100"):
        fit(steps=3, checkpoint=tmp_path, resume=True, data=VALID)
    with pytest.raises(CheckpointError, match=r"state 'b1\.first': found float32.*; allowed: nothing, as the"):
        fit(steps=3, checkpoint=tmp_path, resume=True, train=bn.Train(optimizer=bn.SGD(0.1)))


def test_another_rate_is_taken(tmp_path: Path) -> None:
    fit(steps=3, checkpoint=tmp_path, train=bn.Train(optimizer=bn.SGD(0.1)))
    done = fit(steps=4, checkpoint=tmp_path, train=bn.Train(optimizer=bn.SGD(0.01)), resume=True)
    assert done.step.state["optimizer.learning_rate"] == 0.01 and done.step.state["optimizer.step"] == 4


def test_wrong_arguments_are_refused_before_work() -> None:
    for wrong, message in (
        ({}, "steps, epochs: found neither"), ({"epochs": 0}, "epochs: found 0"),
        ({"steps": 3, "patience": 2}, "patience: found a number without data"),
        ({"steps": 3, "resume": True}, "resume: found True without a folder"),
        ({"steps": 3, "metrics": ["auc"]}, "metrics: found 'auc'; allowed: accuracy"),
        ({"steps": 3, "seed": -1}, "seed: found -1"), ({"steps": 3, "batch": 8}, "batch: found 8"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=message):
            fit(**wrong)
    with pytest.raises(ParameterError, match="train: found None"):
        bn.fit(perceptron(), DATA, None, steps=1)  # type: ignore[arg-type]


def test_rows_that_fill_no_batch_are_trained_by_their_own_mean_and_the_last_sum_is_applied() -> None:
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 5))
    net, own = net.double(), copy.deepcopy(net).double()
    data = {"input": DATA["x"][:27].astype("f8"), "label": DATA["label"][:27]}
    train = bn.Train(optimizer=bn.AdamW(0.02), accumulation_steps=4, clip_norm=1.0)
    more: dict[str, Any] = {"example_inputs": torch.zeros(8, 12).double(), "shuffle": False, "epochs": 3}
    valid = {"input": VALID["x"][:11].astype("f8"), "label": VALID["label"][:11]}
    done = bn.fit(net, data, train, validation_data=valid, metrics=["accuracy"], threads=1, **more)
    optimizer, losses, calls = torch.optim.AdamW(own.parameters(), 0.02), [], 0
    for start in [0, 8, 16, 24] * 3:
        x, y = (torch.tensor(data[name][start : start + 8]) for name in ("input", "label"))
        losses.append(torch.nn.functional.cross_entropy(own(x), y))
        losses[-1].backward()
        calls += 1
        if calls == 4 or len(losses) == 12:
            for p in own.parameters():
                p.grad /= calls
            torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            calls = 0
    np.testing.assert_allclose(done.report.losses, [v.item() for v in losses], rtol=1e-10)
    done.copy_to(net)
    for p, q in zip(net.state_dict().values(), own.state_dict().values(), strict=True):
        if p.is_floating_point():
            np.testing.assert_allclose(p, q, rtol=1e-7, atol=1e-9)
    logits, labels = own.eval()(torch.tensor(valid["input"])), torch.tensor(valid["label"])
    last = done.report.evaluations[-1]
    assert last.rows == 11 and last.left_out == 0
    assert last.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-9)
    assert last.metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).double().mean().item())


@pytest.mark.parametrize("steps", [2, 6])
def test_the_last_calls_of_an_accumulation_are_applied(steps: int) -> None:
    """As one update by the mean of their gradients."""
    done = fit(train=bn.Train(optimizer=bn.SGD(0.5), accumulation_steps=5), steps=steps, shuffle=False)
    plain = bn.compile(perceptron(), train=bn.Train(optimizer=bn.SGD(0.5)), threads=1)
    now = {name: plain.state[name] for name in ("w1", "b1", "w2", "b2")}
    for first in range(0, steps, 5):
        ends = []
        for call in range(first, min(first + 5, steps)):
            for name, value in now.items():
                plain.state[name] = value
            plain(*(array[16 * call : 16 * call + 16] for array in DATA.values()))
            ends.append({name: plain.state[name] for name in now})
        now = {name: np.mean([end[name] for end in ends], axis=0) for name in now}
    for name, value in now.items():
        np.testing.assert_allclose(done.step.state[name], value, atol=1e-6)
    assert done.report.updates == -(-steps // 5) and done.step.state["optimizer.calls"] == 0


def test_rows_that_no_step_takes_are_reported() -> None:
    b = GraphBuilder()  # which mixes the rows of a batch: there is no graph of fewer
    x = b.add("sub", b.input("x", (16, 12)), b.constant(np.ones((16, 12), "f4") * np.arange(16, dtype="f4")[:, None]))
    model = b.build(b.add("matmul", b.add("cumsum", x, axis=0), b.constant(np.ones((12, 5), "f4"), "w")))
    report = fit(model=model, epochs=2, validation_data=VALID).report
    assert report.calls == 12 and report.left_out == 8 and report.as_json()["left_out"] == 8
    assert report.evaluations[-1].rows == 48 and report.evaluations[-1].left_out == 0
    with pytest.raises(DataError, match="found no batch of 16 rows in epoch 0"):
        fit(model=model, data=[(DATA["x"][:8], DATA["label"][:8])], steps=3)


def test_data_to_evaluate_with_are_checked_before_training() -> None:
    seen: list[TrainingProgress] = []
    with pytest.raises(DataError, match=r"validation_data: batch: 'x': found shape \[16, 3\]; allowed: \[16, 12\]"):
        fit(epochs=1, validation_data={"x": VALID["x"][:, :3], "label": VALID["label"]}, progress=seen.append)
    assert not seen


def test_gradients_that_are_not_finite_leave_everything_as_it_was(tmp_path: Path) -> None:
    """Where the loss is finite: at zeros, whose root has no slope."""
    import torch

    class Rooted(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(5, 12))
            self.c = torch.nn.Parameter(torch.zeros(5))

        def forward(self, x: Any) -> Any:
            return x @ self.w.T + self.c.sqrt()

    data, example = (DATA["x"], DATA["label"]), torch.zeros(16, 12)
    with pytest.raises(DivergenceError, match="step 1: found a loss or gradients that are not finite") as raised:
        bn.fit(Rooted(), data, bn.Train(optimizer=bn.AdamW(0.1)), example_inputs=example, steps=4, checkpoint=tmp_path)
    module = raised.value.module
    assert np.array_equal(module.state["w"], np.ones((5, 12))) and np.array_equal(module.state["c"], np.zeros(5))
    assert all(np.isfinite(module.state[name]).all() for name in module.state) and module.state["optimizer.step"] == 0
    assert not [*tmp_path.glob("*.safetensors")]


def test_a_state_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    def poison(now: TrainingProgress) -> None:
        if now.call == 2:
            trainer.step.state["b1"] = np.full(24, np.nan, "f4")

    loop = LoopOptions(TrainingLimits(steps=2, save_every=1), checkpoint=tmp_path, progress=poison)
    trainer = prepare(perceptron(), DATA, TRAIN, loop, threads=1).trainer
    with pytest.raises(DivergenceError, match=r"found state 'b1.*' that is not finite.*step-0000000001"):
        trainer.run()
    assert [path.name for path in tmp_path.glob("*")] == ["step-0000000001.safetensors"]


def test_progress_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with shown() as show:
        fit(steps=40, validation_data=VALID, evaluate_every=20, progress=show)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("step ")]) == 20
    assert lines[-1].startswith("after 40 steps: validation loss")
    assert lines[-2].startswith("step 40 of 40: loss")
