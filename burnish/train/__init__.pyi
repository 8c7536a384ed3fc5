"""Public names, of which each is loaded on first use (``burnish/base/lazy.py``)."""

from burnish.train.losses import Absolute as Absolute
from burnish.train.losses import BinaryLogistic as BinaryLogistic
from burnish.train.losses import CrossEntropy as CrossEntropy
from burnish.train.losses import FirstOutput as FirstOutput
from burnish.train.losses import Huber as Huber
from burnish.train.losses import Loss as Loss
from burnish.train.losses import Squared as Squared
from burnish.train.losses import Sum as Sum
from burnish.train.optimizers import SGD as SGD
from burnish.train.optimizers import Adam as Adam
from burnish.train.optimizers import AdamW as AdamW
from burnish.train.optimizers import Optimizer as Optimizer
from burnish.train.precision import MixedPrecision as MixedPrecision
from burnish.train.schedules import CosineDecay as CosineDecay
from burnish.train.schedules import LinearDecay as LinearDecay
from burnish.train.schedules import RateSchedule as RateSchedule
from burnish.train.schedules import StepDecay as StepDecay
from burnish.train.schedules import WarmUp as WarmUp
from burnish.train.step import Train as Train
