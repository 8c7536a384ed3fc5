"""Public names, of which each is loaded on first use (``burnish/base/lazy.py``)."""

from burnish.boost.booster import Callback as Callback
from burnish.boost.booster import RoundProgress as RoundProgress
from burnish.boost.booster import train as train
from burnish.boost.checkpoint import keep_on_interrupt as keep_on_interrupt
from burnish.boost.checkpoint import print_scores as print_scores
from burnish.boost.checkpoint import save_every as save_every
from burnish.boost.cross_validation import cv as cv
from burnish.boost.data import Dataset as Dataset
from burnish.boost.data import Sparse as Sparse
from burnish.boost.distributed import train_distributed as train_distributed
from burnish.boost.external import train_external as train_external
from burnish.boost.external_workers import train_external_distributed as train_external_distributed
from burnish.boost.formats.shap_format import explainer_trees as explainer_trees
from burnish.boost.model import Model as Model
from burnish.boost.params import Params as Params
from burnish.boost.prediction import predict as predict
from burnish.boost.sklearn import GBTClassifier as GBTClassifier
from burnish.boost.sklearn import GBTRanker as GBTRanker
from burnish.boost.sklearn import GBTRegressor as GBTRegressor
from burnish.boost.tree import Tree as Tree
