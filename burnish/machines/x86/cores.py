"""x86-64 cores and targets as data. A CPU is a row here: of CORES where its rates differ, of MODELS to compile for it
from elsewhere.
"""

from collections.abc import Mapping

from burnish.machines.machine import Core, CpuModel

# Declared, not measured here, so that every machine of a kind chooses alike: two vectors multiplied and added in a
# cycle at 3.3 GHz, and the bytes a second that one core of a two-core virtual machine (Sapphire Rapids, Zen 5) moves.
CORE = Core(multiply_bytes=None, clock=3.3e9, cache_bandwidth=19e9, memory_bandwidth=15e9)
CORES: Mapping[str, Core] = {
    "znver4": Core(multiply_bytes=32, clock=3.3e9, cache_bandwidth=19e9, memory_bandwidth=15e9),  # 64 in two halves
}
# The levels of the x86-64 psABI, and what Sapphire Rapids adds that kernels use.
_V2 = "crc32 popcnt sse3 ssse3 sse4.1 sse4.2"
_V3 = f"{_V2} avx avx2 bmi bmi2 f16c fma lzcnt movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
MODELS = (
    CpuModel("x86-64-v4", "x86-64-v4", _V4, 32 << 10, 1 << 20, 32 << 20, 2),
    CpuModel(
        "sapphirerapids",
        "sapphirerapids",
        f"{_V4} avx512vnni avx512bf16 avx512vpopcntdq amx-tile amx-bf16 amx-int8",
        48 << 10,
        2 << 20,
        32 << 20,
        2,
    ),
    CpuModel("cascadelake", "cascadelake", f"{_V4} avx512vnni", 32 << 10, 1 << 20, 32 << 20, 2),
    CpuModel("x86-64-v3", "x86-64-v3", _V3, 32 << 10, 512 << 10, 16 << 20, 2),
    CpuModel("x86-64-v2", "x86-64-v2", _V2, 32 << 10, 256 << 10, 8 << 20, 2),
)
