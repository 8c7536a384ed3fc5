"""Evidence: each experiment of the papers, what stands here for it, and whether the papers' claim held.

`python -m benchmarks list` prints it, `python -m benchmarks index` writes it to `benchmarks/results/INDEX.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
STATUSES = {
    "reproduced": "the same quantities on the paper's workloads or a stated scale-down, and its claim held",
    "differs": "the same, and its claim does not hold here; how and why is said",
    "in part": "some of its quantities, workloads or contenders are missing; which is said",
    "elsewhere": "needs a machine that is not at hand; what is simulated meanwhile is said",
    "not yet": "nothing stands for it",
}
PAPERS = {
    "tvm": "TVM (Chen's thesis, chapter 4)",
    "autotvm": "AutoTVM (Chen's thesis, chapter 5; NeurIPS 2018)",
    "adatune": "AdaTune (NeurIPS 2020)",
    "taso": "TASO (Jia's thesis, chapter 2)",
    "xgboost": "XGBoost (Chen's thesis, chapter 2)",
    "mxnet": "MXNet's memory planner (Chen's thesis, chapter 3)",
    "flexflow": "FlexFlow (Jia's thesis, chapter 3)",
    "roc": "ROC (Jia's thesis, chapter 4)",
}


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper: ``figure`` and ``what`` it shows, its ``status`` of ``STATUSES``, what was ``found``,
    the ``program`` that measures it ("" for none), and stored ``results``, files of this folder.
    """

    paper: str
    figure: str
    what: str
    status: str
    found: str
    program: str = ""
    results: tuple[str, ...] = ()


def _of(paper: str, *rows: tuple[str, str, str, str, str, str]) -> Iterator[Experiment]:
    for figure, what, status, found, program, results in rows:
        yield Experiment(paper, figure, what, status, found, program, tuple(results.split()))


EXPERIMENTS: Sequence[Experiment] = (
    *_of(
        "tvm",
        ("Table 4.2", "layers C1–C12, D1–D9", "reproduced",
         "the workloads of all rows below", "kernels",
         "kernels-xeon-amx-2cores.json kernels-epyc-avx512-2cores.json kernels-cascadelake-2cores.json"),
        ("Fig 4.4", "fused beside unfused operators, 1.2–2×", "differs",
         "one thread of a CPU, in turns: conv+bn+relu 1.34 (2.4 MB less to memory), depthwise 3.55 (1.2 MB), RNN and "
         "LSTM cells 1.00 (their kernels alone 1.06 and 1.05): what fusing saves there is 2 and 8 kB, which never "
         "leave the first cache, and no launches; a cell's time is its products'", "fusion",
         "fusion-epyc-avx512-2cores.json"),
        ("Fig 4.7", "cooperative fetching on a GPU", "in part",
         "16 times fewer loads, counted; no time with and without", "gpu_counts", "gpu-products-h200.json"),
        ("Fig 4.10", "latency hiding on an accelerator", "reproduced",
         "peak use 82 to 96 %, all cycles 69 to 88 % (paper 70 to 88), every layer faster; in the "
         "simulator", "vdla", "vdla.json"),
        ("Fig 4.12", "networks on a server GPU, 1.6–3.8×", "in part",
         "H100: ResNet-18 2.77, MobileNet-v2 2.45, DQN 2.25, DCGAN 1.62 of strict float32, LSTM 0.85; with "
         "TF32 ResNet-18 0.64", "gpu", "gpu-h100.json gpu-h200.json"),
        ("Fig 4.13", "single operators on a server GPU", "in part",
         "C1–C12 2.47 (batch 64: 1.48); D1–D9 on CPUs only, no row of Winograd's own", "gpu", "gpu-h100.json"),
        ("Fig 4.14", "networks on an ARM Cortex-A53", "elsewhere",
         "an ARM board; instructions are counted in an emulator", "emulated", ""),
        ("Fig 4.15", "single operators on an ARM Cortex-A53", "elsewhere",
         "an ARM board; instructions are counted in an emulator", "emulated", ""),
        ("Fig 4.16", "ultra-low precision on ARM", "in part",
         "C2–C12, 2-bit by 1-bit, exact; over float32 in geometric mean 3.6 unipolar, 3.5 bipolar in instructions of "
         "an emulated Cortex-A53; on an EPYC 5.2 and 5.0 on one thread, 4.9 on two (4.4 to 5.0 in three runs, others "
         "on its cores), 2.2 over int8; C2 and C6, where float32 is Winograd's, gain least; no ARM board, no Caffe2",
         "low_bits", "low-bits-epyc-avx512-2cores.json low-bits-cortex-a53-emulated.json"),
        ("Fig 4.17", "networks on a Mali GPU", "elsewhere",
         "a Mali GPU, and a back end for OpenCL, which is not here", "", ""),
        ("Fig 4.19", "ResNet-18 with an accelerator, 40×", "reproduced",
         "in the simulator, against a modelled Cortex-A9: 56× in the offloaded convolutions if that reaches 60 % of "
         "its peak, 34× at all of it, 11.9× in the whole network, since the first layer stays on the CPU, as in the "
         "paper", "vdla",
         "vdla.json"),
    ),
    *_of(
        "autotvm",
        ("Fig 5.4", "cost models beside GA and random", "reproduced",
         "replayed on measured tables of C1 to C12 (tables of C1, C4, C5, C10, C11, C12 from a machine whose cores "
         "others used as well) and a batched product, 64 trials of 192 to 648 candidates, 7 seeds, TreeGRU 3 with 40 "
         "steps a fit, by ranking: in the median trees end at 1.00 to 1.005 of the best on all, TreeGRU at 1.00 to "
         "1.006 on all layers, random at 1.00 to 1.39, GA at 1.00 to 1.41: both are ahead of random and GA, or equal, "
         "but for TreeGRU on C2, where all are within 0.6 %; on the product TreeGRU ends at 1.11, as GA. GA x2 1.00 "
         "to 1.01, random x2 to 1.14: a gain of 1.4, not the paper's 2. For random's end trees need up to 3.3 times "
         "fewer trials than it (C3), and more where it is good (C2, C4, C6, C8). "
         "Whole spaces, 4 layers: 1.05 to 1.34 times random's best",
         "replay", "replay-models-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json study-xeon-amx-2cores.json "
         "study-epyc-avx512-2cores.json"),
        ("Fig 5.5", "rank beside regression loss", "reproduced",
         "replayed, 64 trials, trees with 7 seeds, TreeGRU with 3: trials for random's best by ranking and by "
         "regression, C9 27 and 34 (trees), 46 and 48 (TreeGRU, at the end 1.00 and 1.23 of the best), C2 59 and 37 "
         "(trees), 50 and 59 (TreeGRU): ranking is a little better in three of four, as in the paper in most; "
         "intervals overlap",
         "replay", "replay-objective-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json "
         "study-xeon-amx-2cores.json"),
        ("Fig 5.6", "diversity of a batch", "reproduced",
         "replayed, 7 seeds: with λ 0, 0.25, 1 and 4 C9 needs 25, 25, 27 and 33 trials for random's best, C2 33, 48, "
         "59 and 52, and all end within 1.00 of the best in the median, with intervals that overlap: no impact, as "
         "in the paper on most workloads", "replay",
         "replay-diversity-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json study-xeon-amx-2cores.json"),
        ("Fig 5.7", "mean, EI, UCB", "differs",
         "replayed, 7 seeds, ensembles of five: all end at 1.00 of the best, as in the paper, but on C9 EI and UCB "
         "have random's best after 20 trials (95 % intervals 9 to 28 and 9 to 36), the mean after 40 (23 to 48); on "
         "C2 33, 23 and 33: some use with so few trials, where the paper, with more of them, found none", "replay",
         "replay-uncertainty-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json"),
        ("Fig 5.8", "transfer, 2 to 10×", "reproduced",
         "replayed, 9 seeds, from the tables of C1 to C6, relation: for what a search alone has after 64 trials C7 "
         "needs 14 trials instead of 29, C8 31 instead of 51, C9 1 instead of 41: 1.65 to 41 times fewer, none harmed. "
         "On whole spaces, before the share of the prior followed its success: C7 17×, C8 44×, C9 0.85×",
         "replay",
         "replay-transfer-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json transfer-xeon-amx-2cores.json "
         "ablation-xeon-amx-2cores.json"),
        ("Fig 5.9 a, b", "representations within a domain and between convolutions", "reproduced",
         "replayed, 9 seeds: within a domain the configuration is best (C7, C8, C9: 17, 41 and 23 trials for what it "
         "ends with; flattened 33, 53, 36, relation 29, 51, 41); from C1 to C6 C7 gains 1.1, 2.5 and 2.1×, C8 1.0, "
         "1.0 and 1.65×, C9 23, 2.1 and 41×: relation gains on all, as in the paper, the configuration too on C9",
         "replay",
         "replay-transfer-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json transfer-xeon-amx-2cores.json"),
        ("Fig 5.9 c", "convolutions to products", "reproduced",
         "replayed, 9 seeds, from C1 to C6 to a batched product: for what a search alone has after 64 trials relation "
         "needs 35 trials instead of 45 (1.3×), flattened 22 instead of 33 (1.5×), the configuration, whose knobs are "
         "others there, 37 instead of 25 (0.68×; 95 % intervals 14 to 46 and 13 to 38), as the paper says of it. Its "
         "prior is turned down after the first batch in most seeds, and gets half a batch again once it ranks as well "
         "as a model without. On whole spaces, before that, each harmed, 0.54 to 0.73×", "replay",
         "replay-transfer-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json transfer-xeon-amx-2cores.json"),
        ("Fig 5.9 d", "between devices", "reproduced",
         "the models that come with Burnish, trained on records of a Zen 3 (AVX2), of a Xeon with tiles and without, "
         "and of a Zen 4, each before a search on a Zen 4, replayed, 7 seeds: for what a search from nothing has "
         "after 64 trials (needs 41, 53 and 41 on C7, C8, C9) the first needs 32, 26 and 36, the second 27, 30 and "
         "41, that of its own kind 20, 9 and 55; after 32 trials 1.00 to 1.08 of the best instead of 1.17 to 1.23. "
         "The paper: Mali to an A53, one curve", "replay",
         "replay-devices-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json"),
        ("Fig 5.10", "operators beside a library", "reproduced",
         "C1 to C12 on one thread of a CPU in the place of a GPU and an A53, 32 trials from nothing, CPU time in "
         "turns: over the faster of onnxruntime and OpenVINO 1.04 to 3.48, 1.61 in geometric mean (Winograd's where "
         "3x3); over untuned 0.96 of the time; curves over the wall clock are stored: sessions of 6 to 13 s, within "
         "2 % of their end after 2 to 9", "tune_operators",
         "tune-operators-epyc-avx512-2cores.json tune-operators-others-epyc-avx512-2cores.json "
         "tune-layers-cascadelake-2cores.json"),
        ("Fig 11", "networks, tuned, 1.2 to 3.8× a framework", "reproduced",
         "server CPUs in the place of ARM and Mali, at most two minutes a network: ResNet-18, MobileNet-v2, LSTM, "
         "DQN and DCGAN, tuned, over the faster of onnxruntime and OpenVINO: Zen 4 2.08, 1.25, 1.26, 1.19, 1.38, Zen "
         "3 1.82, 1.29, 1.14, 1.22, 1.25 (paper 1.2 to 3.8 over frameworks); most of it is there untuned, tuning "
         "brings up to 1.19; H100: ResNet-18 1.43, MobileNet-v2 1.15 of untuned", "tune",
         "tune-models-xeon-amx-2cores.json tune-models-epyc-avx512-2cores.json tune-models-epyc-"
         "avx2-2cores.json tune-models-cascadelake-2cores.json gpu-tune-h100.json"),
    ),
    *_of(
        "adatune",
        ("Fig 2", "time of a tuning session by part", "reproduced",
         "AutoTVM's sessions of 64 trials replayed on measured tables, 500 runs of a candidate reckoned, one thread: "
         "measuring takes 46 to 92 % of the time, in the middle 83 % (most of it, as in the paper), building 8 to 54 % "
         "(with others on the machine), proposing 3 % and less; five kernels of small spaces", "replay",
         "replay-breakdown-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json"),
        ("Fig 3", "variance of measurements", "reproduced",
         "on a CPU; the GPU beside it is left out. Twelve random candidates each: the mean of 5, 50 and 250 runs "
         "varies by 2.1, 0.4 and 0.1 % (C8; most 11, 3.6 and 1.5), 4.7, 1.3 and 0.4 % (C11; most 24, 9 and 3): less "
         "and less with more runs, and by kernel, as in the paper",
         "adatune", "adatune-variance-epyc-avx512-2cores.json"),
        ("Fig 4", "the share of random candidates, ε", "differs",
         "replayed, 7 seeds, 64 trials: C9 needs 20 and 27 trials for random's best with ε 0.01 and 0.05, 52 and 46 "
         "with 0.2 and 0.5, 43 with the contextual one (large ones slow it down, as in the paper), but ends at 1.08, "
         "1.00, 1.08, 1.08 and 1.00 of the best with 95 % intervals that overlap; C8 ends within 1.01 with all: no "
         "share is shown to be too small or too large", "replay",
         "replay-epsilon-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json"),
        ("Fig 6 a", "optimization time and quality on a CPU, 1.3 to 3.9×", "differs",
         "C8, replayed on a table of 576 measured candidates, 15 seeds, curves with 95 % intervals "
         "(adatune-convolution.svg): AdaTune is as good as AutoTVM's end 1.5 times sooner by the medians, 1.1 (0.55 to "
         "1.98) seed by seed, and ends equal (best 0.86 of its time): building, 0.2 s a candidate, is not saved, and "
         "AutoTVM is within 1.04 of the best after 16 trials. On whole spaces, 8 seeds: as Fig 11", "replay",
         "replay-adatune-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json adatune-xeon-amx-2cores.json "
         "adatune-epyc-avx2-2cores.json"),
        ("Fig 6 b", "the same on a GPU", "elsewhere",
         "a GPU", "", ""),
        ("Fig 6 c", "the same for batched products on a CPU", "differs",
         "8 heads × 128 × 64 × 128, replayed on 648 measured candidates, 15 seeds (adatune-batched.svg): 1.56 times "
         "sooner seed by seed (0.26 to 4.56), 1.09 by the medians (paper 1.3 to 3.9), equal at the end (best 0.82)",
         "replay", "replay-adatune-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json"),
        ("Fig 6 d", "the same for batched products on a GPU", "elsewhere",
         "a GPU", "", ""),
        ("Fig 7", "latency of three tuned networks", "in part",
         "96 trials a network and strategy on a loaded machine, too few to tell: over untuned ResNet-18 0.96 (95 % "
         "0.93 to 1.02) by AutoTVM, 0.97 (0.91 to 1.01) by AdaTune, SqueezeNet 0.97 and 1.01, so that untuned was "
         "kept (paper: up to 0.56, from TVM's defaults); AdaTune's sessions 1.27 and 1.14 times shorter; no VGG-16",
         "adatune_networks",
         "adatune-networks-epyc-avx512-2cores.json"),
        ("Fig 8", "time to optimize ResNet-18 on a GPU", "elsewhere",
         "a GPU", "", ""),
        ("Fig 9", "time of measuring by the adaptive evaluator", "reproduced",
         "69 to 28 % of the session", "adatune", "adatune-xeon-amx-2cores.json"),
        ("Fig 10", "search effectiveness in iterations", "differs",
         "15 seeds: the best after 16 trials over AutoTVM's after 64, C8 1.04 by boosted trees, 1.11 by the forest, "
         "1.17 with contextual annealing, all 1.03 or less after 24; batched products 1.00 by all: never fewer "
         "trials than trees (paper: fewer on one of four, else alike)", "replay",
         "replay-adatune-epyc-avx512-2cores.json tables-epyc-avx512-2cores.json"),
        ("Fig 11", "contributions of the parts", "differs",
         "replayed, 15 seeds, times sooner by the medians: C8 forest 0.85, contextual 1.07, adaptive measuring 1.5, "
         "which with trees alone is 0.65; batched products 1.08, 1.15, 1.09, 1.17. Seed by seed one kernel's ratio "
         "runs from 0.26 to 4.6: the medians of 5 and 8 seeds that differed between machines (EPYC 3.7 and 3.3×, "
         "Xeon 1.25 and 0.84×) are within that scatter", "replay",
         "replay-adatune-epyc-avx512-2cores.json adatune-xeon-amx-2cores.json adatune-epyc-avx2-2cores.json"),
    ),
    *_of(
        "taso",
        ("Table 2.3", "generated and pruned substitutions", "reproduced",
         "136 rules from 237 axioms, proved; stored before the last 5", "rewrite", "rewrite-xeon-amx-2cores.json"),
        ("Fig 2.7", "networks beside other optimizers, 1.3 to 2.8×", "differs",
         "rewritten graphs under onnxruntime and OpenVINO, one thread of a CPU: NasRNN 2.35 and 2.57, RepVGG-A0 1.16 "
         "and 1.14, five others 0.93 to 1.02 (ResNeXt-50 0.95 and 0.99, thesis 2.8: see Fig 2.9), SqueezeNet stays; "
         "costs are of Burnish's kernels, not of theirs", "rewrite",
         "rewrite-figures-epyc-avx512-2cores.json rewrite-xeon-amx-2cores.json rewrite-cascadelake-2cores.json"),
        ("Fig 2.8", "substitutions in NasNet", "reproduced",
         "a cell before and after (rewrite-sequences.svg): average pools that are added up become one depthwise "
         "convolution (2.8 b), sums of separable convolutions one convolution (2.8 c: here of both depthwise ones' "
         "channels), two convolutions of one image one; 43 to 37 operators, 0.90 of the time by a GPU's costs, 0.98 by "
         "a CPU's", "rewrite", "rewrite-sequences-epyc-avx512-2cores.json rewrite-xeon-amx-2cores.json"),
        ("Fig 2.9", "ResNeXt's branches regrouped, 2.8×", "differs",
         "splitting and merging groups are substitutions; of 1 to 8 convolutions and of 2 to 32 groups made one, the "
         "kernel of 32 groups is within 3 % of the fastest in each of the seven layers, and takes 3 to 12 % of its "
         "bottleneck: without it 1.14× at most", "rewrite", "rewrite-figures-epyc-avx512-2cores.json"),
        ("Fig 2.10", "substitutions used by network", "reproduced",
         "a table for three machines: 0 to 5 a network (thesis 4 to 10), different sets for all but the ResNets",
         "rewrite", "rewrite-uses-epyc-avx512-2cores.json"),
        ("Fig 2.11", "substitutions up to size 0 to 4", "differs",
         "timed: NasRNN 1.71 at size 3, 1.74 at 4; BERT, NasNet-A and ResNeXt-50 1.00 to 1.01 at all sizes, where the "
         "costs of this CPU predict 1.00 to 1.01; by a GPU's costs they grow up to size 3 or 4, as in the thesis",
         "rewrite", "rewrite-uses-epyc-avx512-2cores.json"),
        ("Fig 2.12", "graph and layout together on BERT, 1.2×", "differs",
         "rows and columns are part of search states, conversions priced; apart or together 1.00: products by rows are "
         "the fastest or within 2 % of it, since weights are packed at compile time; the thesis' 64 by 1024 by 4096 "
         "is 4 % slower transposed; blocks of images are chosen afterwards, and none of 592 kernels converts any",
         "rewrite", "rewrite-figures-epyc-avx512-2cores.json"),
        ("§2.9.6", "time of verification", "reproduced",
         "seconds", "rewrite", "rewrite-xeon-amx-2cores.json"),
    ),
    *_of(
        "xgboost",
        ("Fig 2.3", "sketch and exact, by ε", "differs",
         "300K × 28 (paper 10M), 50 trees, AUC: exact 0.907, global at ε 0.05 0.901, local at 0.3 0.863, "
         "global at 0.3 0.799: the paper's order, but 3 candidates a node do not reach exact trees on this "
         "data",
         "boost", "boost-convergence-epyc-avx512-2cores.json"),
        ("Fig 2.5", "sparsity-aware beside a basic algorithm, 50×", "reproduced",
         "59×", "boost", "boost-xeon-amx-2cores.json"),
        ("Fig 2.7", "cache-aware prefetching", "reproduced",
         "on data that outgrow the cache, as in the paper", "boost", "boost-xeon-amx-2cores.json"),
        ("Fig 2.9", "block sizes", "reproduced",
         "trees of the product's training from blocks of rows, 200K × 28 and sparse 50K × 4227, in turns: 2^16 rows, "
         "the paper's choice, is the fastest; 2^12 take 2.6 and 1.2 times as long, 2^8 16 and 4 times. There are no "
         "larger ones (rows of a block are 16-bit numbers); by a kernel alone 2^24 took 38 times as long as 2^14",
         "boost", "boost-blocks-epyc-avx512-2cores.json boost-cascadelake-2cores.json"),
        ("Table 2.2", "data sets", "reproduced",
         "synthetic ones of the four columns, densities and tasks, since the real ones are not to be had, and a part "
         "of their rows: Allstate 100K × 4227 (AUC 0.63 after 10 trees), Higgs 500K × 28 (0.81), Yahoo 24K × 700 "
         "(NDCG 0.68), Criteo 300K × 67 (AUC 0.74)", "boost", "boost-summary-epyc-avx512-2cores.json"),
        ("Table 2.3", "Higgs, exact", "reproduced",
         "100K × 28 (paper 1M), CPU s a tree on one thread: ours 0.113, half the columns 0.066, xgboost 0.51 "
         "and 0.27, scikit-learn 2.7 (24×, paper over 10×); AUC 0.845, with half the columns 0.837 (less, as "
         "in the paper), xgboost 0.844, scikit-learn 0.845; no R. Before: 1M rows beside xgboost's",
         "boost", "boost-convergence-epyc-avx512-2cores.json boost-xeon-amx-2cores.json boost-cascadelake-2cores.json"),
        ("Table 2.4, Fig 2.10", "ranking", "reproduced",
         "24K × 700 (paper 473K), exact trees, CPU s a tree: ours 0.38, half the columns 0.20 (and a higher "
         "NDCG@10, 0.780 over 0.761, as in the paper), xgboost 1.23 and 0.62; curves stored. pGBRT's place has "
         "our own approximate trees, which are faster (0.08), not slower",
         "boost", "boost-convergence-epyc-avx512-2cores.json boost-xeon-amx-2cores.json"),
        ("Fig 2.11", "out of core: compression and shards", "reproduced",
         "a disk paced at 30 MB/s, wall clock, a loaded machine: the chosen codec (zstd) 1.6× none (the bytes are "
         "0.64 of it; paper 3×), two folders 2.2× (paper 2), both 3.4×; on a fast disk the chosen codec is none, "
         "where zlib takes 5 times as long",
         "boost", "boost-external-epyc-avx512-2cores.json boost-xeon-amx-2cores.json"),
        ("§2.5", "within a budget of memory", "reproduced",
         "every kind of tree on 300K × 112 of four budgets of 32 MB, AUC equal to that in memory to six digits; "
         "beyond the interpreter hist took 99 MB (in memory 277), exact 77 (457), approx with global proposals 74 "
         "(526), local 99 (870), chunks and compiled kernels included; CPU time 1.3, 1.0, 4.8 and 1.9 times that in "
         "memory. hist on 9.6M × 28 of four budgets of 256 MB: 479 MB with the interpreter (in memory 2,425)",
         "boost", "boost-budget-epyc-avx512-2cores.json boost-external-epyc-avx512-2cores.json "
         "boost-xeon-amx-2cores.json"),
        ("Fig 2.12", "beside Spark and H2O", "elsewhere",
         "a cluster", "", ""),
        ("Fig 2.13", "scaling over machines", "elsewhere",
         "a cluster; workers of one machine give the same trees", "boost", "boost-xeon-amx-2cores.json"),
    ),
    *_of(
        "mxnet",
        ("Fig 3.7", "LSTM: memory over its length", "reproduced",
         "steps as they are compiled, 4 layers, batch 64, a softmax at every step, divided along time: of 1024 units "
         "(planned) 1.1, 2.1, 3.3, 5.7× below sharing at 16, 32, 64, 128 steps; beside 139 MB of weight gradients "
         "the power 0.55 of the length; of 256 units (run) 4.8× at 64 steps, +17 % CPU time. The paper's 512 steps "
         "were not planned", "memory", "memory-lengths-epyc-avx512-2cores.json"),
        ("Fig 3.8", "ResNet: memory over its depth", "reproduced",
         "2.1 to 2.2× by sharing, slope 0.53 of recomputation, 1001 layers in 3.6 GB (paper below 7)", "memory",
         "memory-epyc-avx512-2cores.json"),
        ("Fig 3.9", "time of recomputation", "reproduced",
         "steps that are run, one thread, CPU time: residual networks of 50 to 386 layers +18 to +22 % by the "
         "sublinear plan (paper +30), arena 3.7 to 9 times smaller, seconds linear in depth in both; unrolled "
         "LSTMs of 16 to 64 steps +16, +24 and +17 %, linear, arena 1.2 to 3.4 times smaller (Fig 3.7)",
         "memory", "memory-speed-epyc-avx512-2cores.json memory-lengths-epyc-avx512-2cores.json"),
    ),
    *_of(
        "flexflow",
        ("Table 3.3", "accuracies", "reproduced",
         "scaled down, executed on 2 ranks, real digits: a small Inception 0.972 in one process, 0.967 data "
         "parallel, 0.967 by the found plan, 0.969 by a drawn one, losses within 5e-7 for 20 updates (later "
         "rounding grows); an LSTM 0.90 by all four, losses within 3e-7 to the end",
         "parallel_execution", "parallel-accuracy-epyc-avx512-2cores.json"),
        ("Table 3.4", "simulators and search time", "reproduced",
         "sizes 4 and 64 of five, extrapolated proposals", "parallel_simulators",
         "parallel-simulators-epyc-avx512-2cores.json"),
        ("Table 3.5", "restricted search spaces", "reproduced",
         "simulated, 4 P100, four networks, best strategy of each space by the same search over that of all "
         "dimensions: placement alone (ColocRL) 1.1 to 3.8×, no choice of devices (OptCNN) 1.0 to 1.46× "
         "(thesis: up to 3.8); the whole space is within 1.6 % of the best one, its search as long as the "
         "others'",
         "parallel_quality", "parallel-spaces-epyc-avx512-2cores.json"),
        ("Fig 3.6", "throughput of six networks", "differs",
         "simulated, 24 rows (six networks, 16 P100 and 64 K80, both models of sums): recurrent ones 1.07 to "
         "2.03× the better baseline (thesis 1.5 to 3.3), AlexNet 1.0 to 1.5 (1.3), Inception-v3 1.0 to 1.03 "
         "(1.3), ResNet-101 1.0 (1.0). Where sums of gradients overlap the backward pass, data parallelism "
         "waits for none in convolutional networks, and a proved bound leaves 1.4 to 3.3 % there",
         "parallel_quality", "parallel-quality-epyc-avx512-2cores.json"),
        ("Fig 3.7", "NMT on 64 K80", "reproduced",
         "simulated: 2.25× with sums after the step, 1.41 overlapped (thesis 1.7 to 2.4); compute 0.73 of data "
         "parallelism's (0.8); bytes 1.8× fewer, 2.1 with a price on each byte (2 to 5.5)",
         "parallel_quality", "parallel-quality-epyc-avx512-2cores.json parallel-bytes-epyc-avx512-2cores.json"),
        ("Fig 3.8", "training curve of Inception", "elsewhere",
         "16 GPUs for days; meanwhile a small Inception's accuracy by epochs, executed, is one process' (Table "
         "3.3), and a step of Inception-v3 is simulated: 1.0 to 1.03× data parallelism's speed (thesis 1.6)",
         "parallel_execution", "parallel-accuracy-epyc-avx512-2cores.json parallel-quality-epyc-avx512-2cores.json"),
        ("Fig 3.9", "beside REINFORCE's placement", "differs",
         "simulated, 4 K80: Inception 2.8×, NMT 1.3 (thesis 3.4 to 3.8 over ColocRL's published placements). "
         "Our baseline is the best placement that our own search finds: it sets NMT's layers and steps on "
         "devices as a wavefront, so that all four compute; 3.4 to 3.8 on four devices is what a placement "
         "loses that runs on one at a time",
         "parallel_quality", "parallel-quality-epyc-avx512-2cores.json"),
        ("Fig 3.11", "DLRM, Uno", "differs",
         "simulated, 96 V100: DLRM 44×, 4.5 with sparse gradients (thesis 10), Uno 2.0 (18 devices: 4.5; "
         "thesis 7.8). In the thesis neither baseline gains beyond one node; here data parallelism's sums are "
         "rings whose time hardly grows with nodes, so it gains 6.4× from 6 to 96. Over the baselines of one "
         "node Uno is 12.8 (data) and 5.8× (expert)",
         "parallel_quality", "parallel-quality-epyc-avx512-2cores.json"),
        ("Fig 3.12", "accuracy of simulated times", "reproduced",
         "scaled down, executed on two ranks of a CPU, 20 drawn strategies of two networks: by CPU time 40 of 40 "
         "within 13 % (thesis 30), order kept (rank correlation 0.98 and 0.93); by the wall clock 39 of 40 within 30 "
         "%, the worst 30.4 %, order 0.83 and 0.64; steps of a few ms are further off",
         "parallel_execution", "parallel-execution-epyc-avx512-2cores.json"),
        ("Fig 3.13", "full beside delta simulation over time", "reproduced",
         "the same walk for NMT on 16 P100, equal at each proposal: delta is at full simulation's last "
         "strategy after 0.53 of its CPU time (thesis 6 of 16 minutes), and better at each time before; a "
         "loaded machine",
         "parallel_studies", "parallel-studies-epyc-avx512-2cores.json"),
        ("Fig 3.14, 3.15", "pictures of strategies", "reproduced",
         "drawn from the stored strategies (parallel-strategy-*.svg): Inception-v3's late convolutions hybrid, "
         "samples and channels; NMT as in the thesis, layers on disjoint devices side by side, softmax split "
         "by parameters, embeddings by parameters (thesis: on one device)",
         "parallel_studies", "parallel-studies-epyc-avx512-2cores.json"),
        ("§3.7.5", "beside the optimum", "reproduced",
         "LeNet and RNNLM of 2 steps on 4 devices: the search's strategy is the optimum that branch and bound "
         "proves, in 0.2 and 0.9 s. The walk alone was 4.9 % off RNNLM's: two softmaxes on disjoint devices "
         "are a step back each alone; blocks are dealt out side by side now",
         "parallel", "parallel-exact-epyc-avx512-2cores.json"),
        ("§3.7.6", "case studies", "differs",
         "simulated, 4 P100: Inception-v3's gradients -38 to -48 % of bytes, time -1 to -3 % (thesis -75 and "
         "-12 %: its sums cost more of a step); NMT's -61 to -86 %, time -33 to -39 %, by the thesis' three "
         "rules. On K80 no operation of Inception-v3 is split in two, adjacent or not",
         "parallel_studies", "parallel-studies-epyc-avx512-2cores.json"),
    ),
    *_of(
        "roc",
        ("Table 4.4", "graphs", "reproduced",
         "generators of the four sizes, synthetic", "graph_learning", "partition-epyc-avx512-2cores.json"),
        ("Fig 4.4", "one device beside other systems", "reproduced",
         "on a CPU, graphs of Pubmed's and PPI's size (synthetic, PPI's labels single), one thread, CPU time: "
         "GCN, GIN, CommNet (and SAGE, GAT) 2.0 to 8.1× PyTorch Geometric's speed, 0.8 to 1.7× a plain "
         "torch.sparse's, whose losses are equal (thesis: on par or better); a tenth of Reddit 1.7 to 7.1× DGL's, "
         "where PyG's messages do not fit; Reddit whole in 595 MB",
         "gnn", "gnn-epochs-epyc-avx512-2cores.json gnn-epyc-avx512-2cores.json"),
        ("Fig 4.5", "many devices beside NeuGraph", "elsewhere",
         "several GPUs; workers of one machine agree", "partition", "partition-epyc-avx512-2cores.json"),
        ("Fig 4.6", "whole graph beside samples", "reproduced",
         "6,000 synthetic vertices, most without features: whole graph 0.80 after 120 epochs, samples of 25, "
         "10 and 10, 5 neighbours 0.75 and 0.72 in 180 updates, which never reach "
         "its accuracy (thesis: at any accuracy the whole graph is as fast, and ends 1.5 % above); a scale-down",
         "gnn", "gnn-accuracy-epyc-avx512-2cores.json"),
        ("Fig 4.7", "accuracy over depth and width", "reproduced",
         "2,000 synthetic vertices: 0.30 (1 layer), 0.63 (2), 0.77 (3), 0.77 (4 layers of 128); 2 layers of 16 "
         "0.57",
         "gnn", "gnn-accuracy-epyc-avx512-2cores.json"),
        ("Fig 4.8", "learned partitions", "reproduced",
         "1.3 to 2.4× over equal vertices (paper 1.4)", "partition", "partition-epyc-avx512-2cores.json"),
        ("Fig 4.9", "unseen graphs", "reproduced",
         "0.99× on 4, 1.22× on 8 (paper 1.2)", "partition", "partition-epyc-avx512-2cores.json"),
        ("Fig 4.10", "bytes between memories", "reproduced",
         "1.8× LRU's, 2.1× streaming's (paper 1.4 to 5)", "two_memories", "two-memories-epyc-avx512-2cores.json"),
    ),
)  # fmt: skip


JOBS: Mapping[str, tuple[str, str]] = {  # by the name of the result: its paper, and the program that measures it
    "parallel-quality": ("flexflow", "benchmarks.parallel_quality networks embeddings placement --seconds 8"),
    "parallel-bytes": ("flexflow", "benchmarks.parallel_quality bytes --seconds 12"),
    "parallel-pipelines": ("flexflow", "benchmarks.parallel_quality pipelines memory --seconds 4"),
    "parallel-spaces": ("flexflow", "benchmarks.parallel_quality spaces --seconds 5"),
    "parallel-studies": ("flexflow", "benchmarks.parallel_studies --seconds 12"),
    "parallel-exact": ("flexflow", "benchmarks.parallel exact --seconds 8"),
    "parallel-accuracy": ("flexflow", "benchmarks.parallel_execution accuracy"),
    "parallel-execution": ("flexflow", "benchmarks.parallel_execution real planned weights memory"),
    "parallel-simulators": ("flexflow", "benchmarks.parallel_simulators"),
    "boost-convergence": ("xgboost", "benchmarks.boost convergence --json"),
    "boost-external": ("xgboost", "benchmarks.boost external --json"),
    "boost": ("xgboost", "benchmarks.boost --json"),
    "memory-speed": ("mxnet", "benchmarks.memory speed"),
    "memory-lengths": ("mxnet", "benchmarks.memory recurrent lengths"),
    "memory": ("mxnet", "benchmarks.memory"),
    "gnn-accuracy": ("roc", "benchmarks.gnn sampling depth --threads 1 --json"),
    "gnn-epochs": ("roc", "benchmarks.gnn epochs --graphs pubmed,ppi --threads 1 --rounds 2 --json"),
    "partition": ("roc", "benchmarks.partition"),
    "two-memories": ("roc", "benchmarks.two_memories"),
    "kernels": ("tvm", "benchmarks.kernels --json"),
    "study": ("autotvm", "benchmarks.study all --json"),
    "adatune": ("adatune", "benchmarks.adatune --json"),
    "adatune-breakdown": (
        "adatune",
        "benchmarks.adatune C2 C3 C4 C5 C6 C7 C8 C9 C10 C11 C12 --only breakdown --trials 32 --json",
    ),
    "adatune-variance": ("adatune", "benchmarks.adatune --only variance --trials 12 --json"),
    "study-epsilon": ("adatune", "benchmarks.study epsilon C8 C9 --trials 96 --seeds 5 --json"),
    "rewrite": ("taso", "benchmarks.rewrite --json"),
    "rewrite-search": ("taso", "benchmarks.rewrite generator verifier search --json"),
    "rewrite-sequences": ("taso", "benchmarks.rewrite sequences --json"),
    "boost-blocks": ("xgboost", "benchmarks.boost blocks --json"),
    "boost-budget": ("xgboost", "benchmarks.boost budget --json"),
    "boost-summary": ("xgboost", "benchmarks.boost summary --json"),
    "fusion": ("tvm", "benchmarks.fusion --seconds 8 --json"),
    "tune-operators": ("autotvm", "benchmarks.tune_operators --json"),
    "tables": ("autotvm", "benchmarks.tables"),
    **{
        f"replay-{section}": ("autotvm", f"benchmarks.replay {section} --json")
        for section in ("models", "objective", "diversity", "uncertainty", "transfer", "devices")
    },
    **{
        f"replay-{section}": ("adatune", f"benchmarks.replay {section} --seeds 15 --json")
        for section in ("adatune", "epsilon", "breakdown")
    },
    "adatune-networks": ("adatune", "benchmarks.adatune_networks --json"),
}


def index() -> str:
    """Markdown of all experiments, paper by paper."""
    counts = {status: sum(e.status == status for e in EXPERIMENTS) for status in STATUSES}
    lines = [
        "# The papers' experiments", "",
        "Written by `python -m benchmarks index` from `benchmarks/evidence.py`. Of "
        f"{len(EXPERIMENTS)}: " + ", ".join(f"{n} {status}" for status, n in counts.items()) + ".", "",
        *(f"- *{status}*: {meaning}." for status, meaning in STATUSES.items()),
    ]  # fmt: skip
    for paper, title in PAPERS.items():
        lines += ["", f"## {title}", "", "| | what | status | found | program | stored |", "|---|---|---|---|---|---|"]
        for e in EXPERIMENTS:
            if e.paper == paper:
                files = ", ".join(f"[{name.removesuffix('.json')}]({name})" for name in e.results)
                program = f"`{e.program}`" if e.program else ""
                lines.append(f"| {e.figure} | {e.what} | {e.status} | {e.found} | {program} | {files} |")
    return "\n".join(lines) + "\n"
