"""The page of operators is what the registry says."""

import onnx
import pytest

from burnish.frontend.onnx.model import TRANSLATORS
from tools.operators import PAGE, page, rows


def test_the_page_is_up_to_date() -> None:
    if onnx.__version__.split(".")[:2] != ["1", "23"]:
        pytest.skip("the page lists the operators of onnx 1.23")
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.operators"


def test_every_translator_and_every_operator_has_a_row() -> None:
    found = {key: status for key, _, status in rows()}
    assert TRANSLATORS.keys() <= found.keys()
    assert found["Relu"] == "yes"
    assert found["Attention"] == "by the standard's function"
    assert found["StringConcat"] == "yes"
