"""Compile a network of PyTorch for every batch size, call it with tensors, save it.

`python examples/torch_module.py`
"""

import sys
import tempfile
from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    print('this example needs torch: pip install "burnish[torch]"')
    sys.exit(0)

import burnish as bn


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
        )
        self.head = torch.nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.features(image).mean((2, 3))
        return {"features": features, "logits": self.head(features)}


def main() -> None:
    network = Classifier().eval()
    module = bn.compile(network, torch.randn(1, 3, 32, 32), dynamic={"batch": (1, 64)})
    print(module)
    for batch in (1, 5, 64):
        image = torch.randn(batch, 3, 32, 32)
        found, expected = module(image), network(image)  # tensors in, tensors out, in the network's own structure
        torch.testing.assert_close(found["logits"], expected["logits"], rtol=1e-4, atol=1e-4)
        print(f"batch {batch}: {list(found['logits'].shape)}, as eager computes it")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "classifier.bn"
        module.save(path)
        features, logits = bn.load(path)(image.numpy())  # needs no torch: arrays in, arrays out, in order
        print(f"the saved model: {features.shape} and {logits.shape}")


if __name__ == "__main__":
    main()
