"""Names of RISC-V extensions: LLVM's feature -> the Linux kernel's word for it in the line "isa" of /proc/cpuinfo."""

from collections.abc import Mapping

FLAGS: Mapping[str, str] = {
    "a": "a", "c": "c", "d": "d", "f": "f", "m": "m", "v": "v", "zba": "zba", "zbb": "zbb", "zbs": "zbs", "zfh": "zfh",
    "zvfh": "zvfh",
}  # fmt: skip
