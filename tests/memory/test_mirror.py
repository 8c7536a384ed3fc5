import pytest

from burnish.errors import ParameterError
from burnish.memory.mirror import by_name, drop_cheap, mirrored, mirrored_order, sublinear, with_budget
from burnish.memory.stages import backward_parts, stages
from burnish.memory.work import Work, WorkItem
from tests.memory.works import chain, even


def test_counts_of_zero_change_nothing() -> None:
    work = chain(6)
    assert mirrored_order(work, {}) == list(range(12))


def test_copies_read_copies_of_their_level() -> None:
    """Figure 3.5: two segments, of which the ends are kept; and a count of 2 for what lies deeper."""
    work = even(5)
    made = mirrored(work, {0: 1, 1: 1, 3: 1})
    nodes = {(c.operation, c.copy): c.reads for c in made}
    assert nodes[1, 1] == ((0, 1),) and nodes[3, 1] == ((2, 0),)
    assert nodes[5, 0] == ((3, 1), (4, 0)) and nodes[6, 0] == ((2, 0), (5, 0)) and nodes[7, 0] == ((1, 1), (6, 0))
    assert [(c.operation, c.copy) for c in made] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (3, 1), (5, 0), (6, 0), (0, 1), (1, 1), (7, 0), (8, 0), (9, 0),
    ]  # fmt: skip
    deep = {(c.operation, c.copy): c.reads for c in mirrored(work, {0: 2, 1: 1, 2: 2, 3: 2})}
    assert deep[1, 1] == ((0, 1),) and deep[2, 2] == ((1, 1),) and deep[3, 2] == ((2, 2),)
    assert (0, 2) in deep and (2, 1) not in deep  # only what the backward pass needs is made


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("skip", [0, 3])
def test_every_plan_runs_all_after_what_it_needs(seed: int, skip: int) -> None:
    work = chain(20, seed, skip)
    base = work.live(range(len(work)))
    deeper = {n: n % 3 for n in work.repeatable}
    for counts in (drop_cheap(work), sublinear(work), deeper):
        order = mirrored_order(work, counts)
        work.check(order)
        assert all(order.count(n) <= 1 + counts.get(n, 0) for n in range(len(work)))
    assert work.live(mirrored_order(work, sublinear(work))) <= base


def test_only_what_is_cheap_is_dropped() -> None:
    work = chain(20, 1)
    cheap = {n for n, o in enumerate(work.operations) if o.cheap and n in work.repeatable}
    assert 3 < len(cheap) < 17
    assert drop_cheap(work) == dict.fromkeys(cheap, 1)
    order = mirrored_order(work, drop_cheap(work))
    assert {n for n in order if order.count(n) > 1} <= cheap
    assert work.order_seconds(order) <= work.seconds + sum(work.operations[n].seconds for n in cheap)
    assert work.live(order) < work.live(range(len(work)))


def test_the_plan_of_algorithm_7_grows_with_the_root_of_the_depth_and_costs_one_forward_pass() -> None:
    live = []
    for length in (25, 100, 400):
        work = even(length)
        order = mirrored_order(work, sublinear(work, tries=64))
        assert work.order_seconds(order) <= work.seconds + length  # the forward pass takes a second a layer
        live.append(work.live(order) / 6400)
    assert live[0] <= 2.6 * 5 and live[1] <= 2.6 * 10 and live[2] <= 2.6 * 20


def test_segments_keep_the_set_that_crosses_their_end() -> None:
    """Two chains side by side, as hidden state and cell of a recurrent layer: no single value is a cut."""
    operations, nbytes = [], []
    for i in range(12):
        for side in (0, 1):
            reads = (2 * i - 2, 2 * i - 1) if i else ()
            operations.append(WorkItem(reads, (2 * i + side,), 1.0))
            nbytes.append(640)
    operations.append(WorkItem((22, 23), (24,), 1.0, again=False))
    work = Work((*operations, WorkItem((0, 24), (25,))), (*nbytes, 64, 64), forward=frozenset(range(24)))
    counts = with_budget(work, 4000)
    kept = {n for n in range(24) if not counts.get(n)}
    assert counts and all({2 * i, 2 * i + 1} <= kept or not {2 * i, 2 * i + 1} & kept for i in range(1, 11))


def test_stages_end_where_little_crosses() -> None:
    """Blocks of three layers, the last of which is small."""
    sizes = [640, 640, 64] * 4
    operations = [WorkItem((i - 1,) if i else (), (i,), 1.0) for i in range(12)]
    last = WorkItem((11,), (12,), 1.0, again=False)
    back = [WorkItem((i, 12), (13 + k,)) for k, i in enumerate(reversed(range(12)))]
    work = Work((*operations, last, *back), (*sizes, 4, *([4] * 12)), forward=frozenset(range(12)))
    parts = stages(work)
    assert [p.operations[-1] for p in parts] == [2, 5, 8, 11]
    assert [p.crossing for p in parts] == [(2,), (5,), (8,), ()]
    assert len(stages(work, most=2)) == 2
    behind = backward_parts(work, parts)
    assert [n for own in reversed(behind) for n in own] == list(range(12, 25))
    assert all(work.operations[n].reads[0] >= p.operations[0] - 1 for p, own in zip(parts, behind, strict=True)
               for n in own if n > 12)  # fmt: skip


def test_a_users_counts_are_by_name() -> None:
    work = chain(4)
    assert by_name(work, {"f1": 2, "f2": 0}) == {1: 2, 2: 0}
    with pytest.raises(ParameterError, match=r"mirror: found 'b0'; allowed: nodes of the forward pass: f0, f1"):
        by_name(work, {"b0": 1})
    with pytest.raises(ParameterError, match="'f1': found -1; allowed: an integer from 0"):
        by_name(work, {"f1": -1})
    with pytest.raises(ParameterError, match=r"counts for operations \[5\]"):
        mirrored(work, {5: 1})
