"""Static memory planning: when each buffer lives, and where in one arena it lies; ``swap``: what moves between two."""

from burnish.memory.lifetimes import Interval, Step, lifetimes
from burnish.memory.pieces import Place
from burnish.memory.share import Plan, plan

__all__ = ["Interval", "Place", "Plan", "Step", "lifetimes", "plan"]
