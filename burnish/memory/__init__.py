"""Static memory planning: when each buffer lives, and where in one arena it lies; ``swap``: what moves between two."""

from burnish.memory.lifetimes import Interval, LifetimeStep, lifetimes
from burnish.memory.pieces import Place
from burnish.memory.share import ArenaPlan, plan

__all__ = ["ArenaPlan", "Interval", "LifetimeStep", "Place", "lifetimes", "plan"]
