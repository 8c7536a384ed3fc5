import os
from pathlib import Path

import pytest

from burnish.base import affinity
from burnish.base.affinity import core_list, core_places, nodes_of, pinned_cores, spread
from burnish.errors import ParameterError


def system(folder: Path, siblings: dict[int, str], nodes: dict[int, str], file: str = "core_cpus_list") -> Path:
    """What Linux tells of cores: those on the physical core of each, and those of each node."""
    for core, text in siblings.items():
        topology = folder / "cpu" / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / file).write_text(f"{text}\n")
    for node, text in nodes.items():
        (folder / "node" / f"node{node}").mkdir(parents=True)
        (folder / "node" / f"node{node}" / "cpulist").write_text(f"{text}\n")
    return folder


@pytest.fixture
def usable(monkeypatch):
    """Makes these the cores that the process may use, one thread on each physical core, all on node 0."""

    def become(*cores: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cores))
        monkeypatch.setattr(affinity, "core_places", lambda some: [affinity.CorePlace(0, core, core) for core in some])

    return become


def test_a_list_of_cores_is_read_as_linux_writes_it() -> None:
    assert core_list("0-3,8") == [0, 1, 2, 3, 8]
    assert core_list(" 5 , 1 - 2\n") == [5, 1, 2]


@pytest.mark.parametrize("text", ["", "a", "1,,2", "3-1", "-1", "0-", "1:2", "0-99999999"])
def test_what_is_no_list_of_cores_is_refused(text, monkeypatch, usable) -> None:
    with pytest.raises(ValueError):
        core_list(text)
    if text:
        usable(0, 1)
        monkeypatch.setenv("BURNISH_AFFINITY", text)
        with pytest.raises(ParameterError, match=r"BURNISH_AFFINITY: found .*; allowed: 'none', 'cores', or a list"):
            pinned_cores(1)


def test_physical_cores_come_before_their_second_threads(tmp_path) -> None:
    """Two cores of two threads each, numbered core by core, as some clouds do, and thread by thread, as Intel's are."""
    together = system(tmp_path / "a", {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, {0: "0-3"})
    assert spread(core_places(range(4), together)) == [0, 2, 1, 3]
    apart = system(tmp_path / "b", {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0: "0-3"}, "thread_siblings_list")
    assert spread(core_places(range(4), apart)) == [0, 1, 2, 3]


def test_a_node_is_filled_before_the_next_one(tmp_path) -> None:
    """Even cores are on one node, odd ones on the other; each core has two threads."""
    siblings = {core: f"{core % 8},{core % 8 + 8}" for core in range(16)}
    folder = system(tmp_path, siblings, {0: "0,2,4,6,8,10,12,14", 1: "1,3,5,7,9,11,13,15"})
    order = spread(core_places(range(16), folder))
    assert order == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert {place.node for place in core_places(order[:4], folder)} == {0}
    assert spread(core_places([13, 5, 9, 3], folder)) == [9, 3, 5, 13]  # 13 is on the core of 5, 9 on that of 1
    assert spread(core_places([5, 13], folder)) == [5, 13]


def test_cores_of_which_the_system_tells_nothing_are_alone_on_one_node(tmp_path) -> None:
    assert spread(core_places([2, 0, 1], tmp_path)) == [0, 1, 2]
    assert {place.node for place in core_places([0, 1], tmp_path)} == {0}


def test_this_machine_tells_of_its_cores() -> None:
    cores = os.sched_getaffinity(0)
    assert sorted(spread(core_places(cores))) == sorted(cores)
    assert nodes_of(cores)


def test_nothing_is_pinned_unless_it_is_asked_for(monkeypatch, usable) -> None:
    usable(0, 1, 2)
    for value in (None, "", "none"):
        monkeypatch.delenv("BURNISH_AFFINITY", raising=False)
        if value is not None:
            monkeypatch.setenv("BURNISH_AFFINITY", value)
        assert pinned_cores(3) == ()


def test_cores_are_those_of_the_process_alone(monkeypatch, usable) -> None:
    usable(3, 5, 9)
    monkeypatch.setenv("BURNISH_AFFINITY", "cores")
    assert pinned_cores(2) == (3, 5)
    assert pinned_cores(3) == (3, 5, 9)
    assert pinned_cores(1) == ()  # the calling thread alone
    monkeypatch.setenv("BURNISH_AFFINITY", "9,3")
    assert pinned_cores(2) == (9, 3)


@pytest.mark.parametrize(
    ("value", "threads", "message"),
    [
        ("0-1", 2, r"found '0-1'; allowed: cores that this process may use: \[1, 2\]; 0 is none"),
        ("1,1", 2, "found '1,1'; allowed: each core once"),
        ("1", 2, "found '1'; allowed: a core for each of 2 threads, or at most 1 threads"),
        ("cores", 3, "found 'cores'; allowed: a core for each of 3 threads, or at most 2 threads"),
    ],
)
def test_cores_that_cannot_be_are_refused(value, threads, message, monkeypatch, usable) -> None:
    usable(1, 2)
    monkeypatch.setenv("BURNISH_AFFINITY", value)
    with pytest.raises(ParameterError, match=f"BURNISH_AFFINITY: {message}"):
        pinned_cores(threads)


def test_a_system_without_affinity_refuses_it_by_name(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setenv("BURNISH_AFFINITY", "cores")
    with pytest.raises(ParameterError, match=r"BURNISH_AFFINITY: found 'cores'; allowed: 'none': .* on darwin"):
        pinned_cores(2)
    monkeypatch.setenv("BURNISH_AFFINITY", "none")
    assert pinned_cores(2) == ()
