"""Names of AArch64 instruction sets: LLVM's feature -> the Linux kernel's word for it in /proc/cpuinfo."""

from collections.abc import Mapping

FLAGS: Mapping[str, str] = {
    "bf16": "bf16", "crc": "crc32", "dotprod": "asimddp", "fp-armv8": "fp", "fp16fml": "asimdfhm",
    "fullfp16": "asimdhp", "i8mm": "i8mm", "lse": "atomics", "neon": "asimd", "rdm": "asimdrdm", "sme": "sme",
    "sve": "sve", "sve2": "sve2",
}  # fmt: skip
