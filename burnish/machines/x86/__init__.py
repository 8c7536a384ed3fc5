"""x86-64: AVX2 and AVX-512 vectors, dot products on lanes (VNNI, BF16), and AMX as its matrix unit."""
