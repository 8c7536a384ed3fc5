"""Tuning spaces: candidates and points, alternatives, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from burnish.kernels.cpu.generic import GENERIC
from burnish.kernels.cpu.matmul import MATMUL
from burnish.kernels.task import KernelTask, ScheduleSpace
from burnish.kernels.template import Template
from burnish.loops.tensor import placeholder
from burnish.machines.target import target
from burnish.ops import OPERATORS
from burnish.tune.space import Alternative, Candidate, TuningSpace

MACHINE = target("x86-64-v4")


def matmul(rows: int = 32) -> KernelTask:
    x, w = placeholder((rows, 64), name="x"), placeholder((64, 96), name="w")
    return KernelTask(
        "kernel", (x, w), tuple(OPERATORS["matmul"].define("y", [x, w], {})), "matmul", {}, frozenset({"w"})
    )


def alternative(label: str, template: Template = MATMUL, space: ScheduleSpace | None = None) -> Alternative:
    task = matmul()
    return Alternative(label, task, template, space or template.on(task, MACHINE).space, MACHINE)


@pytest.mark.parametrize("labels", [("a",), ("a", "b")])
def test_points_are_candidates(labels: tuple[str, ...]) -> None:
    made = TuningSpace([alternative(label, t) for label, t in zip(labels, (MATMUL, GENERIC), strict=False)])
    points = made.space.sample(np.random.default_rng(0), 50)
    for point in points:
        candidate = made.candidate(point)
        assert candidate.alternative.label == labels[point[0] if len(labels) > 1 else 0]
        for knob, value in candidate.choice.items():
            assert value in candidate.alternative.space.knobs[knob]
        assert (made.point(candidate) == made.space.canonical(point[None])[0]).all()
    assert made.size == sum(a.space.size for a in made.alternatives)


def test_choices_are_those_of_the_candidates() -> None:
    """What features are computed from is what is compiled."""
    made = TuningSpace([alternative("a"), alternative("b", GENERIC)])
    points = made.space.sample(np.random.default_rng(1), 40)
    seen = 0
    for number, rows in enumerate(made.rows(points)):
        knobs = made.knobs(number, points[rows])
        for place, point in enumerate(points[rows]):
            assert {knob: values[place] for knob, values in knobs.items()} == made.candidate(point).choice
            seen += 1
    assert seen == len(points)


def test_default_is_the_first_template_with_its_own_choice() -> None:
    made = TuningSpace([alternative("a"), alternative("b", GENERIC)])
    assert made.default.alternative.label == "a"
    assert made.default.choice == alternative("a").space.default
    assert made.candidate(made.point(made.default)) == made.default


def test_knobs_with_one_choice_and_none_at_all() -> None:
    made = TuningSpace([alternative("a", space=ScheduleSpace({"tile": (4,)}, {"tile": 4}))])
    assert made.size == 1
    assert made.candidate(np.array([0])).choice == {"tile": 4}
    assert TuningSpace([alternative("a", space=ScheduleSpace({}, {}))]).size == 1


def test_text_names_knobs_and_size() -> None:
    space = ScheduleSpace({"tile": tuple(range(1, 20)), "outer": ("rows", "columns")}, {"tile": 1, "outer": "rows"})
    assert str(TuningSpace([alternative("direct", space=space)])).splitlines() == [
        "38 candidates", "  direct: matmul, 38", "    tile: 1 2 3 … 19 (19)", "    outer: rows columns",
    ]  # fmt: skip
    assert str(Candidate(alternative("direct", space=space), space.default)) == "direct(tile 1, outer rows)"


@pytest.mark.parametrize(
    ("labels", "message"), [((), "at least one"), (("a", "a"), r"\['a', 'a'\]; it takes at least one, with labels")]
)
def test_alternatives_have_labels_of_their_own(labels: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TuningSpace([alternative(label) for label in labels])


def test_what_is_not_in_the_space_is_refused() -> None:
    made, other = TuningSpace([alternative("a")]), alternative("b")
    with pytest.raises(ValueError, match=r"knobs \['a.tile'\] have no choices"):
        TuningSpace([alternative("a", space=ScheduleSpace({"tile": ()}, {}))])
    with pytest.raises(ValueError, match="is not in Grid"):
        made.candidate(np.full(made.space.width, 99))
    with pytest.raises(ValueError, match=r"alternative of another space; allowed: \['a'\]"):
        made.point(Candidate(other, other.space.default))
    own = made.alternatives[0]
    with pytest.raises(ValueError, match="tile is 99; allowed"):
        made.point(Candidate(own, {**own.space.default, "tile": 99}))
    with pytest.raises(ValueError, match="other knobs than"):
        made.point(Candidate(own, {"tile": 1}))
