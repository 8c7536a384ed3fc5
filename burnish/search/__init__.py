"""The walks that every optimizer shares: spaces of points, walkers that propose points to try, budgets and reports."""

from burnish.search.annealing import Annealing, ContextualShare, contextual_share
from burnish.search.budget import Budget, Event, SearchReport, SearchTrial, Tally
from burnish.search.diversity import DiverseBatches, select
from burnish.search.exhaustive import Exhaustive
from burnish.search.genetic import Evolution, Genetic
from burnish.search.random_search import RandomSearch
from burnish.search.space import GridSpace, Points, SearchSpace, Union
from burnish.search.walker import Score, Walker, best_distinct, unseen

__all__ = [
    "Annealing",
    "Budget",
    "ContextualShare",
    "DiverseBatches",
    "Event",
    "Evolution",
    "Exhaustive",
    "Genetic",
    "GridSpace",
    "Points",
    "RandomSearch",
    "Score",
    "SearchReport",
    "SearchSpace",
    "SearchTrial",
    "Tally",
    "Union",
    "Walker",
    "best_distinct",
    "contextual_share",
    "select",
    "unseen",
]
