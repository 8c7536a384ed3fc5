"""Combinations of capabilities: right or refused by name, as docs/combinations.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.matrix import Cell, attempt, cells, table

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"
FEW = (
    Cell("ONNX", "inference", "open", "cpu", "saved and loaded"),
    Cell("PyTorch", "inference", "open", "aarch64-cortex-a53", "saved and loaded"),
    Cell("PyTorch", "training", "fixed", "cpu", "tuned"),
    Cell("ONNX", "training", "fixed", "cpu", "memory budget"),
)


@pytest.mark.parametrize("cell", FEW, ids=str)
def test_a_combination_is_right(cell: Cell, tmp_path: Path) -> None:
    assert attempt(cell, tmp_path) == "right"


@pytest.mark.slow
def test_every_combination_is_right_or_refused_as_the_page_says(tmp_path: Path) -> None:
    outcomes = {}
    for number, cell in enumerate(cells()):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes[cell] = attempt(cell, folder)
    assert table(outcomes) == PAGE.read_text(encoding="utf-8")
