"""Strategies: text, validity, parts, baselines, and the space of configurations."""

import pytest

from burnish.errors import PlanError
from burnish.parallel.model.presets import machine
from burnish.parallel.model.space import StrategySpace
from burnish.parallel.model.strategy import Configuration, Strategy, parse_strategy, part, placed
from burnish.parallel.simulate.baselines import data_parallel, expert, model_parallel, one_weird_trick, pipeline
from tests.parallel.problems import branches, layers

FOUR = machine("p100:2x2")


@pytest.fixture(scope="module")
def model():
    return branches()


@pytest.mark.parametrize("make", [data_parallel, model_parallel, expert, one_weird_trick])
def test_baselines_survive_as_text(model, make):
    strategy = make(model, FOUR)
    assert parse_strategy(strategy.text(model, FOUR), model, FOUR) == strategy


def test_random_strategies_survive_as_text_and_as_numbers(model):
    space = StrategySpace(model, FOUR)
    for seed in range(20):
        choice = space.random(seed)
        strategy = space.strategy(choice)
        assert (space.choice(strategy) == choice).all()
        assert parse_strategy(strategy.text(model, FOUR), model, FOUR) == strategy


def test_parts_cover_an_extent_unevenly():
    assert [part(10, 4, k) for k in range(4)] == [(0, 2), (2, 5), (5, 7), (7, 10)]


def test_tasks_are_row_major(model):
    op = model.operations[0]
    chosen = placed((2, 2, 1, 1), first=0)
    assert [chosen.task(k)[:2] for k in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert chosen.box(op, 3)[:2] == ((4, 8), (4, 8))


def test_a_strategy_of_another_model_or_machine_is_refused_by_name(model):
    text = data_parallel(model, FOUR).text(model, FOUR)
    with pytest.raises(PlanError, match="operation '"):
        parse_strategy(text, layers(2), FOUR)
    with pytest.raises(PlanError, match="strategy for 4 devices; allowed: 16"):
        parse_strategy(text, model, machine("p100"))
    with pytest.raises(PlanError, match=r"operation 'relu' is conv2d\+relu"):
        parse_strategy(text, branches(16), FOUR)


@pytest.mark.parametrize(
    ("degrees", "devices", "words"),
    [
        ((2, 1, 1), (0, 1), "degrees .2, 1, 1.; allowed: n 1 to 8"),
        ((2, 1, 1, 1), (0,), "1 devices for degrees"),
        ((2, 1, 1, 1), (0, 4), "device 4; allowed: 0 to 3"),
        ((9, 1, 1, 1), tuple(range(9)), "degrees .9, 1, 1, 1."),
    ],
)
def test_configurations_that_do_not_fit_are_refused(model, degrees, devices, words):
    chosen = dict(data_parallel(model, FOUR).configurations)
    chosen["relu"] = Configuration(degrees, devices)
    with pytest.raises(PlanError, match=words):
        Strategy(chosen).check(model, FOUR)


def test_lines_are_refused_by_number(model):
    text = data_parallel(model, FOUR).text(model, FOUR)
    for old, new, words in [
        ("n:4", "rows:4", "line 2: operation 'relu', 'rows:4'; allowed: AXIS:DEGREE of n, oc"),
        ("strategy of", "plan of", "line 1: found 'plan of"),
        (" on 0 1 2 3", "", "line 2: found"),
    ]:
        with pytest.raises(PlanError, match=words):
            parse_strategy(text.replace(old, new, 1), model, FOUR)


def test_the_space_holds_only_what_was_asked_for(model):
    uneven = dict(data_parallel(model, FOUR).configurations)
    uneven["relu"] = Configuration((3, 1, 1, 1), (0, 0, 3))
    with pytest.raises(PlanError, match="are not in the space"):
        StrategySpace(model, FOUR).choice(Strategy(uneven))
    space = StrategySpace(model, FOUR, also=[Strategy(uneven)])
    assert space.strategy(space.choice(Strategy(uneven))) == Strategy(uneven)


def test_every_configuration_of_the_space_is_valid(model):
    space = StrategySpace(model, machine("summit:1x6"))
    assert {3, 6} <= set(space.levels)
    for i, op in enumerate(model.operations):
        for n in range(space.first[i], space.first[i] + space.count[i]):
            space.configuration(n).check(op, space.machine)


def test_a_recurrent_expert_gives_a_layer_a_device(model):
    chosen = expert(model, FOUR).configurations
    cells = [op for op in model.operations if any(n.op == "lstm_cell" for n in op.nodes)]
    assert len({chosen[op.name].devices for op in cells}) == 1


def test_pipelines_check_their_stages():
    with pytest.raises(PlanError, match="3 stages on 4 devices"):
        pipeline(layers(4), FOUR, 3, 2)
    made = pipeline(layers(4), FOUR, 4, 3)
    assert [made.strategy.configurations[op.name].devices for op in made.model.operations[:4]] == [
        (0,), (1,), (2,), (3,),
    ]  # fmt: skip
    assert sorted(made.order) == [(2, 10), (3, 7), (7, 11)]  # stage 2 keeps 2 batches, stage 3 one
