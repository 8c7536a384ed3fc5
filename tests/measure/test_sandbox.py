"""Models that crash, hang or lie do so where it harms nobody, and what they did is told."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from burnish.measure.comparison import Comparison
from burnish.measure.sandbox import Sandbox
from burnish.runtime.module import Module
from burnish.workers import Failure

Planted = Callable[[str], Module]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as made:
        yield made


def compared(sandbox: Sandbox, planted: Planted, first: str, second: str) -> Comparison:
    return sandbox.compare(planted(first), planted(second), timed=False)


def test_equal_answers_are_ok(sandbox, planted) -> None:
    for other in ("twice", "nearly twice"):
        found = compared(sandbox, planted, "twice", other)
        assert (found.outcome, found.error) == ("ok", "")
        assert not found.second_wins, "nothing was timed"


@pytest.mark.parametrize(
    ("other", "progress"), [("thrice", "output 'y' differs by 0.5"), ("nan", "output 'y' is NaN on one side alone")]
)
def test_other_answers_are_wrong(sandbox, planted, other, progress) -> None:
    found = compared(sandbox, planted, "twice", other)
    assert found.outcome == "wrong" and progress in found.error and not found.second_wins
    assert compared(sandbox, planted, other, "twice").outcome == "wrong"
    assert compared(sandbox, planted, other, other).outcome == "ok", "NaN agrees with itself"


def test_what_a_rounding_changes_may_change(sandbox, planted) -> None:
    """Digits behind the sixth: another model gives others, and so does the same one for inputs that hardly differ."""
    assert compared(sandbox, planted, "chaos", "other chaos").outcome == "ok"
    assert compared(sandbox, planted, "twice", "chaos").outcome == "wrong"


@pytest.mark.parametrize(("kind", "signal_"), [("trap", "SIGILL"), ("stray", "SIGSEGV")])
def test_a_crash_is_an_outcome(sandbox, planted, kind, signal_) -> None:
    found = compared(sandbox, planted, "twice", kind)
    assert (found.outcome, found.culprit) == ("crashed", 1) and found.error == f"the process was killed by {signal_}"
    found = compared(sandbox, planted, kind, "twice")
    assert (found.outcome, found.culprit) == ("crashed", 0)
    assert compared(sandbox, planted, "twice", "twice").outcome == "ok", "and the next question is answered"


def test_a_hang_is_an_outcome(planted, own_children) -> None:
    before = own_children(os.getpid())
    with Sandbox(limit=3.0) as sandbox:
        found = compared(sandbox, planted, "twice", "hang")
    assert (found.outcome, found.culprit) == ("timeout", 1) and "longer than 3 s" in found.error
    assert own_children(os.getpid()) == before


def test_kernels_are_timed_and_one_that_crashes_is_told(sandbox, planted) -> None:
    ((took,),) = sandbox.kernel_seconds([planted("twice")])
    assert 0 < took < 1
    with pytest.raises(Failure) as caught:
        sandbox.profiles([planted("twice"), planted("trap")], 2, 1)
    assert (caught.value.kind, caught.value.progress) == ("crashed", 1) and "SIGILL" in caught.value.detail


def test_nothing_is_left_behind(planted, own_children, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    files, processes = len(os.listdir("/proc/self/fd")), own_children(os.getpid())
    for other in ("twice", "trap", "thrice"):
        with Sandbox() as sandbox:
            compared(sandbox, planted, "twice", other)
            (server,) = set(own_children(os.getpid())) - set(processes)
            left = [server, *own_children(server)]
        assert not any(Path(f"/proc/{pid}").exists() for pid in left)
    assert len(os.listdir("/proc/self/fd")) == files and own_children(os.getpid()) == processes
    assert not list(tmp_path.iterdir())


def test_an_interrupt_ends_the_process(planted, own_children) -> None:
    """As Ctrl-C, which this process alone hears of."""
    processes = own_children(os.getpid())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    twice, hang = planted("twice"), planted("hang")
    try:
        with pytest.raises(KeyboardInterrupt), Sandbox() as sandbox:
            sandbox.compare(twice, twice, timed=False)  # the process has begun
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            sandbox.compare(hang, twice, timed=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert own_children(os.getpid()) == processes


@pytest.mark.parametrize("executable", ["", "/nonexistent/python"])
def test_without_another_process_nothing_runs(planted, monkeypatch, executable) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with Sandbox() as sandbox:
        sandbox.launch()
        found = compared(sandbox, planted, "twice", "trap")
    assert found.outcome == "unavailable" and found.error.startswith("workers: ")


def test_a_frozen_program_is_not_started_again(planted, monkeypatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with Sandbox() as sandbox:
        assert compared(sandbox, planted, "twice", "twice").outcome == "unavailable"


def test_the_process_is_limited_and_the_first_to_go(planted) -> None:
    with Sandbox() as sandbox:
        compared(sandbox, planted, "twice", "twice")
        about = Path(f"/proc/{sandbox._worker.pid}")
        (memory,) = [row for row in (about / "limits").read_text().splitlines() if row.startswith("Max address space")]
        (core,) = [row for row in (about / "limits").read_text().splitlines() if row.startswith("Max core file")]
        assert memory.split()[3].isdigit() and core.split()[4] == "0"
        assert (about / "oom_score_adj").read_text().strip() == "1000"
