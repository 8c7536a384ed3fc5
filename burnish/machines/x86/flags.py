"""Names of x86-64 instruction sets: LLVM's feature -> the Linux kernel's word for it in /proc/cpuinfo."""

from collections.abc import Mapping

FLAGS: Mapping[str, str] = {
    "adx": "adx", "aes": "aes", "amx-bf16": "amx_bf16", "amx-fp16": "amx_fp16", "amx-int8": "amx_int8",
    "amx-tile": "amx_tile", "avx": "avx", "avx2": "avx2", "avx512bf16": "avx512_bf16",
    "avx512bitalg": "avx512_bitalg", "avx512bw": "avx512bw", "avx512cd": "avx512cd", "avx512dq": "avx512dq",
    "avx512f": "avx512f", "avx512fp16": "avx512_fp16", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2", "avx512vl": "avx512vl", "avx512vnni": "avx512_vnni",
    "avx512vp2intersect": "avx512_vp2intersect", "avx512vpopcntdq": "avx512_vpopcntdq", "avxifma": "avx_ifma",
    "avxvnni": "avx_vnni", "avxvnniint8": "avx_vnni_int8", "bmi": "bmi1", "bmi2": "bmi2", "crc32": "sse4_2",
    "f16c": "f16c", "fma": "fma", "gfni": "gfni", "lzcnt": "abm", "movbe": "movbe", "pclmul": "pclmulqdq",
    "popcnt": "popcnt", "sha": "sha_ni", "sse": "sse", "sse2": "sse2", "sse3": "pni", "sse4.1": "sse4_1",
    "sse4.2": "sse4_2", "ssse3": "ssse3", "vaes": "vaes", "vpclmulqdq": "vpclmulqdq",
}  # fmt: skip
