"""The standard's backend tests, compiled: none comes out wrong, and no fewer are right than came out right before."""

from collections import Counter

import pytest

from tests.conformance.cases import check, standard_cases
from tests.conformance.processes import run_cases

FLOOR = 800  # tests that come out right; raised as operators are added


def test_one_case_is_compared_and_one_refused_by_name() -> None:
    assert check(standard_cases()["test_abs"]).kind == "right"
    refused = check(standard_cases()["test_strnormalizer_export_monday_casesensintive_lower"])
    assert refused.kind == "refused" and "StringNormalizer" in refused.reason


def test_a_wrong_answer_is_seen() -> None:
    case = standard_cases()["test_abs"]
    (inputs, outputs), *_ = case.data_sets
    wrong = type(case)(**{**vars(case), "data_sets": [(inputs, [-outputs[0]])]})
    assert check(wrong, definitions=True).kind == "wrong"


def test_a_hang_ends_and_a_crash_is_seen() -> None:
    (outcome,) = run_cases(["test_densenet121"], seconds=0.05)
    assert outcome.kind == "hang"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_are_right_or_refused() -> None:
    outcomes = list(run_cases([*standard_cases()]))
    counts = Counter(outcome.kind for outcome in outcomes)
    bad = [f"{o.kind}: {o.name}: {o.reason}" for o in outcomes if o.kind not in ("right", "refused")]
    assert not bad, "\n".join(bad)
    assert counts["right"] >= FLOOR
