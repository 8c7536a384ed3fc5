"""TreeGRU over loop nests (AutoTVM §3.1 and §4) as functions of torch tensors; parameters are a dict of tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from burnish.base.optional import require
from burnish.tune.models.base import Floats

ENCODINGS = ("identifier", "context")


def initial_parameters(
    encoding: str, features: int, levels: int, hidden: int, slots: int, random: np.random.Generator
) -> dict[str, Floats]:
    """Parameters before training: uniform within ±1 / √(inputs), as is usual; biases zero.

    features: of a level. levels: the most of a nest, for which "identifier" has embeddings. slots: m of §4.
    """

    def uniform(*shape: int, inputs: int) -> Floats:
        return random.uniform(-1, 1, shape).astype(np.float32) / np.float32(np.sqrt(inputs))

    summary = hidden if encoding == "identifier" else slots * hidden
    parameters = {
        "embed.weight": uniform(hidden, features, inputs=features),
        "embed.bias": np.zeros(hidden, np.float32),
        "gru.input_weight": uniform(3 * hidden, hidden, inputs=hidden),
        "gru.hidden_weight": uniform(3 * hidden, hidden, inputs=hidden),
        "gru.input_bias": np.zeros(3 * hidden, np.float32),
        "gru.hidden_bias": np.zeros(3 * hidden, np.float32),
        "output.weight": uniform(1, summary, inputs=summary),
        "output.bias": np.zeros(1, np.float32),
    }
    if encoding == "identifier":
        parameters["identifier"] = uniform(levels, hidden, inputs=hidden)
    else:
        parameters["slots"] = uniform(slots, hidden, inputs=hidden)
    return parameters


def scores_of(parameters: Mapping[str, Any], levels: Any, mask: Any) -> Any:
    """Scores of a batch of loop nests, (n,): levels (n, levels, d), mask (n, levels), as torch tensors.

    A nest is a chain of the loop AST, so its TreeGRU is a GRU that goes from the innermost loop to the outermost: the
    state of a loop is made of its own embedding and of its child's state. With embeddings for identifiers (Fig. 3c)
    the state of the root is the summary. Else (Fig. 3d) each loop's state h is scattered into m slots, out_i =
    softmax(Wᵀh)_i h, which are summed over the loops: no part of it belongs to a loop variable or a number of loops.
    """
    torch = require("torch", extra="torch")
    functional = torch.nn.functional
    deepest = levels.shape[1] - int(mask.any(dim=0).flip(0).to(torch.int8).argmax())
    levels, mask = levels[:, :deepest], mask[:, :deepest]  # further in, no nest of the batch has a loop
    embedded = functional.linear(levels, parameters["embed.weight"], parameters["embed.bias"])
    if "identifier" in parameters:
        embedded = embedded + parameters["identifier"][: levels.shape[1]]
    embedded = torch.relu(embedded)
    state = embedded.new_zeros(len(levels), embedded.shape[2])
    states = []
    for level in reversed(range(levels.shape[1])):
        below = torch.gru_cell(
            embedded[:, level], state, parameters["gru.input_weight"], parameters["gru.hidden_weight"],
            parameters["gru.input_bias"], parameters["gru.hidden_bias"],
        )  # fmt: skip
        state = torch.where(mask[:, level, None], below, state)
        states.append(state)
    summary = state
    if "slots" in parameters:
        each = torch.stack(states[::-1], dim=1)
        share = torch.softmax(functional.linear(each, parameters["slots"]), dim=2) * mask[:, :, None]
        summary = torch.einsum("nls,nlh->nsh", share, each).flatten(1)
    return functional.linear(summary, parameters["output.weight"], parameters["output.bias"])[:, 0]


def rank_loss(scores: Any, throughput: Any, group: Any) -> Any:
    """Eq. 5.2 of thesis-chen: the mean of log(1 + e^-(f(i) - f(j))) over pairs of one group of which i is faster."""
    torch = require("torch", extra="torch")
    better = (throughput[:, None] > throughput[None, :]) & (group[:, None] == group[None, :])
    loss = torch.nn.functional.softplus(scores[None, :] - scores[:, None])
    return (loss * better).sum() / better.sum().clamp(min=1)


def regression_loss(scores: Any, throughput: Any, group: Any) -> Any:
    """The mean of squared errors; groups do not matter."""
    return ((scores - throughput) ** 2).mean()
