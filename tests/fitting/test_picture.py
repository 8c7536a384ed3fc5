"""Pictures of training: one well-formed page, whatever the losses are."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from burnish.fitting.picture import page
from burnish.fitting.report import Evaluation, TrainingReport

FOUND = Evaluation(20, 1, 0.4, {"accuracy": 0.9}, 64)
REPORT = TrainingReport(
    np.linspace(2, 1, 40), (replace(FOUND, call=10, loss=0.7), FOUND), 40, 40, 2, 0, 1.5, "epochs", FOUND, None,
    {"arena": 1 << 20}, (100, 4_000_000, 300),
)  # fmt: skip


@pytest.mark.parametrize(
    "report",
    [
        REPORT, replace(REPORT, losses=np.zeros(0), evaluations=(), best=None, live=()),
        replace(REPORT, losses=np.full(3, np.nan)), replace(REPORT, losses=np.ones(1), evaluations=(), best=None),
        replace(REPORT, losses=np.arange(12345.0) - 20),
    ],
)  # fmt: skip
def test_a_page_is_well_formed(report: TrainingReport) -> None:
    tree = ElementTree.fromstring(
        page(report).partition("<html>")[2].join(("<html>", "")).replace('utf-8">', 'utf-8"/>')
    )
    for line in tree.iter("polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
        assert len(points) <= 1000
        assert all(72 <= x <= 832 and 8 <= y <= 248 for x, y in points)


def test_curves_show_what_they_are_of() -> None:
    tree = ElementTree.fromstring("<html>" + page(REPORT).partition("<html>")[2].replace('utf-8">', 'utf-8"/>'))
    lines = [line.attrib["points"].split() for line in tree.iter("polyline")]
    assert [len(points) for points in lines] == [40, 40, 2, 3]
    heights = [float(p.split(",")[1]) for p in lines[0]]
    assert heights == sorted(heights), "a falling loss falls"
    assert "best validation loss 0.4000 after 20 batches, accuracy 0.9000" in page(REPORT)
