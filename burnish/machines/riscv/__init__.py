"""RISC-V, 64 bits: code is made, none runs here yet."""
