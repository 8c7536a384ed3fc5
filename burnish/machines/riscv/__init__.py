"""RISC-V, 64 bits, with vectors and without."""
