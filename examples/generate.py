"""Generate text with a language model of the Llama form: prompt, key/value cache that grows, greedy or sampled tokens.

`python examples/generate.py [--tokens N] [--sample] [--weights bfloat16] [--layers N] [--width N] [--json]`

Weights are random: what counts is that the tokens are those that torch gives, and how many a second.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable

import numpy as np

try:
    import torch
    from torch import Tensor, nn
except ModuleNotFoundError:
    print('this example needs torch: pip install "burnish[torch]"')
    sys.exit(0)

import burnish as bn

VOCABULARY, HEAD, LONGEST = 32000, 64, 1024


class Norm(nn.Module):
    """Normalization by the root mean square (Zhang, Sennrich 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gain


class Layer(nn.Module):
    """Attention with shared keys, and a gated network, each behind a normalization by the root mean square."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared = heads, shared
        self.query = nn.Linear(width, heads * HEAD, bias=False)
        self.key, self.value = (nn.Linear(width, shared * HEAD, bias=False) for _ in range(2))
        self.output = nn.Linear(heads * HEAD, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 8 * width // 3, bias=False) for _ in range(2))
        self.down = nn.Linear(8 * width // 3, width, bias=False)
        self.norm1, self.norm2 = Norm(width), Norm(width)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        """x [1, 1, width], the rotation by position, the cache [1, shared, past, HEAD]; the next x and cache."""
        y = self.norm1(x)
        query, key, value = (f(y).view(1, -1, HEAD).transpose(0, 1)[None] for f in (self.query, self.key, self.value))
        query, key = (t * turn[0] + torch.cat((-t[..., HEAD // 2 :], t[..., : HEAD // 2]), -1) * turn[1]
                      for t in (query, key))  # fmt: skip
        keys, values = torch.cat((keys, key), 2), torch.cat((values, value), 2)
        query = query.reshape(1, self.shared, self.heads // self.shared, HEAD)
        scores = torch.softmax(query @ keys.transpose(2, 3) / math.sqrt(HEAD), -1)
        x = x + self.output((scores @ values).reshape(1, 1, -1))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), keys, values


class Decoder(nn.Module):
    """One token and the cache of all layers to the logits of the next token and the longer cache."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width, width // HEAD, max(1, width // HEAD // 3)) for _ in range(layers))
        self.norm, self.head = Norm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(0, HEAD, 2) / HEAD))

    def forward(self, token: Tensor, position: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """The cache is [2 * layers, shared, past, HEAD]."""
        angles = (position[:, None].float() * self.frequencies).repeat(1, 2)
        x, turn, longer = self.embedding(token), (angles.cos(), angles.sin()), []
        for number, layer in enumerate(self.layers):
            x, keys, values = layer(x, turn, cache[2 * number][None], cache[2 * number + 1][None])
            longer += [keys, values]
        return self.head(self.norm(x))[0, 0], torch.cat(longer)


def generate(
    step: Callable[..., tuple[Tensor, Tensor]], cache: Tensor, prompt: list[int], tokens: int, sample: bool
) -> tuple[list[int], float]:
    """Tokens after the prompt, as many as asked for, the likeliest or drawn ones, and the seconds that each took."""
    random, found, logits = np.random.default_rng(0), [], None
    for position, token in enumerate(prompt):
        logits, cache = step(torch.tensor([[token]]), torch.tensor([position]), cache)
    began = time.perf_counter()
    for position in range(len(prompt), len(prompt) + tokens):
        if sample:
            weights = torch.softmax(logits.double(), 0).numpy()
            found.append(int(random.choice(VOCABULARY, p=weights / weights.sum())))
        else:
            found.append(int(logits.argmax()))
        logits, cache = step(torch.tensor([[found[-1]]]), torch.tensor([position]), cache)
    return found, (time.perf_counter() - began) / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--weights", choices=["bfloat16", "float16"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    network = Decoder(options.width, options.layers).eval()
    empty = torch.zeros(2 * options.layers, network.layers[0].shared, 0, HEAD)
    example = (torch.tensor([[1]]), torch.tensor([3]), empty.new_zeros(*empty.shape[:2], 3, HEAD))
    opened = {"cache": {2: "past"}, "past": (0, LONGEST, 1, LONGEST // 4)}
    module = bn.compile(network, example, dynamic=opened, weights=options.weights)
    prompt = [1, 7, 42]
    with torch.inference_mode():
        steps = {"burnish": module, "torch": network}
        runs = {name: generate(step, empty, prompt, options.tokens, options.sample) for name, step in steps.items()}
    (ours, seconds), (theirs, eager) = runs["burnish"], runs["torch"]
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    result = {"tokens": ours, "same": same, "of": len(ours), "per_second": 1 / seconds, "torch_per_second": 1 / eager}
    if options.json:
        print(json.dumps(result))
        return
    print(f"tokens: {' '.join(map(str, ours))}")
    print(f"{same} of {len(ours)} are torch's; {1 / seconds:.0f} tokens a second, torch {1 / eager:.0f}")


if __name__ == "__main__":
    main()
