"""NVIDIA GPUs: blocks of threads, shared memory, barriers and tensor cores, written as PTX through LLVM."""
