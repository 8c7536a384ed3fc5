"""Callbacks of training: a model saved every few rounds, a line printed, Ctrl-C that keeps what there is."""

import os
from collections.abc import Callable
from pathlib import Path

from burnish.base.arguments import typed
from burnish.boost.booster import Callback, RoundProgress
from burnish.errors import ParameterError


@typed
def save_every(rounds: int, folder: str | Path, keep: int = 2) -> Callback:
    """Saves the model in `folder` after each `rounds` rounds as ``round-<number>.json``, and keeps the last `keep`.

    A file appears whole or not at all. `continue_from=Model.load(path)` goes on from it.
    """
    if rounds < 1 or keep < 1:
        raise ParameterError(f"save_every: found rounds={rounds}, keep={keep}; allowed: 1 and more")
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)

    def callback(progress: RoundProgress) -> bool:
        if progress.round % rounds == 0 or progress.round == progress.rounds or progress.interrupted:
            path = home / f"round-{progress.round:06d}.json"
            unfinished = path.with_suffix(".part")
            progress.model().save(unfinished)
            os.replace(unfinished, path)
            for old in checkpoints(home)[:-keep]:
                old.unlink()
        return False

    return callback


def checkpoints(folder: str | Path) -> list[Path]:
    """The models that `save_every` left in a folder, the oldest first."""
    return sorted(Path(folder).glob("round-*.json"))


def keep_on_interrupt(progress: RoundProgress) -> bool:
    """Makes `train` return the model of the rounds so far when Ctrl-C is pressed."""
    return progress.interrupted


def print_scores(every: int = 1, write: Callable[[str], object] = print) -> Callback:
    """Writes a line with the metrics of the evaluation sets after each `every` rounds."""

    def callback(progress: RoundProgress) -> bool:
        if progress.round % every == 0 or progress.round == progress.rounds:
            scores = [
                f"{name} {metric} {value:.6g}"
                for name, metrics in progress.scores.items()
                for metric, value in metrics.items()
            ]
            write(f"round {progress.round} of {progress.rounds}: {', '.join(scores) or f'{progress.seconds:.1f} s'}")
        return False

    return callback
