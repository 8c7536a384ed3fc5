"""Reports of training: a file, and lines on standard output."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import burnish
from burnish.base.files import write_atomic
from burnish.cli.output import is_json
from burnish.fitting.picture import page
from burnish.fitting.progress import evaluation_text
from burnish.fitting.report import TrainingReport


def is_report(path: Path) -> bool:
    """Whether a file is a report of training, JSON or HTML, or empty."""
    return path.read_bytes()[:15] == b"<!DOCTYPE html>" if path.suffix == ".html" else is_json(path)


def write_report(path: Path, report: TrainingReport, facts: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Writes JSON with further ``facts``, or a page with ``more`` of HTML where the file's name ends in .html."""
    content = {"burnish": burnish.__version__, **facts, **report.as_json()}
    text = page(report, more) if path.suffix == ".html" else json.dumps(content, indent=1)
    write_atomic(path, [text.encode()])


def print_report(output: Path, report: TrainingReport, amount: str, notes: Sequence[str] = ()) -> None:
    """Prints what came of training for ``amount``, such as "3 epochs": the loss, ``notes``, memory, the files."""
    losses = report.losses
    if len(losses):
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {amount}")
    if report.best is not None:
        print(f"best {evaluation_text(report.best)}")
    for note in notes:
        print(note)
    memory = ", ".join(f"{part} {nbytes / 1e6:.2f} MB" for part, nbytes in report.memory.items())
    print(f"{output}: trained for {report.seconds:.1f} s, ended by {report.stop_reason}; {memory}")
    if report.checkpoint is not None:
        print(f"checkpoint: {report.checkpoint}")
