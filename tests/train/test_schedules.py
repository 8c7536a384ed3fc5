"""Learning-rate schedules against PyTorch's, and as part of the compiled step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import burnish as bn
from burnish.errors import ParameterError
from burnish.train.schedules import RateSchedule, factors, parse_schedule

STEPS = 24
PEERS: list[tuple[RateSchedule, Callable[[Any, Any], Any]]] = [
    (bn.StepDecay(5, 0.3), lambda s, o: s.StepLR(o, 5, 0.3)),
    (bn.CosineDecay(20), lambda s, o: s.CosineAnnealingLR(o, 20)),
    (bn.CosineDecay(20, 0.1), lambda s, o: s.CosineAnnealingLR(o, 20, eta_min=0.05)),
    (bn.LinearDecay(10, 0.25), lambda s, o: s.LinearLR(o, 1.0, 0.25, 10)),
    (bn.WarmUp(4, start=0.1), lambda s, o: s.LinearLR(o, 0.1, 1.0, 4)),
    (
        bn.WarmUp(4, bn.CosineDecay(16), 0.1),
        lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 4), s.CosineAnnealingLR(o, 16)], [4]),
    ),
]


@pytest.mark.filterwarnings("ignore")  # torch's own, of its scheduler of schedulers
@pytest.mark.parametrize(("ours", "peer"), PEERS, ids=lambda v: str(v) if hasattr(v, "factor") else "")
def test_rates_are_those_of_torch(ours: RateSchedule, peer: Callable[[Any, Any], Any]) -> None:
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5)
    scheduler = peer(torch.optim.lr_scheduler, optimizer)
    wanted = []
    cosine_ends = STEPS if "Cosine" not in str(ours) else 20  # torch's rises again, ours stays
    for _ in range(cosine_ends):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose(0.5 * factors(ours, np.arange(cosine_ends)), wanted, rtol=1e-12, atol=1e-15)


def test_a_decay_stays_at_its_end() -> None:
    assert factors(bn.CosineDecay(3, 0.5), np.array([3, 4, 100])).tolist() == [0.5, 0.5, 0.5]
    assert factors(bn.LinearDecay(3), np.array([3, 4])).tolist() == [0.0, 0.0]
    assert factors(None, np.arange(3)).tolist() == [1.0, 1.0, 1.0]


def test_schedules_from_text() -> None:
    assert parse_schedule("constant", 100) is None
    assert parse_schedule("constant", 100, 5) == bn.WarmUp(5)
    assert parse_schedule("step:30", 100) == bn.StepDecay(30)
    assert parse_schedule("step:30:0.5", 100) == bn.StepDecay(30, 0.5)
    assert parse_schedule("cosine", 100, 10) == bn.WarmUp(10, bn.CosineDecay(90))
    assert parse_schedule("linear:0.1", 100) == bn.LinearDecay(100, 0.1)
    for wrong in ("cosin", "step", "step:many", "cosine:0.1:2"):
        with pytest.raises(ParameterError, match=r"schedule: found .*; allowed: constant, step:EVERY"):
            parse_schedule(wrong, 100)


def test_wrong_fields_are_refused_by_name() -> None:
    for make, named in (
        (lambda: bn.StepDecay(0), "StepDecay: every"), (lambda: bn.CosineDecay(10, 2.0), "CosineDecay: least"),
        (lambda: bn.LinearDecay(-1), "LinearDecay: steps"), (lambda: bn.WarmUp(3, start=-1.0), "WarmUp: start"),
        (lambda: bn.WarmUp(3, "cosine"), "WarmUp: after"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=named):
            make()
