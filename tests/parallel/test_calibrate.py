"""Calibration: fitted links, and times of tasks that are measured once and kept."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from burnish.base.cache import ObjectCache
from burnish.cli.plan_devices import summary
from burnish.comm.local import thread_comms
from burnish.errors import PlanError
from burnish.fitting import planned
from burnish.fitting.planned import plan
from burnish.graph.evaluate import evaluate
from burnish.measure import together
from burnish.parallel.model.costs import Roofline, work
from burnish.parallel.model.operations import micro_batches, operations
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.programs import calibrate
from burnish.parallel.programs.alternatives import SearchRequest, split
from burnish.parallel.programs.calibration import LaunchConfig
from burnish.parallel.programs.calibration import calibrate as calibrate_plan
from burnish.parallel.programs.parts import part_program, parts_of
from burnish.parallel.programs.plans import splits_of
from burnish.parallel.simulate.baselines import data_parallel
from burnish.parallel.simulate.search import PlanObjective
from tests.parallel.networks import NETWORKS, TRAIN
from tests.parallel.problems import layers


def test_a_line_is_fitted():
    sizes = [1 << 10, 1 << 16, 1 << 20, 1 << 24]
    latency, bandwidth = calibrate.fit(sizes, [3e-6 + size / 5e9 for size in sizes])
    assert latency == pytest.approx(3e-6)
    assert bandwidth == pytest.approx(5e9)


def test_links_are_measured_between_workers():
    here = machine("host:2")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda comm: calibrate.calibrated(here, comm, (1 << 10, 1 << 16)), thread_comms(2)))
    assert found[0] == found[1]
    assert found[0].links != here.links
    assert 0 < found[0].all_reduce <= 1
    (alone,) = thread_comms(1)
    with pytest.raises(PlanError, match="1 workers; allowed: 2"):
        calibrate.calibrated(here, alone)


def test_times_are_kept_for_one_edition(tmp_path):
    what = calibrate.TimedPart("core", "y=matmul", (8, 16), True, False)
    calibrate.Times(ObjectCache(tmp_path), "1").put(what, 0.25)
    assert calibrate.Times(ObjectCache(tmp_path), "1").get(what) == 0.25
    assert calibrate.Times(ObjectCache(tmp_path), "2").get(what) is None
    assert calibrate.Times(ObjectCache(tmp_path), "1").get(replace(what, sizes=(8, 8))) is None


def test_what_was_measured_takes_the_place_of_what_is_guessed():
    model, device = layers(2), machine("host:1").devices[0]
    op = model.operations[0]
    part = work(op, [(1, 1), (2, 1)], gradient=False)
    times = calibrate.Times()
    times.put(calibrate.TimedPart(device.kind, op.signature, (8, 16), False, False), 0.5)
    times.put(calibrate.TimedPart(device.kind, op.signature, (8, 16), True, False), 0.0)
    costs = calibrate.MeasuredCosts(Roofline(), times, model, update=(1e-3, 1e6))
    forward, backward = costs.seconds(op, part, device)
    guessed = Roofline().seconds(op, part, device)
    assert forward.tolist() == pytest.approx([0.5, guessed[0][1] * 0.5 / guessed[0][0]])
    update = 1e-3 + 16 * 16 * 4 / 1e6  # of a layer's weight, in both configurations
    assert backward.tolist() == pytest.approx([update, update])  # a half of what takes no time takes none
    assert {what.sizes for what in costs.missing} == {(4, 16)}


def test_micro_batches_take_as_much_longer_than_guessed_as_the_whole_operation():
    model, device = layers(2), machine("host:1").devices[0]
    whole, micro = model.operations[1], micro_batches(layers(2, batch=4), 2).operations[1]
    times, guessed = calibrate.Times(), Roofline().seconds(whole, work(whole, [(1, 1)]), device)
    times.put(calibrate.TimedPart(device.kind, whole.signature, (8, 16), False, True), 3 * guessed[0][0])
    times.put(calibrate.TimedPart(device.kind, whole.signature, (8, 16), True, True), 5 * guessed[1][0])
    costs = calibrate.MeasuredCosts(Roofline(), times, model, update=(1e-3, 1e6))
    part = work(micro, [(1, 1)])
    own, found = Roofline().seconds(micro, part, device), costs.seconds(micro, part, device)
    assert found[0].tolist() == pytest.approx(3 * own[0])
    update = 1e-3 + 16 * 16 * 4 / 1e6  # once a step, of which each of two micro-batches takes half
    assert found[1].tolist() == pytest.approx(5 * own[1] + update / 2)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_a_part_computes_its_box_of_the_whole(name):
    model = operations(NETWORKS[name]())
    drawn = np.random.default_rng(0)
    values = {n: drawn.normal(size=model.graph.types[n].shape).astype(np.float32) for n in model.graph.inputs}
    values |= model.graph.constants
    values |= evaluate(model.graph, values, keep=[n for node in model.graph.nodes for n in node.outputs])
    checked = 0
    for part in parts_of(StrategySpace(model, machine("host:2"))):
        program = part_program(model, part)
        if part.backward or any(name.startswith("message") for name in program.graph.inputs):
            continue
        given = {n: values[n][tuple(slice(*span) for span in box)] for n, box in program.inputs.items()}
        (found,) = evaluate(program.graph, given).values()
        whole = values[part.op.outputs[0]]
        box = [slice(None)] * whole.ndim
        axes = list(zip(part.op.axes, part.degrees, strict=True))
        for axis, degree in axes:
            if axis.dim >= 0:
                box[axis.dim] = slice(degree // 2 * axis.extent // degree, (degree // 2 + 1) * axis.extent // degree)
        if all(degree == 1 or axis.dim >= 0 for axis, degree in axes):  # the whole sum, no term of it
            np.testing.assert_allclose(found, whole[tuple(box)], rtol=1e-5, atol=1e-6)
            checked += 1
    assert checked >= len(model.operations)


def test_backward_parts_read_what_their_device_has():
    model = operations(NETWORKS["mlp"]())
    found = {
        (p.op.name, p.degrees): part_program(model, p)
        for p in parts_of(StrategySpace(model, machine("host:2")))
        if p.backward
    }
    samples, columns, terms = (found["y", degrees].graph for degrees in [(2, 1, 1), (1, 2, 1), (1, 1, 2)])
    assert {str(samples.types[n]) for n in samples.outputs} == {"float32[4, 12]", "float32[12, 4]"}
    assert {str(columns.types[n]) for n in columns.outputs} == {"float32[8, 12]", "float32[12, 2]"}
    assert {str(terms.types[n]) for n in terms.outputs} == {"float32[8, 6]", "float32[6, 4]"}


def test_parts_are_compiled_timed_by_all_ranks_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "COLD_BYTES", 1 << 10)
    space = StrategySpace(operations(NETWORKS["mlp"]()), machine("host:2"))
    ranks = LaunchConfig(TRAIN, worker_kind="thread", cache_dir=tmp_path)
    first = calibrate_plan(space, ranks)
    assert first.timed == len(parts_of(space)) + 3
    assert all(
        0 < first.costs.times.get(calibrate.TimedPart.of(p, space.machine.devices[0])) < 5 for p in parts_of(space)
    )
    assert first.machine.links != space.machine.links
    again = calibrate_plan(space, ranks)
    assert again.timed == 0
    assert again.costs.update == first.costs.update
    with pytest.raises(PlanError, match="cannot be measured here; allowed: host:CORES"):
        calibrate_plan(StrategySpace(space.model, machine("p100:1x2")), ranks)


def test_a_measured_plan_is_the_faster_one_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "COLD_BYTES", 1 << 10)
    ranks = LaunchConfig(TRAIN, worker_kind="thread", steps=2, cache_dir=tmp_path)
    timed = {"plan": 2.0, "data parallelism": 1.0}
    monkeypatch.setattr(planned, "faster_plan", lambda *_, **__: (min(timed, key=timed.get), timed))
    slower = plan(NETWORKS["mlp"](), devices="host:2", seconds=0.2, measure=ranks)
    assert slower.is_data_parallel
    assert slower.measured in ({}, {"plan": 2000.0, "data parallelism": 1000.0})
    assert len(slower.allocated) == 2
    if slower.measured:
        assert "data parallelism 1000.000 ms a step: data parallelism is the plan" in summary(slower)
        timed["plan"] = 0.5
        faster = plan(NETWORKS["mlp"](), devices="host:2", seconds=0.2, measure=ranks)
        assert not faster.is_data_parallel and faster.measured["plan"] == 500.0


@pytest.mark.slow
def test_a_plan_that_devices_have_no_room_for_is_never_proposed(tmp_path, monkeypatch):
    monkeypatch.setattr(together, "COLD_BYTES", 1 << 10)
    ranks, here, model = (
        LaunchConfig(TRAIN, worker_kind="thread", steps=2, cache_dir=tmp_path),
        machine("host:2"),
        NETWORKS["mlp"](),
    )
    monkeypatch.setattr(planned, "faster_plan", lambda *given, **_: (next(iter(given[2])), {}))
    usual = plan(model, devices=here, seconds=0.2, measure=ranks)
    needs = {"plan": [{"state": 900}, {"state": 5000}], "data parallelism": [{"state": 1000}] * 2}
    monkeypatch.setattr(planned, "plan_memory", lambda graph, train, splits, *_: needs[which(splits, usual)])
    tight = replace(here, devices=tuple(replace(d, memory=4000) for d in here.devices))
    found = plan(model, devices=tight, seconds=0.2, measure=ranks)
    assert max(found.allocated) <= 4000
    needs["data parallelism"] = needs["plan"]
    with pytest.raises(PlanError, match=r"a device needs 5000 bytes; there are 4000"):
        plan(model, devices=tight, seconds=0.2, measure=ranks)


def test_a_plan_whose_programs_have_no_room_is_looked_for_in_less(monkeypatch):
    model, here = layers(2), machine("host:2")
    room = here.devices[0].memory
    request = SearchRequest(model.graph, here, Roofline(), "overlapped", False, PlanObjective(), True, None, (), 1.0, 0)
    first = split(request, model, {"data parallel": data_parallel(model, here)}, False)
    second = replace(first, trials=-1)
    needs = [(room, 2 * room), (room, room), (4 * room, room), (4 * room, room)]
    shares = []

    def again(request, *rest):
        shares.append(request.objective.share)
        return second

    monkeypatch.setattr(planned, "_needed", lambda *rest: needs.pop(0))
    monkeypatch.setattr(planned, "split", again)
    assert planned._with_room(first, request, {}, LaunchConfig()) is second
    assert shares == [0.5]
    assert planned._with_room(first, request, {}, LaunchConfig()) is second
    assert shares == [0.5, 0.25, 0.0625]  # and no further
    needs.append((room, room))
    assert planned._with_room(first, request, {}, LaunchConfig()) is first


def which(splits, usual):
    """Whether splits are those of data parallelism."""
    plain = data_parallel(usual.model, usual.machine)
    return "data parallelism" if splits == splits_of(usual.model, plain) else "plan"
