"""What the transfer study makes of searches and of other kernels' candidates, on made-up costs."""

import numpy as np

from benchmarks import ablation, study
from burnish.tune.features import extract


def test_a_prior_of_configurations_reads_columns_of_equal_names() -> None:
    source, target = study.kernel("C1").space, study.kernel("P1024").space
    points = source.space.sample(np.random.default_rng(0), 64)
    known = ablation.Known(source, points, np.exp(np.random.default_rng(1).normal(size=64)))
    for representation in ("configuration", "flattened", "relation"):
        assert representation in ablation.REPRESENTATIONS
        model = ablation.prior([known, known], representation, target)
        own = extract(target, representation, target.space.sample(np.random.default_rng(2), 8))
        assert np.isfinite(model.predict(own)).all()


def test_a_prior_orders_what_it_knows() -> None:
    space = study.kernel("C1").space
    points = space.space.sample(np.random.default_rng(0), 128)
    features = extract(space, "relation", points)
    seconds = 1e-3 * np.exp(features[:, int(np.argmax(features.std(axis=0)))])
    model = ablation.prior([ablation.Known(space, points, seconds)], "relation", space)
    assert np.corrcoef(model.predict(features), -np.log(seconds))[0, 1] > 0.9


def test_trials_to_what_the_other_search_has_at_its_end() -> None:
    alone = [np.array([8.0, 6.0, 4.0, 4.0]), np.array([8.0, 8.0, 8.0, 2.0])]
    transferred = [np.array([5.0, 4.0, 4.0, 3.0]), np.array([4.0, 4.0, 4.0, 4.0])]
    found = ablation.result("C7", "relation", alone, transferred, 2.0)
    assert (found.without, found.needed) == ([3, 4], [2, 5])
    assert found.fewer == 3.5 / 3.5 and found.alone == [4.0, 3.5, 3.0, 1.5]
    assert found.transferred == [2.25, 2.0, 2.0, 1.75]
    assert (found.equal(1), found.equal(3), found.equal(4)) == (1, 1, 5)  # the last is never reached
