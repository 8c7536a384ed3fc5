"""Public names, of which each is loaded on first use (``burnish/base/lazy.py``)."""

from burnish import boost as boost
from burnish import errors as errors
from burnish import gnn as gnn
from burnish import serve as serve
from burnish import torch as torch
from burnish import train as train
from burnish.array import nd as nd
from burnish.array import sym as sym
from burnish.clib.export import export_c as export_c
from burnish.driver.api import compile as compile
from burnish.driver.loading import load as load
from burnish.driver.paged import compile_paged as compile_paged
from burnish.fitting.fit import fit as fit
from burnish.fitting.planned import plan as plan
from burnish.graph.gradient import gradients as gradients
from burnish.graph.graph import Graph as Graph
from burnish.machines.target import Target as Target
from burnish.parallel.programs.parallel_plan import Plan as Plan
from burnish.parallel.simulate.search import PlanObjective as PlanObjective
from burnish.quantization.quantize import quantize as quantize
from burnish.rewrite.search.objective import RewriteObjective as RewriteObjective
from burnish.runtime.callable import CompiledModel as CompiledModel
from burnish.runtime.module import Module as Module
from burnish.train.losses import CrossEntropy as CrossEntropy
from burnish.train.losses import Huber as Huber
from burnish.train.losses import Squared as Squared
from burnish.train.optimizers import SGD as SGD
from burnish.train.optimizers import Adam as Adam
from burnish.train.optimizers import AdamW as AdamW
from burnish.train.precision import MixedPrecision as MixedPrecision
from burnish.train.schedules import CosineDecay as CosineDecay
from burnish.train.schedules import LinearDecay as LinearDecay
from burnish.train.schedules import StepDecay as StepDecay
from burnish.train.schedules import WarmUp as WarmUp
from burnish.train.step import Train as Train
from burnish.tune.session import Tune as Tune

__version__: str
