"""Trains a small network imperatively: a declared loss, gradients by one program, updates by arrays; docs/arrays.md."""

import numpy as np

import burnish as bn

nd, sym = bn.nd, bn.sym


def spirals(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points [count, 2] on three arms, and which arm each is on."""
    arm = rng.integers(0, 3, count)
    radius = rng.random(count)
    angle = 4 * radius + arm * 2 * np.pi / 3 + 0.15 * rng.standard_normal(count)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype("float32"), arm


def main() -> None:
    rng = np.random.default_rng(0)
    x = sym.variable("x")
    hidden = sym.tanh(sym.fully_connected(x, 64, "first"))
    hidden = sym.tanh(sym.fully_connected(hidden, 64, "second"))
    scores = sym.fully_connected(hidden, 3, "third")
    loss = sym.loss("softmax_cross_entropy", scores)

    def initial(name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros(shape) if name.endswith("bias") else rng.standard_normal(shape) / np.sqrt(shape[0])

    net = sym.bind(loss, {"x": (256, 2), "label": ((256,), "int64")}, initial=initial)
    print("memory:", dict(sym.memory(loss, {"x": (256, 2), "label": ((256,), "int64")})))
    velocity = {name: nd.zeros_like(w) for name, w in net.w.items()}
    for step in range(300):
        points, arms = spirals(256, rng)
        value = net.forward_backward(x=points, label=arms)
        for name, gradient in net.g.items():
            velocity[name] *= 0.9
            velocity[name] += gradient
            net[name] -= 0.1 * velocity[name]
        if step % 100 == 0:
            print(f"step {step}: loss {value.item():.3f}")

    points, arms = spirals(1000, rng)
    check = sym.bind(scores, {"x": (1000, 2)}, net.w)  # the same arrays
    found = nd.argmax(check.forward(x=points), axis=1)
    right = nd.mean((found == nd.array(arms)).astype("float32")).item()
    print(f"loss {value.item():.3f}, {right:.1%} of new points on the right arm")
    assert right > 0.95


if __name__ == "__main__":
    main()
