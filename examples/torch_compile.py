"""Burnish as a backend of torch.compile: changed weights, operators left to torch.

`python examples/torch_compile.py`
"""

import sys
import warnings

try:
    import torch
except ModuleNotFoundError:
    print('this example needs torch: pip install "burnish[torch]"')
    sys.exit(0)

import burnish.torch


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 128), torch.nn.Linear(128, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.special.bessel_j0(torch.tanh(self.first(x)))  # which Burnish has no translation of
        return self.second(y).softmax(-1)


def main() -> None:
    burnish.torch.register()  # not needed where Burnish is installed
    warnings.filterwarnings("ignore", "burnish")  # of the Bessel function: the report tells it, too
    network = Network().eval()
    fast = torch.compile(network, backend="burnish")
    with torch.inference_mode():
        x = torch.randn(4, 64)
        torch.testing.assert_close(fast(x), network(x))
        network.load_state_dict(Network().state_dict())  # other weights are seen at the next call
        torch.testing.assert_close(fast(x), network(x))
    print(burnish.torch.report())


if __name__ == "__main__":
    main()
