import random
from dataclasses import replace

import pytest

from burnish.errors import VerificationError
from burnish.memory.earlier import earlier
from burnish.memory.work import Work, WorkItem
from tests.memory.works import chain, naive_live


@pytest.mark.parametrize("seed", range(6))
def test_liveness_of_repeated_operations_is_that_of_its_definition(seed: int) -> None:
    work = chain(9, seed, skip=3)
    r = random.Random(seed)
    order = list(range(len(work)))
    for _ in range(8):  # an operation may run again wherever it ran before
        n = r.choice(sorted(work.forward))
        order.insert(r.randint(order.index(n) + 1, len(order)), n)
    work.check(order)
    assert work.live(order) == naive_live(work, order)
    placed = work.arena(order)
    assert placed.arena_bytes >= work.live(order) - 64 and placed.arena_bytes <= 1.1 * work.live(order)


def test_a_copy_dies_where_its_value_is_written_again() -> None:
    operations = (WorkItem((), (0,)), WorkItem((0,), (1,)), WorkItem((1,), (2,)), WorkItem((0, 2), (3,)))
    work = Work(operations, (640, 64, 64, 64), forward=frozenset((0, 1)))
    assert work.live([0, 1, 2, 3]) == 640 + 64 + 64
    value, first, last, live = work.copies([0, 1, 2, 0, 3])
    assert value.tolist() == [0, 1, 2, 0, 3]
    assert first.tolist() == [0, 1, 2, 3, 4] and last.tolist() == [1, 2, 4, 4, 4]
    assert live.tolist() == [640, 704, 128, 704, 768]
    assert work.order_seconds([0, 1, 2, 0, 3]) == 0.0


def test_wrong_orders_are_refused() -> None:
    work = Work((WorkItem((), (0,), again=False), WorkItem((0,), (1,), name="second")), (64, 64))
    with pytest.raises(VerificationError, match=r"'second' runs before values \[0\]"):
        work.check([1, 0])
    with pytest.raises(VerificationError, match=r"operations \[0\] run not at all, or again"):
        work.check([0, 1, 0])
    with pytest.raises(VerificationError, match=r"operation 0 reads values \[1\]"):
        Work((WorkItem((1,), (0,)),), (64, 64))
    with pytest.raises(VerificationError, match=r"operation 1 writes values \[0\]"):
        Work((WorkItem((), (0,)), WorkItem((), (0,))), (64,))


def test_updates_run_as_soon_as_their_gradient_is_there() -> None:
    """Three gradients, whose updates, which read a rate besides, stand at the end."""
    gradients = [WorkItem((), (i,), name=f"g{i}") for i in range(3)]
    rate = WorkItem((), (3,), name="rate")
    updates = [WorkItem((i, 3), (4 + i,), again=False, name=f"u{i}") for i in range(3)]
    work = Work((*gradients, rate, *updates), (6400, 6400, 6400, 4, 0, 0, 0))
    assert work.live(range(7)) == 3 * 6400 + 64
    order = earlier(work)
    assert sorted(order) == list(range(7)) and work.live(order) == 6400 + 64
    first = replace(updates[0], after=(2,))  # must wait for the last gradient
    held = Work((*gradients, rate, first, *updates[1:]), work.nbytes)
    order = earlier(held)
    held.check(order)
    assert order.index(4) > order.index(2) and held.live(order) == 2 * 6400 + 64


def test_what_updates_a_state_is_put_off_until_nothing_reads_the_old_one() -> None:
    """Operation 1 updates what 0 reads; 2 reads what 1 makes. Operation 0 runs again."""
    operations = (
        WorkItem((), (0,), name="reader"), WorkItem((), (1,), again=False, after=(0,)),
        WorkItem((1,), (2,), again=False), WorkItem((0,), (3,)),
    )  # fmt: skip
    work = Work(operations, (64, 0, 0, 64))
    work.check([0, 1, 2, 3])
    with pytest.raises(VerificationError, match="'reader' runs behind"):
        work.check([0, 1, 2, 0, 3])
    assert work.settled([0, 1, 2, 0, 3]) == [0, 0, 1, 2, 3]
    assert work.settled([0, 1, 2, 3]) == [0, 1, 2, 3]
