from pathlib import Path

import numpy as np
import pytest

from burnish.boost.booster import RoundProgress, train
from burnish.boost.checkpoint import checkpoints, keep_on_interrupt, print_scores, save_every
from burnish.boost.data import Dataset
from burnish.boost.model import Model, dumps
from burnish.errors import ParameterError

X = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
DATA = Dataset.of(X, label=X[:, 0])
PARAMS = {"max_depth": 2, "subsample": 0.5, "threads": 1}


class Interrupt:
    """Presses Ctrl-C after a round."""

    def __init__(self, round_number: int) -> None:
        self.round_number = round_number
        self.seen: list[RoundProgress] = []

    def __call__(self, progress: RoundProgress) -> bool:
        self.seen.append(progress)
        if progress.round == self.round_number and not progress.interrupted:
            raise KeyboardInterrupt
        return False


def test_training_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    train(PARAMS, DATA, 7, callbacks=[save_every(2, tmp_path, keep=3)])
    names = [path.name for path in checkpoints(tmp_path)]
    assert names == ["round-000004.json", "round-000006.json", "round-000007.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    model = Model.load(checkpoints(tmp_path)[0])
    assert dumps(train(PARAMS, DATA, 3, continue_from=model)) == dumps(train(PARAMS, DATA, 7))


def test_ctrl_c_ends_training_unless_a_callback_keeps_the_model(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(PARAMS, DATA, 9, callbacks=[Interrupt(3)])
    press = Interrupt(3)
    model = train(PARAMS, DATA, 9, callbacks=[keep_on_interrupt, save_every(100, tmp_path), press])
    assert dumps(model) == dumps(train(PARAMS, DATA, 3))
    assert [progress.interrupted for progress in press.seen] == [False, False, False, True]
    assert dumps(Model.load(checkpoints(tmp_path)[-1])) == dumps(model)


def test_lines_of_scores() -> None:
    lines: list[str] = []
    train(PARAMS, DATA, 5, validation_data={"held out": DATA}, callbacks=[print_scores(2, lines.append)])
    assert [line.split(":")[0] for line in lines] == ["round 2 of 5", "round 4 of 5", "round 5 of 5"]
    assert "held out rmse" in lines[0]
    train(PARAMS, DATA, 1, callbacks=[print_scores(1, lines.append)])
    assert lines[-1].startswith("round 1 of 1: ") and lines[-1].endswith(" s")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="rounds=0"):
        save_every(0, tmp_path)
