"""Two memories: which tensors stay in a small fast memory, and which move to a large slow one and back, as a plan."""

from burnish.memory.swap.fixed import fixed
from burnish.memory.swap.plan import Action, SwapPlan, live_bytes, replay
from burnish.memory.swap.planners import PLANNERS
from burnish.memory.swap.policies import least_recently_used, streaming
from burnish.memory.swap.problem import SwapProblem, live_tensors, swap_problem, valid_states
from burnish.memory.swap.store import SwapFile, execute

__all__ = [
    "PLANNERS", "Action", "SwapFile", "SwapPlan", "SwapProblem", "execute", "fixed",
    "least_recently_used", "live_bytes", "live_tensors", "replay", "streaming", "swap_problem",
    "valid_states",
]  # fmt: skip
