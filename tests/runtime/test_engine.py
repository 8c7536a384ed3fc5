"""The dependency engine: what it leaves is what serial execution leaves."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from burnish.array.engine import Engine, Resource
from burnish.errors import EngineError

Action = tuple[Callable[[dict], None], list[str], list[str]]


def draw_program(rng: random.Random, length: int) -> list[Action]:
    """Operations on five arrays, of which ``half`` is a view of ``a``, and two generators."""
    arrays = ["a", "b", "c", "d", "half"]
    tag = {name: name for name in arrays} | {"half": "a"}

    def mutate(target: str, source: str, factor: float) -> Action:
        def run(memory: dict) -> None:
            memory[target][:] = memory[target] * factor + memory[source].sum()

        return run, [tag[target], tag[source]], [tag[target]]

    def overwrite(target: str, source: str) -> Action:
        def run(memory: dict) -> None:
            memory[target][:] = memory[source].max()

        reads = [tag[source]] + ([tag[target]] if target == "half" else [])
        return run, reads, [tag[target]]

    def sample(target: str, seed: str) -> Action:
        def run(memory: dict) -> None:
            inside = memory["inside"]
            assert seed not in inside, "two draws from one seed ran together"
            inside.add(seed)
            time.sleep(0)
            memory[target][:] += memory[seed].integers(0, 9, memory[target].shape)
            inside.remove(seed)

        return run, [tag[target], seed], [tag[target], seed]

    program = []
    for _ in range(length):
        target, source = rng.choice(arrays), rng.choice(arrays)
        kind = rng.randrange(4)
        if kind == 0:
            program.append(sample(target, rng.choice(["seed0", "seed1"])))
        elif kind == 1:
            program.append(overwrite(target, source))
        else:
            program.append(mutate(target, source, rng.choice([0.5, 0.25, -1.0])))
    return program


def fresh_memory() -> dict:
    memory: dict = {name: np.arange(8.0) + at for at, name in enumerate("abcd")}
    memory["half"] = memory["a"][2:6]
    memory |= {f"seed{i}": np.random.default_rng(i) for i in range(2)}
    memory["inside"] = set()
    return memory


def test_random_programs_on_four_threads_equal_serial_execution() -> None:
    with Engine(4) as engine:
        for seed in range(500):
            rng = random.Random(seed)
            program = draw_program(rng, 12)
            serial, threaded = fresh_memory(), fresh_memory()
            for run, _, _ in program:
                run(serial)
            tags = {name: Resource(name) for name in ("a", "b", "c", "d", "seed0", "seed1")}
            for number, (run, reads, writes) in enumerate(program):
                engine.push(
                    lambda run=run, memory=threaded: run(memory),
                    [tags[n] for n in dict.fromkeys(reads)],
                    [tags[n] for n in dict.fromkeys(writes)],
                    name=f"operation {number}",
                    long=rng.random() < 0.8,
                )
                if rng.random() < 0.1:
                    name = rng.choice("abcd")
                    engine.wait(tags[name])
            engine.wait_all()
            for name in "abcd":
                np.testing.assert_array_equal(threaded[name], serial[name], err_msg=f"program {seed}, array {name}")
            assert threaded["seed0"].integers(1 << 60) == serial["seed0"].integers(1 << 60)


def test_independent_long_operations_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=120)
    with Engine(2) as engine:
        a, b = Resource("a"), Resource("b")
        engine.push(both.wait, writes=[a])
        engine.push(both.wait, writes=[b])
        engine.wait_all()


def test_draws_from_one_seed_never_run_together() -> None:
    inside, most = 0, 0
    lock = threading.Lock()

    def draw() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.001)
        with lock:
            inside -= 1

    with Engine(4) as engine:
        seed, others = Resource("seed"), [Resource(str(i)) for i in range(20)]
        for other in others:
            engine.push(draw, [seed], [seed, other])
        engine.wait(*others)
    assert most == 1


def test_a_lone_long_operation_waits_for_its_reader_and_runs_in_its_thread() -> None:
    ran = []
    with Engine(4) as engine:
        a = Resource("a")
        engine.push(lambda: ran.append(threading.get_ident()), writes=[a])
        assert ran == []
        engine.wait(a)
        assert ran == [threading.get_ident()]


def test_short_operations_run_where_they_are_pushed_with_what_they_wait_for() -> None:
    ran = []
    with Engine(4) as engine:
        a = Resource("a")
        engine.push(lambda: ran.append("long"), writes=[a])
        engine.push(lambda: ran.append("short"), [a], [a], long=False)
        assert ran == ["long", "short"]
        assert engine.pending == 0


def test_help_runs_what_nobody_is_at() -> None:
    ran = []
    with Engine(1) as engine:
        a, b, c = Resource("a"), Resource("b"), Resource("c")
        engine.push(lambda: ran.append("a"), writes=[a])
        engine.push(lambda: ran.append("c"), writes=[c])
        engine.push(lambda: ran.append("b"), [a], [b])
        engine.help([b])
        assert ran == ["a", "b"]


def test_errors_reach_the_reader_that_waits_by_name() -> None:
    def fail() -> None:
        raise ValueError("no such thing")

    ran = []
    with Engine(3) as engine:
        a, b, c = Resource("a"), Resource("b"), Resource("c")
        engine.push(fail, writes=[a], name="the failing one")
        engine.push(lambda: ran.append("b"), [a], [b])
        engine.push(lambda: ran.append("c"), writes=[c])
        engine.wait(c)
        with pytest.raises(EngineError, match=r"'the failing one' failed: ValueError: no such thing") as caught:
            engine.wait(b)
        assert isinstance(caught.value.__cause__, ValueError)
        assert ran == ["c"]
        engine.push(lambda: ran.append("a again"), writes=[a])
        engine.wait(a)
        assert ran == ["c", "a again"]
        engine.wait_all()


def test_wait_all_tells_of_a_failure_that_nobody_has_heard_of_once() -> None:
    with Engine(2) as engine:
        engine.push(lambda: 1 / 0, writes=[Resource("a")], name="division")
        with pytest.raises(EngineError, match="'division' failed: ZeroDivisionError"):
            engine.wait_all()
        engine.wait_all()


def test_an_operation_that_waits_for_itself_is_refused() -> None:
    with Engine(2) as engine:
        a = Resource("a")
        engine.push(lambda: engine.wait(a), writes=[a], name="circle")
        with pytest.raises(EngineError, match="'circle' waits for itself"):
            engine.wait(a)


def test_many_operations_are_never_kept() -> None:
    with Engine(2) as engine:
        resources = [Resource(str(i)) for i in range(3)]
        count = 0

        def add() -> None:
            nonlocal count
            count += 1

        for i in range(2000):
            engine.push(add, [resources[0]], [resources[0], resources[i % 3]])
            assert engine.pending <= 513
        engine.wait_all()
        assert count == 2000


def test_pushes_from_several_threads_are_all_done() -> None:
    total = np.zeros(1)
    with Engine(3) as engine:
        tag = Resource("total")

        def add() -> None:
            before = total[0]
            time.sleep(0)
            total[0] = before + 1

        def work(long: bool) -> None:
            for _ in range(200):
                engine.push(add, [tag], [tag], long=long)

        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        engine.wait(tag)
    assert total[0] == 800


def test_after_closing_workers_are_gone_and_operations_run_where_they_are_pushed() -> None:
    def workers() -> int:
        return sum(thread.name.startswith("burnish engine") for thread in threading.enumerate())

    before = workers()
    engine = Engine(2)
    ran = []
    engine.push(lambda: ran.append(1), writes=[Resource("a")])
    engine.push(lambda: time.sleep(0.01), writes=[Resource("b")])
    assert workers() == before + 1
    engine.close()
    assert workers() == before
    engine.push(lambda: ran.append(2), writes=[Resource("a")])
    assert ran == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_goes_on_with_what_was_pushed() -> None:
    with Engine(3) as engine:
        tags = [Resource(str(i)) for i in range(6)]
        done: list[int] = []
        for at, tag in enumerate(tags):
            engine.push(lambda at=at: (time.sleep(0.002), done.append(at)), writes=[tag])
        child = os.fork()
        if child == 0:
            try:
                engine.wait_all()
                os._exit(0 if sorted(done) == list(range(6)) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        engine.wait_all()
        assert sorted(done) == list(range(6))
