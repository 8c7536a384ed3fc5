import pytest

from burnish.boost import synonyms
from burnish.boost.params import ALIASES, OBJECTIVES, Params
from burnish.errors import ParameterError

OWN = {*ALIASES, *Params.__dataclass_fields__}  # what is a parameter here is none of other libraries alone


@pytest.mark.parametrize("key", sorted(synonyms.NAMES))
def test_every_name_is_of_a_parameter(key: str) -> None:
    assert synonyms.NAMES[key] in Params.__dataclass_fields__
    assert ALIASES.get(key, synonyms.NAMES[key]) == synonyms.NAMES[key]
    assert key not in Params.__dataclass_fields__


@pytest.mark.parametrize("key", sorted(synonyms._NOTHING.keys() - OWN))
def test_values_without_effect_give_the_same_parameters(key: str) -> None:
    for value in synonyms._NOTHING[key]:
        given = "anything" if value is synonyms._ANY else value
        assert Params.of({key: given}) == Params.of({key: None}) == Params()


@pytest.mark.parametrize("key", sorted(synonyms._ADVICE.keys() - OWN))
def test_the_rest_is_refused_with_the_nearest_thing(key: str) -> None:
    with pytest.raises(ParameterError, match="nearest there is") as error:
        Params.of({key: "something else"})
    assert repr(key) in str(error.value)
    assert synonyms._ADVICE[key] in str(error.value)


@pytest.mark.parametrize("name", sorted(synonyms.OBJECTIVES))
def test_objectives_of_other_libraries(name: str) -> None:
    assert synonyms.OBJECTIVES[name] in OBJECTIVES
    more = {"num_class": 3} if name == "MultiClass" else {}
    assert Params.of({"loss_function": name, **more}).objective == synonyms.OBJECTIVES[name]


def test_texts_and_truths() -> None:
    assert Params.of({"boost_from_average": "true", "bagging_freq": "1", "use_missing": 1}) == Params()
    with pytest.raises(ParameterError, match="bagging_freq"):
        Params.of({"bagging_freq": 5})


@pytest.mark.parametrize("key", ["bagging_freq", "subsample_freq"])
def test_sampling_that_lightgbm_would_not_do(key: str) -> None:
    with pytest.raises(ParameterError, match=key):
        Params.of({key: 0, "bagging_fraction": 0.5})
    assert Params.of({key: 1, "bagging_fraction": 0.5}).subsample == 0.5
