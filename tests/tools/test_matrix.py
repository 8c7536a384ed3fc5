"""Combinations of capabilities: right or refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.marks import slow
from tools.matrix import Cell, attempt, cells

LONG = (
    Cell("PyTorch", "training", "fixed", "cpu", "tuned"),
    Cell("ONNX", "training", "open", "cpu", "plan of two ranks"),
)
FEW = (
    Cell("ONNX", "inference", "open", "cpu", "saved and loaded"),
    Cell("PyTorch", "inference", "open", "aarch64-cortex-a53", "saved and loaded"),
    *LONG,
    Cell("ONNX", "training", "fixed", "cpu", "memory budget"),
    Cell("ONNX", "inference", "open", "aarch64-cortex-a53", "memory budget"),
    Cell("PyTorch", "inference", "open", "cpu", "plan of two ranks"),
)


@pytest.mark.parametrize("cell", slow(FEW, *LONG), ids=str)
def test_a_combination_is_right(cell: Cell, tmp_path: Path) -> None:
    assert attempt(cell, tmp_path) == "right"


def test_fewer_than_a_fifth_are_refused_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs/combinations.md").read_text(encoding="utf-8")
    found = re.search(r"^(\d+) combinations, (\d+) refused:$", page, re.MULTILINE)
    assert found is not None and int(found[1]) == len([*cells()]) > 5 * int(found[2])
    assert "WRONG" not in page


@pytest.mark.slow
@pytest.mark.parametrize("cell", list(cells()), ids=str)
def test_every_combination_is_right_or_refused(cell: Cell, tmp_path: Path) -> None:
    outcome = attempt(cell, tmp_path)
    assert outcome == "right" or outcome.startswith("refused: ")
