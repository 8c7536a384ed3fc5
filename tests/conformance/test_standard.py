"""The standard's backend tests: none comes out wrong, and no fewer are right than came out right before."""

import re
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.conformance.cases import Outcome, check, standard_cases
from tests.conformance.processes import run_cases

FLOOR = 1985  # tests that come out right, compiled; raised as operators are added
FLOOR_KNOWN = 1870  # likewise by definitions, where values that must be known are constants
# A size that these two compute from a scale without rounding; onnxruntime and PyTorch take the rounded one, as we do.
OTHERWISE = re.compile("^test_resize_downsample_scales_(linear|cubic)_align_corners$")


def bad(outcomes: Iterable[Outcome]) -> list[str]:
    """What is neither right nor refused, nor known to differ."""
    found = [o for o in outcomes if o.kind not in ("right", "refused")]
    return [f"{o.kind}: {o.name}: {o.reason}" for o in found if not (o.kind == "wrong" and OTHERWISE.search(o.name))]


def test_one_case_is_compared_and_one_refused_by_name() -> None:
    assert check(standard_cases()["test_abs"]).kind == "right"
    refused = check(standard_cases()["test_image_decoder_decode_jpeg_rgb"])
    assert refused.kind == "refused"
    assert "ImageDecoder" in refused.reason


def test_a_wrong_answer_is_seen() -> None:
    case = standard_cases()["test_abs"]
    (inputs, outputs), *_ = case.data_sets
    wrong = type(case)(**{**vars(case), "data_sets": [(inputs, [-outputs[0]])]})
    assert check(wrong, definitions=True).kind == "wrong"


def test_a_hang_ends() -> None:
    (outcome,) = run_cases(["test_densenet121"], seconds=0.05)
    assert outcome.kind == "hang"


@pytest.mark.filterwarnings("ignore")
def test_definitions_are_right_or_refused() -> None:
    outcomes = [check(case, definitions=True, known=True) for case in standard_cases().values() if case.kind != "real"]
    assert not bad(outcomes)
    assert Counter(outcome.kind for outcome in outcomes)["right"] >= FLOOR_KNOWN


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_right_or_refused() -> None:
    outcomes = list(run_cases([*standard_cases()]))
    assert not bad(outcomes)
    assert Counter(outcome.kind for outcome in outcomes)["right"] >= FLOOR
