"""Trying candidates: built in worker processes, checked against the reference, timed in a process of their own."""

from burnish.boards.leasing import Devices
from burnish.tune.evaluate.building import Build, KernelTrial
from burnish.tune.evaluate.evaluator import Evaluator
from burnish.tune.evaluate.measurement import OUTCOMES, Measurement
from burnish.tune.evaluate.paired import PairedMeasurer
from burnish.tune.evaluate.stopping import Adaptive, Fixed, Rule

__all__ = [
    "OUTCOMES",
    "Adaptive",
    "Build",
    "Devices",
    "Evaluator",
    "Fixed",
    "KernelTrial",
    "Measurement",
    "PairedMeasurer",
    "Rule",
]
