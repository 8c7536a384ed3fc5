"""The networks of the papers' searches as graphs without values: every weight is a view of one zero.

Sources: SqueezeNet 1.1 (Iandola et al. 2016), Inception-v3 (Szegedy et al. 2015), BERT-base (Devlin et al. 2018),
NasRNN and NasNet-A (Zoph and Le 2016, Zoph et al. 2017) as the published code of TASO has them. Batch normalization is
folded into weights; biases are left out, as in TASO.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from burnish.graph.graph import Attribute, Graph, GraphBuilder


class Network(GraphBuilder):
    """A builder with the layers that these networks are made of."""

    def weight(self, *shape: int) -> str:
        """A weight of zeros that takes no memory."""
        return self.constant(np.broadcast_to(np.float32(0), shape))

    def conv(
        self, x: str, outputs: int, kernel: tuple[int, int], stride: int = 1, same: bool = True, groups: int = 1
    ) -> str:
        """A convolution, padded to keep the size or not at all."""
        weight = self.weight(outputs, self.types[x].shape[1] // groups, *kernel)
        pads = (kernel[0] // 2, kernel[1] // 2) * 2 if same else (0, 0, 0, 0)
        return self.add("conv2d", x, weight, strides=(stride, stride), pads=pads, groups=groups)

    def unit(self, x: str, outputs: int, kernel: tuple[int, int], stride: int = 1, same: bool = True) -> str:
        """A convolution and ReLU."""
        return self.add("relu", self.conv(x, outputs, kernel, stride, same))

    def pool(self, x: str, op: str, stride: int, same: bool) -> str:
        """3×3 pooling."""
        window: dict[str, Attribute] = {"kernel": (3, 3), "strides": (stride, stride), "pads": (int(same),) * 4}
        if op == "avg_pool2d":
            window["count_include_pad"] = True
        return self.add(op, x, name=None, node="", **window)

    def join(self, *xs: str) -> str:
        """Channels one after the other."""
        return self.add("concat", *xs, axis=1)


def squeezenet() -> Graph:
    """SqueezeNet 1.1 at 224×224."""
    b = Network()

    def fire(x: str, squeeze: int, expand: int) -> str:
        x = b.unit(x, squeeze, (1, 1))
        return b.join(b.unit(x, expand, (1, 1)), b.unit(x, expand, (3, 3)))

    x = b.unit(b.input("image", (1, 3, 224, 224)), 64, (3, 3), 2, same=False)
    for widths in (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256))):
        x = b.pool(x, "max_pool2d", 2, same=False)
        for squeeze, expand in widths:
            x = fire(x, squeeze, expand)
    x = b.unit(x, 1000, (1, 1))
    return b.build(b.add("reduce_mean", x, axes=(2, 3), keepdims=False))


def inception_v3() -> Graph:
    """Inception-v3 at 299×299, without its auxiliary classifier."""
    b = Network()

    def chain(x: str, *layers: tuple[int, tuple[int, int]]) -> str:
        for outputs, kernel in layers:
            x = b.unit(x, outputs, kernel)
        return x

    def block_a(x: str, pooled: int) -> str:
        branches = [chain(x, (64, (1, 1))), chain(x, (48, (1, 1)), (64, (5, 5)))]
        branches.append(chain(x, (64, (1, 1)), (96, (3, 3)), (96, (3, 3))))
        return b.join(*branches, chain(b.pool(x, "avg_pool2d", 1, same=True), (pooled, (1, 1))))

    def block_b(x: str) -> str:
        double = b.unit(chain(x, (64, (1, 1)), (96, (3, 3))), 96, (3, 3), 2, same=False)
        return b.join(b.unit(x, 384, (3, 3), 2, same=False), double, b.pool(x, "max_pool2d", 2, same=False))

    def block_c(x: str, c: int) -> str:
        branches = [chain(x, (192, (1, 1))), chain(x, (c, (1, 1)), (c, (1, 7)), (192, (7, 1)))]
        branches.append(chain(x, (c, (1, 1)), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))))
        return b.join(*branches, chain(b.pool(x, "avg_pool2d", 1, same=True), (192, (1, 1))))

    def block_d(x: str) -> str:
        single = b.unit(chain(x, (192, (1, 1))), 320, (3, 3), 2, same=False)
        double = b.unit(chain(x, (192, (1, 1)), (192, (1, 7)), (192, (7, 1))), 192, (3, 3), 2, same=False)
        return b.join(single, double, b.pool(x, "max_pool2d", 2, same=False))

    def block_e(x: str) -> str:
        middle, tower = chain(x, (384, (1, 1))), chain(x, (448, (1, 1)), (384, (3, 3)))
        pairs = [b.join(chain(y, (384, (1, 3))), chain(y, (384, (3, 1)))) for y in (middle, tower)]
        pooled = chain(b.pool(x, "avg_pool2d", 1, same=True), (192, (1, 1)))
        return b.join(chain(x, (320, (1, 1))), *pairs, pooled)

    x = b.unit(b.input("image", (1, 3, 299, 299)), 32, (3, 3), 2, same=False)
    x = b.unit(b.unit(x, 32, (3, 3), same=False), 64, (3, 3))
    x = b.unit(b.pool(x, "max_pool2d", 2, same=False), 80, (1, 1))
    x = b.pool(b.unit(x, 192, (3, 3), same=False), "max_pool2d", 2, same=False)
    for pooled in (32, 64, 64):
        x = block_a(x, pooled)
    x = block_b(x)
    for c in (128, 160, 160, 192):
        x = block_c(x, c)
    x = block_e(block_e(block_d(x)))
    x = b.add("reduce_mean", x, axes=(2, 3), keepdims=False)
    return b.build(b.add("matmul", x, b.weight(2048, 1000)))


def residual(width: int = 64, groups: int = 1) -> Graph:
    """ResNet-50 at 224×224 (He et al. 2015), or ResNeXt-50 of 32 groups and twice the width (Xie et al. 2016)."""
    b = Network()
    x = b.pool(b.unit(b.input("image", (1, 3, 224, 224)), 64, (7, 7), 2), "max_pool2d", 2, same=True)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outputs = width << stage, 256 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = b.unit(x, inner, (1, 1))
            y = b.add("relu", b.conv(y, inner, (3, 3), stride, groups=groups))
            y = b.conv(y, outputs, (1, 1))
            x = b.add("relu", b.add("add", y, x if block else b.conv(x, outputs, (1, 1), stride)))
    return b.build(b.add("matmul", b.add("reduce_mean", x, axes=(2, 3), keepdims=False), b.weight(2048, 1000)))


def bert(layers: int = 12, length: int = 128, width: int = 768, heads: int = 12) -> Graph:
    """The encoder of BERT-base: attention and a feed-forward network a layer."""
    b = Network()
    x = b.input("tokens", (1, length, width))

    def norm(x: str) -> str:
        return b.add("layer_norm", x, b.weight(width), b.weight(width))

    def split(x: str, *perm: int) -> str:
        return b.add("transpose", b.add("reshape", x, shape=(1, length, heads, width // heads)), perm=perm)

    for _ in range(layers):
        q, k, v = (b.add("matmul", x, b.weight(width, width)) for _ in range(3))
        scores = b.add("matmul", split(q, 0, 2, 1, 3), split(k, 0, 2, 3, 1))
        scores = b.add("softmax", b.add("mul", scores, b.constant(0.125)), axis=-1)
        context = b.add("transpose", b.add("matmul", scores, split(v, 0, 2, 1, 3)), perm=(0, 2, 1, 3))
        context = b.add("reshape", context, shape=(1, length, width))
        x = norm(b.add("add", x, b.add("matmul", context, b.weight(width, width))))
        inner = b.add("gelu", b.add("matmul", x, b.weight(width, 4 * width)))
        x = norm(b.add("add", x, b.add("matmul", inner, b.weight(4 * width, width))))
    return b.build(x)


def nasrnn(steps: int = 5, width: int = 512) -> Graph:
    """The recurrent cell found by Zoph and Le, unrolled; every step has weights of its own."""
    b = Network()
    state = b.input("state", (1, width))

    def pair(op: str, f: str, x: str, g: str, y: str) -> str:
        return b.add(op, b.add(f, x), b.add(g, y))

    for step in range(steps):
        x = b.input(f"x{step}", (1, width))
        t = [
            b.add("add", b.add("matmul", x, b.weight(width, width)), b.add("matmul", state, b.weight(width, width)))
            for _ in range(8)
        ]
        m0 = pair("add", "relu", t[0], "sigmoid", t[3])
        m1 = pair("add", "sigmoid", t[1], "tanh", t[2])
        m2 = pair("mul", "sigmoid", t[4], "tanh", t[5])
        m3 = pair("mul", "sigmoid", t[6], "relu", t[7])
        m4 = pair("add", "sigmoid", m1, "tanh", m2)
        m5 = pair("mul", "tanh", m0, "tanh", m3)
        state = b.add("tanh", pair("mul", "tanh", m4, "tanh", m5))
    return b.build(state)


def nasnet(cells: int = 3, width: int = 128, size: int = 28) -> Graph:
    """Normal cells of NasNet-A: separable convolutions, average pooling and sums."""
    b = Network()

    def separable(x: str, kernel: int) -> str:
        for _ in range(2):
            x = b.conv(b.add("relu", x), width, (kernel, kernel), groups=width)
            x = b.conv(x, width, (1, 1))
        return x

    def cell(before: str, x: str) -> str:
        h, p = (b.conv(b.add("relu", y), width, (1, 1)) for y in (x, before))
        sums = [
            b.add("add", separable(h, 3), h),
            b.add("add", separable(p, 3), separable(h, 5)),
            b.add("add", b.pool(h, "avg_pool2d", 1, same=True), p),
            b.add("add", b.pool(p, "avg_pool2d", 1, same=True), b.pool(p, "avg_pool2d", 1, same=True)),
            b.add("add", separable(p, 5), separable(p, 3)),
        ]
        return b.join(p, *sums)

    before = x = b.input("image", (1, width, size, size))
    for _ in range(cells):
        before, x = x, cell(before, x)
    return b.build(x)


NETWORKS: dict[str, Callable[[], Graph]] = {
    "ResNet-50": residual, "ResNeXt-50": lambda: residual(128, 32),
    "SqueezeNet": squeezenet, "Inception-v3": inception_v3, "BERT": bert, "NasRNN": nasrnn, "NasNet-A": nasnet,
}  # fmt: skip
