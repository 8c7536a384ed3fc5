"""The walks that every optimizer shares: spaces of points, walkers that propose points to try, budgets and reports."""

from burnish.search.annealing import Annealing, ContextualShare, contextual_share
from burnish.search.budget import Budget, Event, Report, Tally, Trial
from burnish.search.diversity import DiverseBatches, select
from burnish.search.exhaustive import Exhaustive
from burnish.search.genetic import Evolution, Genetic
from burnish.search.random_search import GridSearch, RandomSearch
from burnish.search.space import Grid, Points, Space, Union
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
    "Grid",
    "GridSearch",
    "Points",
    "RandomSearch",
    "Report",
    "Score",
    "Space",
    "Tally",
    "Trial",
    "Union",
    "Walker",
    "best_distinct",
    "contextual_share",
    "select",
    "unseen",
]
