"""The benchmark networks as plain torch.nn modules with seeded weights, in the sizes of the papers they come from."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.architectures import inception, residual, searched

SEED = 0
BERT_VOCABULARY = 30522
BERT_POSITIONS = 512
LSTM_VOCABULARY = 10_000


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a residual connection (He et al. 2016, figure 2)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 3×224×224 images and 1000 classes (He et al. 2016, table 1)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = 64
    for width, stride in [(64, 1), (128, 2), (256, 2), (512, 2)]:
        layers += [BasicBlock(channels, width, stride), BasicBlock(width, width, 1)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class InvertedResidual(nn.Module):
    """1×1 expansion, 3×3 depthwise, 1×1 projection (Sandler et al. 2018, figure 3)."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        expand = [] if expansion == 1 else convolution(channels_in, hidden, 1, 1, 1)
        self.body = nn.Sequential(
            *expand,
            *convolution(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    """Convolution, batch normalization, ReLU6."""
    return [
        nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU6(),
    ]


def mobilenet_v2() -> nn.Module:
    """MobileNet-v2 of width 1.0 for 3×224×224 images and 1000 classes (Sandler et al. 2018, table 2)."""
    layers = convolution(3, 32, 3, 2, 1)
    channels = 32
    for expansion, width, repeats, stride in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:  # fmt: skip
        for index in range(repeats):
            layers.append(InvertedResidual(channels, width, stride if index == 0 else 1, expansion))
            channels = width
    layers += convolution(channels, 1280, 1, 1, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each added to its input and normalized (Devlin et al. 2019)."""

    def __init__(self, hidden: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden) for _ in range(4))
        self.norm1 = nn.LayerNorm(hidden, eps=1e-12)
        self.up = nn.Linear(hidden, feed_forward)
        self.down = nn.Linear(feed_forward, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=1e-12)

    def split_heads(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        return x.view(batch, sequence, self.heads, hidden // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.split_heads(linear(x)) for linear in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])
        mixed = (torch.softmax(scores, dim=3) @ value).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.output(mixed))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class BertEncoder(nn.Module):
    """BERT-base: token ids (batch, sequence) to hidden states (batch, sequence, 768); no mask, no pooler."""

    def __init__(self, hidden: int = 768, layers: int = 12, heads: int = 12, feed_forward: int = 3072) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BERT_VOCABULARY, hidden)
        self.positions = nn.Embedding(BERT_POSITIONS, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.layers = nn.Sequential(*(EncoderLayer(hidden, heads, feed_forward) for _ in range(layers)))

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.layers(self.norm(self.tokens(ids) + self.positions(positions)))


class LstmLanguageModel(nn.Module):
    """The medium model of Zaremba et al. 2014: token ids (steps, batch) to logits (steps, batch, vocabulary)."""

    def __init__(self, hidden: int = 650, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LSTM_VOCABULARY, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers)
        self.decoder = nn.Linear(hidden, LSTM_VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(ids))
        return self.decoder(states)


def dqn() -> nn.Module:
    """The network of Mnih et al. 2015 (Nature): four 84×84 frames to the values of 18 actions."""
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
        nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18),
    )  # fmt: skip


def dcgan() -> nn.Module:
    """The generator of Radford et al. 2016: latent 100×1×1 to an image 3×64×64."""
    layers: list[nn.Module] = []
    channels, stride, padding = 100, 1, 0
    for width in (512, 256, 128, 64):
        layers += [
            nn.ConvTranspose2d(channels, width, 4, stride, padding, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels, stride, padding = width, 2, 1
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


FACTORIES: dict[str, Callable[[], nn.Module]] = {
    "resnet18": resnet18,
    "mobilenet_v2": mobilenet_v2,
    "bert_base": BertEncoder,
    "lstm_lm": LstmLanguageModel,
    "dqn": dqn,
    "dcgan": dcgan,
    "resnet50": residual.resnet50,
    "inception_v3": inception.inception_v3,
    "nasrnn": searched.NasRnn,
    "nasnet_a": searched.NasNetA,
    "resnext50": residual.resnext50,
    "squeezenet": inception.squeezenet,
    "repvgg_a0": residual.repvgg_a0,
}


def build(name: str, example: Tensor) -> nn.Module:
    """The network in evaluation mode, with seeded weights that keep its activations near unit scale.

    `example` is one input; batch normalization gets the statistics of eight inputs like it.
    """
    torch.manual_seed(SEED)
    network = FACTORIES[name]()
    for module in network.modules():
        initialize(module)
    if any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        with torch.no_grad():
            network.train()(torch.randn(8, *example.shape[1:]))
    return network.eval()


def initialize(module: nn.Module) -> None:
    """Draws the weights of one layer. Every parameter differs from its neutral value, so that none can be ignored."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
        # An output value of a transposed convolution sums over (kernel / stride)² taps of every input channel.
        taps = math.prod(module.kernel_size)
        if isinstance(module, nn.ConvTranspose2d):
            fan_in = module.in_channels * taps / math.prod(module.stride)
        else:
            fan_in = module.in_channels // module.groups * taps
        nn.init.normal_(module.weight, std=math.sqrt(2 / fan_in))
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=math.sqrt(1 / module.in_features))
    elif isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
        nn.init.uniform_(module.weight, 0.5, 1.5)
        nn.init.normal_(module.bias, std=0.2)
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the statistics are those of the one training batch
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight)
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor) and not isinstance(module, nn.BatchNorm2d | nn.LayerNorm):
        nn.init.normal_(bias, std=0.1)
